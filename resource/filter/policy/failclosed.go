package policy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A FailClosed enforces the policies isolated and strict by routing rules after the packet filter was flushed, until
// a repair. The rules prohibit routes to the subnets of such networks: from links of other networks with such a
// policy, and, for strict networks, from everywhere but this host. They ignore packets with the mark that our table
// sets where it decides itself (see subnetMarks). So they have no effect while the table exists.
//
// Each rule and route carries its owner's tag, so no record is needed, and several networks may have equal rules.
type FailClosed struct {
	Owner   spec.Owner
	Link    string // as in Ingress
	Policy  string
	Subnets []netip.Prefix // of the addresses behind the link
}

func (c FailClosed) String() string {
	if c.clears() {
		return "rule prohibit"
	}
	return resource.Line("rule", resource.Opt("iif", c.Link), resource.Prefixes("to", filter.Masked(c.Subnets)),
		fmt.Sprintf("fwmark 0/%#x", filter.DecidedMark), "prohibit", resource.Opt("policy", c.Policy))
}

// Traits implements resource.Describer. The rules survive a flush; the marks that disable them do not.
func (c FailClosed) Traits() resource.Traits {
	return resource.Traits{Effect: resource.Opens, Clears: c.clears()}
}

// clears reports whether the policy is one of those that need no rules.
func (c FailClosed) clears() bool { return c.Policy != Isolated && c.Policy != Strict }

// The priorities of the rules, before that of the main table, and the table of the subnets that no closed link may
// reach.
const (
	failClosedLocal = 31900 // this host reaches a strict network
	failClosedFrom  = 31901 // what a closed link sends
	failClosedInto  = 31902 // what is for a strict network
	failClosedTable = 64250

	// The way back to a packet's source is looked for as from the link that the packet goes out by, so with the
	// packet's mark.
	srcValidMark = "net/ipv4/conf/%s/src_valid_mark"
)

// failClosedTag is the tag of what a link has. The last bit is that of a network's link, which is awaited when it is
// gone.
func failClosedTag(o spec.Owner, kind uint32) uint32 {
	h := identity.OwnerHash(o)
	tag := binary.BigEndian.Uint32(h[:]) &^ 1
	if kind == filter.KindNetwork {
		tag |= 1
	}
	return rtnl.RuleTag(tag)
}

// prohibitions are rules, and routes of failClosedTable.
type prohibitions struct {
	link   string // that is closed
	rules  []rtnl.Rule
	routes []rtnl.Route
}

// prohibitionsOf are those of a link. What exempts comes before what prohibits.
func prohibitionsOf(tag uint32, link, policy string, subnets []netip.Prefix) (p prohibitions) {
	rule := func(family uint8, priority int, r rtnl.Rule) rtnl.Rule {
		r.Family, r.Priority, r.Tag, r.Protocol = family, priority, tag, rtnl.OurProtocol
		if r.Action == 0 {
			r.Action = rtnl.Lookup
		}
		return r
	}
	p.link = link
	var into []rtnl.Rule
	for _, family := range resource.Families() {
		p.rules = append(p.rules, rule(family, failClosedFrom,
			rtnl.Rule{IIF: link, Mask: filter.DecidedMark, Table: failClosedTable}))
		for _, s := range filter.OfFamily(subnets, family == rtnl.IPv6) {
			p.routes = append(p.routes, rtnl.Route{Dst: s, Table: failClosedTable, Type: rtnl.ProhibitRoute,
				Priority: int(tag), Protocol: rtnl.OurProtocol})
			if policy == Strict {
				p.rules = append(p.rules, rule(family, failClosedLocal,
					rtnl.Rule{IIF: "lo", To: s, Table: rtnl.MainTable}))
				into = append(into, rule(family, failClosedInto,
					rtnl.Rule{To: s, Mask: filter.DecidedMark | filter.StrictMark, Action: rtnl.Prohibit}))
			}
		}
	}
	p.rules = append(p.rules, into...)
	return p
}

