package policy

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

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
type FailClosed Ingress

func (c FailClosed) String() string {
	if c.clears() {
		return "rule prohibit"
	}
	return resource.Line("rule", resource.Opt("iif", c.Link), resource.Prefixes("to", filter.Masked(c.To)),
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

// A prohibition is a rule, or a route of failClosedTable.
type prohibition struct {
	rule  rtnl.Rule
	route rtnl.Route
}

func (p prohibition) isRoute() bool { return p.route.Dst.IsValid() }

// tag is that of its owner.
func (p prohibition) tag() uint32 { return cmp.Or(p.rule.Tag, uint32(p.route.Priority)) }

func (p prohibition) add(w *kernel.World) error {
	if p.isRoute() {
		return rtnl.AddRoute(w.Host, p.route, false)
	}
	return rtnl.AddRule(w.Host, p.rule)
}

func (p prohibition) remove(w *kernel.World) error {
	if p.isRoute() {
		return rtnl.DelRoute(w.Host, p.route)
	}
	return rtnl.DelRule(w.Host, p.rule)
}

// String is in the words of ip(8).
func (p prohibition) String() string {
	if p.isRoute() {
		return fmt.Sprintf("route prohibit %v table %d", p.route.Dst, p.route.Table)
	}
	mark, action := "", "prohibit"
	if p.rule.Mask != 0 {
		mark = fmt.Sprintf("%#x/%#x", p.rule.Mark, p.rule.Mask)
	}
	if p.rule.Action == rtnl.Lookup {
		action = fmt.Sprintf("lookup %d", p.rule.Table)
	}
	return resource.Line(fmt.Sprintf("rule %d:", p.rule.Priority), resource.Opt("to", p.rule.To),
		resource.Opt("fwmark", mark), resource.Opt("iif", p.rule.IIF), action)
}

// prohibitions begin with a rule of IPv4, by which Remove finds them.
type prohibitions []prohibition

// prohibitionsOf are those of a link. What exempts comes before what prohibits.
func prohibitionsOf(tag uint32, link, policy string, subnets []netip.Prefix) (all prohibitions) {
	for _, family := range resource.Families() {
		rule := func(priority int, r rtnl.Rule) {
			r.Family, r.Priority, r.Tag, r.Protocol = family, priority, tag, rtnl.OurProtocol
			r.Action = cmp.Or(r.Action, rtnl.Lookup)
			all = append(all, prohibition{rule: r})
		}
		rule(failClosedFrom, rtnl.Rule{IIF: link, Mask: filter.DecidedMark, Table: failClosedTable})
		for _, s := range filter.OfFamily(subnets, family == rtnl.IPv6) {
			all = append(all, prohibition{route: rtnl.Route{Dst: s, Table: failClosedTable, Type: rtnl.ProhibitRoute,
				Priority: int(tag), Protocol: rtnl.OurProtocol}})
			if policy == Strict {
				rule(failClosedLocal, rtnl.Rule{IIF: "lo", To: s, Table: rtnl.MainTable})
				rule(failClosedInto, rtnl.Rule{To: s, Mask: filter.DecidedMark | filter.StrictMark,
					Action: rtnl.Prohibit})
			}
		}
	}
	return all
}

// standingRules are the rules of a tag; 0: of any.
func standingRules(w *kernel.World, tag uint32, family uint8) (list prohibitions, err error) {
	all, err := rtnl.Rules(w.Host, family)
	for _, r := range all {
		ours := r.Protocol == rtnl.OurProtocol && r.Priority >= failClosedLocal && r.Priority <= failClosedInto
		if !ours || tag != 0 && r.Tag != tag {
			continue
		}
		if r.Action != rtnl.Lookup {
			r.Table = 0 // the kernel says one that it does not go by
		}
		list = append(list, prohibition{rule: r})
	}
	return list, err
}

// standingProhibitions are those of a tag; 0: of any.
func standingProhibitions(w *kernel.World, tag uint32) (list prohibitions, err error) {
	for _, family := range resource.Families() {
		rules, err := standingRules(w, tag, family)
		if err != nil {
			return nil, err
		}
		list = append(list, rules...)
		routes, err := rtnl.Routes(w.Host, rtnl.RouteFilter{Family: family, Table: failClosedTable,
			Protocol: rtnl.OurProtocol})
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if tag == 0 || r.Priority == int(tag) {
				list = append(list, prohibition{route: rtnl.Route{Dst: r.Dst, Table: r.Table, Type: r.Type,
					Priority: r.Priority, Protocol: r.Protocol}})
			}
		}
	}
	return list, nil
}

// without are those of p that q has not.
func (p prohibitions) without(q prohibitions) prohibitions {
	return slices.DeleteFunc(slices.Clone(p), func(r prohibition) bool { return slices.Contains(q, r) })
}

// add adds all, or none. What another call has just added is there.
func (p prohibitions) add(w *kernel.World) error {
	for i, r := range p {
		if err := r.add(w); err != nil && !errors.Is(err, unix.EEXIST) {
			return errors.Join(err, p[:i].remove(w))
		}
	}
	return nil
}

// remove removes all, the first last: by that Remove finds the others.
func (p prohibitions) remove(w *kernel.World) error {
	var errs []error
	for _, r := range slices.Backward(p) {
		errs = append(errs, r.remove(w))
	}
	return errors.Join(errs...)
}

// on is the link, what has to stand, and what stands.
func (c FailClosed) on(w *kernel.World) (link string, want, have prohibitions, err error) {
	on, err := Ingress(c).on(w)
	if err != nil || on.link == "" {
		return "", nil, nil, err
	}
	tag := failClosedTag(on.owner, on.kind)
	if have, err = standingProhibitions(w, tag); err != nil || c.clears() {
		return "", nil, have, err
	}
	var subnets []netip.Prefix // with those of others behind the link
	for _, p := range have {
		if p.isRoute() {
			subnets = append(subnets, p.route.Dst)
		}
	}
	subnets, err = Ingress(c).subnetsBehind(w, on, subnets)
	return on.link, prohibitionsOf(tag, on.link, c.Policy, filter.Masked(subnets)), have, err
}

// Ensure implements plan.Resource.
func (c FailClosed) Ensure(_ context.Context, w *kernel.World) (changed bool, err error) {
	link, want, have, err := c.on(w)
	if err != nil {
		return false, err
	}
	if link != "" {
		changed, err = procsys.Set(w.Host, procsys.Setting{Key: fmt.Sprintf(srcValidMark, link), Value: "1"})
		if err = awaited(w, link, err); err != nil {
			return false, err
		}
	}
	spare, missing := have.without(want), want.without(have)
	if err := missing.add(w); err != nil {
		return false, err
	}
	return changed || len(spare)+len(missing) > 0, spare.remove(w)
}

// Verify implements plan.Resource.
func (c FailClosed) Verify(_ context.Context, w *kernel.World) error {
	link, want, have, err := c.on(w)
	if err != nil {
		return err
	}
	var d resource.Drift
	for _, p := range want.without(have) {
		d.Add(spec.Missing(p.String()))
	}
	for _, p := range have.without(want) {
		d.Add(spec.TooMuch(p.String()))
	}
	if link != "" {
		key := fmt.Sprintf(srcValidMark, link)
		if v, err := procsys.Get(w.Host, key); err == nil {
			d.Want(key, "1", v)
		} else if err = awaited(w, link, err); err != nil {
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

// Remove implements plan.Remover. It needs only the owner. It leaves the rules of the network.
func (c FailClosed) Remove(_ context.Context, w *kernel.World) error {
	return removeProhibitions(w, failClosedTag(c.Owner, filter.KindIngress))
}

func removeProhibitions(w *kernel.World, tag uint32) error {
	if rules, err := standingRules(w, tag, rtnl.IPv4); err != nil || len(rules) == 0 {
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
	for _, p := range all {
		r := p.rule
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
	unused := slices.DeleteFunc(all, func(p prohibition) bool { return used[p.tag()] })
	return errors.Join(err, unused.remove(w))
}
