package resource

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A Closed keeps what the policies isolated and strict keep out away while the packet filter is not there: somebody
// flushed it, and nobody has repaired it yet. The routing rules that it makes prohibit the way; they let be what
// carries the mark that only a whole table of ours gives (see decidedMark). With the table in place they decide
// nothing.
type Closed struct {
	Owner   spec.Owner
	Link    string // as in Ingress
	Policy  string
	Subnets []netip.Prefix // of the addresses behind the link
}

func (c Closed) String() string {
	if c.Clears() {
		return "rule prohibit"
	}
	return line("rule", opt("iif", c.Link), prefixes("to", networks(c.Subnets)), fmt.Sprintf("fwmark 0/%#x", decidedMark), "prohibit", opt("policy", c.Policy))
}

// Clears implements Clearer: other policies need no rules.
func (c Closed) Clears() bool { return c.Policy != PolicyIsolated && c.Policy != PolicyStrict }

// Effect implements PacketRule: the rules survive a flush, and the marks that lift them do not.
func (Closed) Effect() Effect { return Opens }

// The priorities of the rules, before that of the main table, and the table of what no closed link may reach.
const (
	closedExempt   = 31900
	closedOthers   = 31901
	closedIn       = 31902
	closedTable    = 64250
	closedRecord   = "closed"
	closedValidate = "net/ipv4/conf/%s/src_valid_mark"
)

// closed is what is remembered of a link.
type closed struct {
	Link    string
	Subnets []netip.Prefix
	Strict  bool
	Shared  bool // a bridge: its network's
}

// rules are the link's routing rules, those that exempt before those that prohibit.
func (c closed) rules() (rules []kernel.Rule) {
	var after []kernel.Rule
	for _, v6 := range []bool{false, true} {
		family := uint8(kernel.IPv4)
		if v6 {
			family = kernel.IPv6
		}
		subnets := ofFamily(c.Subnets, v6)
		for _, p := range subnets {
			rules = append(rules, kernel.Rule{Family: family, Priority: closedExempt, IIF: c.Link, To: p, Table: kernel.MainTable})
			if c.Strict {
				rules = append(rules, kernel.Rule{Family: family, Priority: closedExempt, IIF: "lo", To: p, Table: kernel.MainTable})
				after = append(after, kernel.Rule{Family: family, Priority: closedIn, To: p, Mask: decidedMark, Action: kernel.Prohibit})
			}
		}
		if len(subnets) > 0 {
			after = append(after, kernel.Rule{Family: family, Priority: closedOthers, IIF: c.Link, Mask: decidedMark, Table: closedTable})
		}
	}
	return append(rules, after...)
}

// routes are the prohibitions that other closed links meet.
func (c closed) routes() (routes []kernel.Route) {
	for _, p := range c.Subnets {
		routes = append(routes, kernel.Route{Dst: p, Table: closedTable, Type: kernel.ProhibitRoute})
	}
	return routes
}

// sameRule compares what a rule of ours says.
func sameRule(a, b kernel.Rule) bool {
	a.Protocol, b.Protocol = 0, 0
	for _, r := range []*kernel.Rule{&a, &b} {
		if r.Action == 0 {
			r.Action = kernel.Lookup
		}
		if r.Action != kernel.Lookup {
			r.Table = 0
		}
	}
	return a == b
}

// standing are our rules and routes.
func (closed) standing(w *kernel.World) (rules []kernel.Rule, routes []kernel.Route, err error) {
	for _, family := range []uint8{kernel.IPv4, kernel.IPv6} {
		all, err := w.Host.Rules(family)
		if err != nil {
			return nil, nil, err
		}
		for _, r := range all {
			if r.Protocol == kernel.OurProtocol && !r.Other {
				rules = append(rules, r)
			}
		}
		some, err := w.Host.Routes(kernel.RouteFilter{Family: family, Table: closedTable, Protocol: kernel.OurProtocol})
		if err != nil {
			return nil, nil, err
		}
		routes = append(routes, some...)
	}
	return rules, routes, nil
}

func (c closed) missing(w *kernel.World) (rules []kernel.Rule, routes []kernel.Route, err error) {
	have, paths, err := c.standing(w)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range c.rules() {
		if !slices.ContainsFunc(have, func(h kernel.Rule) bool { return sameRule(h, r) }) {
			rules = append(rules, r)
		}
	}
	for _, r := range c.routes() {
		if !slices.ContainsFunc(paths, func(h kernel.Route) bool { return h.Dst == r.Dst }) {
			routes = append(routes, r)
		}
	}
	return rules, routes, nil
}