// failClosedRules are the standing rules of a tag; 0: of any.
func failClosedRules(w *kernel.World, tag uint32, family uint8) (list []rtnl.Rule, err error) {
	all, err := rtnl.Rules(w.Host, family)
	for _, r := range all {
		if r.Protocol == rtnl.OurProtocol && r.Priority >= failClosedLocal && r.Priority <= failClosedInto &&
			(tag == 0 || r.Tag == tag) {
			if r.Action != rtnl.Lookup {
				r.Table = 0 // the kernel says one that it does not go by
			}
			list = append(list, r)
		}
	}
	return list, err
}

// standingProhibitions are those of a tag; 0: of any.
func standingProhibitions(w *kernel.World, tag uint32) (p prohibitions, err error) {
	for _, family := range resource.Families() {
		rules, err := failClosedRules(w, tag, family)
		if err != nil {
			return p, err
		}
		p.rules = append(p.rules, rules...)
		routes, err := rtnl.Routes(w.Host, rtnl.RouteFilter{Family: family, Table: failClosedTable,
			Protocol: rtnl.OurProtocol})
		if err != nil {
			return p, err
		}
		for _, r := range routes {
			if tag == 0 || r.Priority == int(tag) {
				p.routes = append(p.routes, rtnl.Route{Dst: r.Dst, Table: r.Table, Type: r.Type, Priority: r.Priority,
					Protocol: r.Protocol})
			}
		}
	}
	return p, nil
}

// without are those of p that q has not.
func (p prohibitions) without(q prohibitions) (left prohibitions) {
	left.rules = slices.DeleteFunc(slices.Clone(p.rules), func(r rtnl.Rule) bool { return slices.Contains(q.rules, r) })
	left.routes = slices.DeleteFunc(slices.Clone(p.routes),
		func(r rtnl.Route) bool { return slices.Contains(q.routes, r) })
	return left
}

func (p prohibitions) empty() bool { return len(p.rules)+len(p.routes) == 0 }

// add adds all, or none. What another call has just added is there.
func (p prohibitions) add(w *kernel.World) (err error) {
	var done prohibitions
	for _, r := range p.rules {
		if err = rtnl.AddRule(w.Host, r); err != nil && !errors.Is(err, unix.EEXIST) {
			return errors.Join(err, done.remove(w))
		}
		done.rules = append(done.rules, r)
	}
	for _, r := range p.routes {
		if err = rtnl.AddRoute(w.Host, r, false); err != nil && !errors.Is(err, unix.EEXIST) {
			return errors.Join(err, done.remove(w))
		}
		done.routes = append(done.routes, r)
	}
	return nil
}

// remove removes all, the first rule last: by that Remove finds the others.
func (p prohibitions) remove(w *kernel.World) error {
	var errs []error
	for _, r := range p.routes {
		errs = append(errs, rtnl.DelRoute(w.Host, r))
	}
	for _, r := range slices.Backward(p.rules) {
		errs = append(errs, rtnl.DelRule(w.Host, r))
	}
	return errors.Join(errs...)
}

// on is what has to stand, and what stands.
func (c FailClosed) on(w *kernel.World) (want, have prohibitions, err error) {
	i := Ingress{Owner: c.Owner, Link: c.Link, Policy: c.Policy, To: c.Subnets}
	link, o, kind, err := i.on(w)
	if err != nil || link == "" {
		return want, have, err
	}
	tag := failClosedTag(o, kind)
	if have, err = standingProhibitions(w, tag); err != nil || c.clears() {
		return want, have, err
	}
	var subnets []netip.Prefix // with those of others behind the link
	for _, r := range have.routes {
		subnets = append(subnets, r.Dst)
	}
	subnets, err = i.subnetsBehind(w, link, kind, subnets)
	return prohibitionsOf(tag, link, c.Policy, filter.Masked(subnets)), have, err
}

