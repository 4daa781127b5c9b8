package addr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A Rule is a policy routing rule. An existing rule of another program with the same effect is accepted, and Remove
// leaves it.
type Rule struct {
	Where    resource.Where
	V6       bool         // counts only where neither From nor To says it
	Priority int          // a lower one is asked first, the main table's is 32766; never zero
	From, To netip.Prefix // invalid: anywhere
	IIF      string       // came in by that link; lo: from the namespace itself
	OIF      string       // is sent by a socket that is bound to that link
	Mark     uint32       // a packet's mark in the bits of Mask
	Mask     uint32       // zero: any mark
	Table    int          // what is looked up; zero: Action says what happens
	Action   Action       // without Table: prohibit or unreachable
}

// An Action is what the kernel does with packets of a Rule without a table, or whose route leads nowhere.
type Action string

// The Actions. They differ in the error that the sender gets; Blackhole sends none.
const (
	Prohibit    Action = "prohibit"
	Unreachable Action = "unreachable"
	Blackhole   Action = "blackhole"
)

func (a Action) RuleAction() uint8 {
	switch a {
	case Prohibit:
		return rtnl.Prohibit
	case Unreachable:
		return rtnl.Unreachable
	case Blackhole:
		return unix.FR_ACT_BLACKHOLE
	}
	return rtnl.Lookup
}

func (a Action) RouteType() uint8 {
	switch a {
	case Prohibit:
		return rtnl.ProhibitRoute
	case Unreachable:
		return unix.RTN_UNREACHABLE
	case Blackhole:
		return unix.RTN_BLACKHOLE
	}
	return rtnl.Unicast
}

func (r Rule) String() string {
	family := resource.Flag("-6", !r.From.IsValid() && !r.To.IsValid() && r.V6)
	return resource.Line("rule", family, "in", r.Where.String(), "priority", strconv.Itoa(r.Priority),
		resource.Flag("from all", !r.From.IsValid()), r.Words())
}

// Words returns what the rule selects and does, in the words of ip(8).
func (r Rule) Words() string {
	mark := ""
	if r.Mask != 0 {
		mark = fmt.Sprintf("fwmark %#x/%#x", r.Mark, r.Mask)
	}
	return resource.Line(resource.Opt("from", brief(r.From)), resource.Opt("to", brief(r.To)),
		resource.Opt("iif", r.IIF), resource.Opt("oif", r.OIF), mark, resource.Opt("lookup", r.Table), string(r.Action))
}

// brief returns a prefix in the notation of ip(8): without the length if it is a single address.
func brief(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// Kernel returns the rule as rtnl.AddRule takes it.
func (r Rule) Kernel() rtnl.Rule {
	k := rtnl.Rule{Family: rtnl.IPv4, Priority: r.Priority, From: r.From, To: r.To, IIF: r.IIF, OIF: r.OIF,
		Mark: r.Mark, Mask: r.Mask, Table: r.Table, Action: r.Action.RuleAction(), Protocol: rtnl.OurProtocol}
	switch p := cmp.Or(r.From, r.To); {
	case p.IsValid() && p.Addr().Is6(), !p.IsValid() && r.V6:
		k.Family = rtnl.IPv6
	}
	return k
}

// find is every rule that does the same as r, at whatever priority and whichever program made it.
func (r Rule) find(w *kernel.World) (ns *kernel.NS, found []rtnl.Rule, err error) {
	if ns, err = r.Where.Namespace(w); err != nil {
		return nil, nil, err
	}
	want := r.Kernel()
	list, err := rtnl.Rules(ns, want.Family)
	if err != nil {
		return nil, nil, err
	}
	for _, have := range list {
		same := have
		same.Priority, same.Protocol = want.Priority, want.Protocol
		if same == want {
			found = append(found, have)
		}
	}
	return ns, found, nil
}

// Ensure implements plan.Resource.
func (r Rule) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	ns, found, err := r.find(w)
	if err != nil {
		return false, err
	}
	for _, have := range found {
		if have.Priority == r.Priority {
			return false, nil
		}
	}
	err = rtnl.AddRule(ns, r.Kernel())
	if errors.Is(err, fs.ErrExist) { // another ADD was faster
		return false, nil
	}
	return err == nil, err
}

// Verify implements plan.Resource.
func (r Rule) Verify(ctx context.Context, w *kernel.World) error {
	_, found, err := r.find(w)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return spec.Missing("")
	}
	var d resource.Drift
	for _, have := range found {
		if have.Priority == r.Priority {
			return nil
		}
		d.Want("priority", r.Priority, have.Priority)
	}
	return d.Err()
}

// Remove implements plan.Remover.
func (r Rule) Remove(ctx context.Context, w *kernel.World) error {
	ns, found, err := r.find(w)
	if err != nil {
		return err
	}
	var errs []error
	for _, have := range found {
		if have.Protocol == rtnl.OurProtocol {
			errs = append(errs, rtnl.DelRule(ns, have))
		}
	}
	return errors.Join(errs...)
}

// RuleFromAddr reports whether r only selects the table for packets from addr and has no other condition.
func RuleFromAddr(r rtnl.Rule, addr netip.Addr) bool {
	return !r.Other && r.From.IsSingleIP() && r.From.Addr() == addr && !r.To.IsValid() && r.IIF == "" && r.OIF == "" &&
		r.Mask == 0 && r.Action == rtnl.Lookup
}