// drop removes the rules and routes of an owner's link that want lacks, and no other owner has: networks may share a
// bridge.
func (c closed) drop(w *kernel.World, owner [8]byte, want closed) (changed bool, err error) {
	have, paths, err := c.standing(w)
	if err != nil {
		return false, err
	}
	records, err := decoded[closed](w.Memory.All(closedRecord))
	if err != nil {
		return false, err
	}
	rules, subnets := want.rules(), want.Subnets
	for other, theirs := range records {
		if other != owner {
			rules, subnets = append(rules, theirs.rules()...), slices.Concat(subnets, theirs.Subnets)
		}
	}
	var errs []error
	old := c.rules()
	slices.Reverse(old) // what prohibits goes before what exempts from it
	for _, r := range old {
		at := slices.IndexFunc(have, func(h kernel.Rule) bool { return sameRule(h, r) })
		if at >= 0 && !slices.ContainsFunc(rules, func(h kernel.Rule) bool { return sameRule(h, r) }) {
			errs = append(errs, w.Host.DelRule(have[at]))
			changed = true
		}
	}
	for _, r := range paths {
		if slices.Contains(c.Subnets, r.Dst) && !slices.Contains(subnets, r.Dst) {
			errs = append(errs, w.Host.DelRoute(r))
			changed = true
		}
	}
	return changed, errors.Join(errs...)
}

// on is what has to stand, with what is remembered of the link.
func (c Closed) on(w *kernel.World) (want, known closed, o spec.Owner, err error) {
	link, o, kind, err := Ingress{c.Owner, c.Link, c.Policy, c.Subnets}.on(w)
	if err != nil || link == "" {
		return want, known, o, err
	}
	if _, err := w.Memory.Recall(closedRecord, o, &known); err != nil {
		return want, known, o, err
	}
	if c.Clears() {
		return want, known, o, nil
	}
	want = closed{Link: link, Strict: c.Policy == PolicyStrict, Shared: kind == kindNetwork, Subnets: networks(append(slices.Clone(known.Subnets), c.Subnets...))}
	return want, known, o, nil
}

// part has the packets into a strict network marked; those out of it are by the set policed.
func (c closed) part(t *kernel.NFTTable) *part {
	p := newPart(t)
	for _, s := range c.Subnets {
		if !c.Strict {
			break
		}
		v6 := s.Addr().Is6()
		chain := &kernel.NFTChain{Name: "marking_" + ip(v6) + "_" + kernel.ShortHash(s.String()), Rules: []*kernel.NFTRule{kernel.NewNFTRule("this table decides").SetMark(decidedMark)}}
		p.Chains = append(p.Chains, chain)
		p.lines = append(p.lines, wayIn{chain: "marking", rule: kernel.NewNFTRule("into a strict network").Family(v6).Prefix(true, false, s).Jump(chain.Name)})
	}
	return p
}

// Ensure implements plan.Resource.
func (c Closed) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	want, known, _, err := c.on(w)
	if err != nil || want.Link == "" && known.Link == "" {
		return false, err
	}
	unlock, err := kernel.Lock(ctx, "closed")
	if err != nil {
		return false, err
	}
	defer unlock()
	want, known, o, err := c.on(w) // with what another attachment has added meanwhile
	if err != nil {
		return false, err
	}
	if want.Link == "" {
		changed, err = known.drop(w, kernel.OwnerHash(o), want)
		return changed, errors.Join(err, w.Memory.Forget(closedRecord, o))
	}
	if !slices.Equal(want.Subnets, known.Subnets) || want.Strict != known.Strict {
		both := want
		both.Strict = want.Strict || known.Strict
		if err := w.Memory.Remember(closedRecord, o, both); err != nil {
			return false, err
		}
		if changed, err = known.drop(w, kernel.OwnerHash(o), want); err != nil {
			return changed, err
		}
		if err := w.Memory.Remember(closedRecord, o, want); err != nil {
			return changed, err
		}
	}
	if want.Strict {
		if err := withFilter(ctx, w, inetTable(), func(f filter) error { return f.ready(want.part(f.t)) }); err != nil {
			return changed, err
		}
	}
	rules, routes, err := want.missing(w)
	if err != nil {
		return changed, err
	}
	// The way back of a packet is validated with its mark, or a marked one could not come in where the way back is
	// prohibited to others.
	did, err := w.Host.SetSysctls(kernel.Setting{Key: fmt.Sprintf(closedValidate, want.Link), Value: "1"})
	if awaited(w, want.Link, err) != nil {
		return changed, err
	}
	for _, r := range routes {
		r.Protocol = kernel.OurProtocol
		if err := w.Host.AddRoute(r, false); err != nil && !errors.Is(err, unix.EEXIST) {
			return true, errors.Join(err, c.remove(w))
		}
	}
	for _, r := range rules {
		r.Protocol = kernel.OurProtocol
		if err := w.Host.AddRule(r); err != nil && !errors.Is(err, unix.EEXIST) {
			return true, errors.Join(err, c.remove(w))
		}
	}
	return changed || did || len(rules)+len(routes) > 0, nil
}