// Ensure implements plan.Resource.
func (c FailClosed) Ensure(_ context.Context, w *kernel.World) (changed bool, err error) {
	want, have, err := c.on(w)
	if err != nil {
		return false, err
	}
	if want.link != "" {
		changed, err = procsys.Set(w.Host, procsys.Setting{Key: fmt.Sprintf(srcValidMark, want.link), Value: "1"})
		if err = awaited(w, want.link, err); err != nil {
			return false, err
		}
	}
	spare, missing := have.without(want), want.without(have)
	if err := missing.add(w); err != nil {
		return false, err
	}
	return changed || !spare.empty() || !missing.empty(), spare.remove(w)
}

// Verify implements plan.Resource.
func (c FailClosed) Verify(_ context.Context, w *kernel.World) error {
	want, have, err := c.on(w)
	if err != nil {
		return err
	}
	var d resource.Drift
	for _, side := range []struct {
		differs func(part string) spec.Difference
		prohibitions
	}{{spec.Missing, want.without(have)}, {spec.TooMuch, have.without(want)}} {
		for _, r := range side.rules {
			d.Add(side.differs("rule " + ruleText(r)))
		}
		for _, r := range side.routes {
			d.Add(side.differs(fmt.Sprintf("route prohibit %v table %d", r.Dst, r.Table)))
		}
	}
	if want.link != "" {
		key := fmt.Sprintf(srcValidMark, want.link)
		if v, err := procsys.Get(w.Host, key); err == nil {
			d.Want(key, "1", v)
		} else if err = awaited(w, want.link, err); err != nil {
			return err
		}
	}
	return d.Err()
}

// awaited is err, of a setting of a link's, unless the link is gone: the rules go by its name, and await it.
func awaited(w *kernel.World, link string, err error) error {
	if _, lerr := rtnl.LinkByName(w.Host, link); errors.Is(lerr, rtnl.ErrNoLink) {
		return nil
	}
	return err
}

// ruleText is a rule in the words of ip(8).
func ruleText(r rtnl.Rule) string {
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
	if r.Action == rtnl.Prohibit {
		return strings.Join(append(words, "prohibit"), " ")
	}
	return strings.Join(append(words, "lookup", fmt.Sprint(r.Table)), " ")
}

// Remove implements plan.Remover. It needs only the owner. It leaves the rules of the network.
func (c FailClosed) Remove(_ context.Context, w *kernel.World) error {
	return removeProhibitions(w, failClosedTag(c.Owner, filter.KindIngress))
}

func removeProhibitions(w *kernel.World, tag uint32) error {
	if rules, err := failClosedRules(w, tag, rtnl.IPv4); err != nil || len(rules) == 0 {
		return err
	}
	have, err := standingProhibitions(w, tag)
	if err != nil {
		return err
	}
	return have.remove(w)
}

// sweepProhibitions removes those for links of a network's that keeps does not want, for links of attachments' own that
// are gone, and what no link has any more.
func sweepProhibitions(w *kernel.World, network string, keeps func(link string) (bool, error)) error {
	all, err := standingProhibitions(w, 0)
	if err != nil {
		return err
	}
	used := map[uint32]bool{}
	for _, r := range all.rules {
		if r.Priority != failClosedFrom || r.Tag == 0 || used[r.Tag] {
			continue
		}
		used[r.Tag] = true // where it cannot be told, too
		switch {
		case r.Tag == failClosedTag(NetworkOwner(network, r.IIF), filter.KindNetwork):
			stays, kerr := keeps(r.IIF)
			used[r.Tag], err = stays || kerr != nil, errors.Join(err, kerr)
		case r.Tag&1 == 0:
			_, lerr := rtnl.LinkByName(w.Host, r.IIF)
			used[r.Tag] = !errors.Is(lerr, rtnl.ErrNoLink)
		}
	}
	all.rules = slices.DeleteFunc(all.rules, func(r rtnl.Rule) bool { return used[r.Tag] })
	all.routes = slices.DeleteFunc(all.routes, func(r rtnl.Route) bool { return used[uint32(r.Priority)] })
	return errors.Join(err, all.remove(w))
}