// Verify implements plan.Resource.
func (c Closed) Verify(ctx context.Context, w *kernel.World) error {
	want, known, _, err := c.on(w)
	if err != nil || want.Link == "" && known.Link == "" {
		return err
	}
	if want.Link == "" {
		return fmt.Errorf("%s is closed as by another policy", known.Link)
	}
	rules, routes, err := want.missing(w)
	if err != nil {
		return err
	}
	var d drift
	for _, r := range rules {
		d.add(fmt.Errorf("rule %s is missing", ruleText(r)))
	}
	for _, r := range routes {
		d.add(fmt.Errorf("route prohibit %v table %d is missing", r.Dst, r.Table))
	}
	key := fmt.Sprintf(closedValidate, want.Link)
	if v, err := w.Host.Sysctl(key); err == nil {
		d.want(key, "1", v)
	} else if awaited(w, want.Link, err) != nil {
		return err
	}
	if want.Strict {
		d.add(withFilter(ctx, w, inetTable(), func(f filter) error {
			found, err := f.standing(want.part(f.t))
			return errors.Join(err, found.err())
		}))
	}
	return d.err()
}

// awaited is err, of a setting of a link's, unless the link is gone: the rules go by its name, and await it.
func awaited(w *kernel.World, link string, err error) error {
	if _, lerr := w.Host.Link(link); errors.Is(lerr, kernel.ErrNoLink) {
		return nil
	}
	return err
}

// ruleText is a rule in the words of ip(8).
func ruleText(r kernel.Rule) string {
	words := []string{fmt.Sprintf("%d:", r.Priority)}
	if r.To.IsValid() {
		words = append(words, "to", r.To.String())
	}
	if r.Mask != 0 {
		words = append(words, fmt.Sprintf("fwmark %#x/%#x", r.Mark, r.Mask))
	}
	if r.IIF != "" {
		words = append(words, "iif", r.IIF)
	}
	if r.Action == kernel.Prohibit {
		return strings.Join(append(words, "prohibit"), " ")
	}
	return strings.Join(append(words, "lookup", fmt.Sprint(r.Table)), " ")
}

// Remove implements plan.Remover. It needs only the owner, and leaves what is the network's.
func (c Closed) Remove(ctx context.Context, w *kernel.World) error {
	var known closed
	if there, err := w.Memory.Recall(closedRecord, c.Owner, &known); err != nil || !there {
		return errors.Join(err, w.Memory.Forget(closedRecord, c.Owner))
	}
	unlock, err := kernel.Lock(ctx, "closed")
	if err != nil {
		return err
	}
	defer unlock()
	return c.remove(w)
}

// remove is Remove under the lock.
func (c Closed) remove(w *kernel.World) error {
	var known closed
	if _, err := w.Memory.Recall(closedRecord, c.Owner, &known); err != nil {
		return err
	}
	if _, err := known.drop(w, kernel.OwnerHash(c.Owner), closed{}); err != nil {
		return err
	}
	return w.Memory.Forget(closedRecord, c.Owner)
}

// SweepClosed removes the routing rules for links that are gone, and returns the owners of those that stay.
func SweepClosed(ctx context.Context, w *kernel.World, network string, used bool, keep func(owner [8]byte) bool) (stay map[[8]byte]bool, err error) {
	records, err := decoded[closed](w.Memory.Records(closedRecord, network))
	errs := []error{err}
	stay = map[[8]byte]bool{}
	if len(records) == 0 {
		return stay, err
	}
	unlock, err := kernel.Lock(ctx, "closed")
	if err != nil {
		for owner := range records {
			stay[owner] = true
		}
		return stay, err
	}
	defer unlock()
	for owner, known := range records {
		if keep(owner) {
			continue
		}
		if known.Shared {
			stands, err := stands(w, known.Link, used)
			if errs = append(errs, err); err != nil || stands {
				stay[owner] = true
				continue
			}
		}
		_, err := known.drop(w, owner, closed{})
		if err = errors.Join(err, forgetOthers(ctx, w, known.Link)); err != nil {
			errs = append(errs, err)
			stay[owner] = true
		}
	}
	return stay, errors.Join(errs...)
}

// releaseClosed removes the routing rules of a network's bridges but those that keep says.
func releaseClosed(ctx context.Context, w *kernel.World, network string, keep func(link string) bool) error {
	unlock, err := kernel.Lock(ctx, "closed")
	if err != nil {
		return err
	}
	defer unlock()
	records, err := decoded[closed](w.Memory.Records(closedRecord, network))
	errs := []error{err}
	for owner, known := range records {
		if !known.Shared || keep(known.Link) {
			continue
		}
		_, err := known.drop(w, owner, closed{})
		if err = errors.Join(err, forgetOthers(ctx, w, known.Link)); err == nil {
			err = w.Memory.Forget(closedRecord, networkOwner(network, known.Link))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
