package resource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// The backends of plugin firewall.
const (
	BackendAuto      = "auto"
	BackendNFT       = "nftables"
	BackendIPTables  = "iptables"
	BackendFirewalld = "firewalld"
)

// A Forward has the host forward what a container's addresses send, the replies, and what is published of them,
// where other programs' rules have a say in that. Our own table drops none of it, and an accept there would not
// lift somebody else's drop; so the accepts are put where they count, and where nobody else has a rule there is
// nothing to do.
type Forward struct {
	Owner   spec.Owner
	Backend string
	Addrs   []netip.Addr
	Link    string // by which the host reaches them; empty where it is not known
	Admin   string // iptables: the administrator's chain
	Zone    string // firewalld
}

func (f Forward) String() string {
	addrs := make([]string, len(f.Addrs))
	for i, a := range f.Addrs {
		addrs[i] = a.String()
	}
	return line("forward", opt("iifname", f.Link), opt("addr", strings.Join(addrs, ",")), opt("by", f.Backend), opt("after", f.Admin), opt("zone", f.Zone))
}

const forwardRecord = "forward"

// forwarded is what is remembered of an attachment, so that DEL looks where ADD wrote, and nowhere else.
type forwarded struct {
	IPTables bool
	Zone     string       `json:",omitempty"`
	Addrs    []netip.Addr `json:",omitempty"` // in that zone
}

// Ensure implements plan.Resource.
func (f Forward) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	if len(f.Addrs) == 0 {
		return false, nil
	}
	way, err := f.way(ctx, w)
	if err != nil {
		return false, err
	}
	var known forwarded
	before, err := w.Memory.Recall(forwardRecord, f.Owner, &known)
	if err != nil {
		return false, err
	}
	defer func() {
		if err != nil && !before { // what stood before a repair stays
			err = errors.Join(err, f.Remove(context.WithoutCancel(ctx), w))
			changed = false
		}
	}()
	if now := (forwarded{IPTables: known.IPTables || len(way.tables(f.Addrs)) > 0, Zone: known.Zone, Addrs: known.Addrs}); way.Firewalld || now.IPTables != known.IPTables {
		if way.Firewalld {
			now.Zone, now.Addrs = f.Zone, f.Addrs
		}
		if err := w.Memory.Remember(forwardRecord, f.Owner, now); err != nil { // before the change: DEL undoes what was killed
			return false, err
		}
	}
	for _, t := range way.tables(f.Addrs) {
		did, err := f.accept(ctx, w, t)
		changed = changed || did
		if err != nil {
			return changed, err
		}
	}
	if way.Firewalld {
		did, err := f.enter(ctx, w)
		changed = changed || did
		if err != nil {
			return changed, err
		}
	}
	if way.Foreign {
		dropped, doubts, err := f.dropped(w, ourTables())
		for _, v := range doubts {
			slog.Warn("whether the container's packets are forwarded could not be told", "why", v.String())
		}
		errs := []error{err}
		for _, v := range dropped {
			errs = append(errs, spec.Errorf(spec.CodeUnavailable, "the container's packets are %v; %s", v, f.advice(v)))
		}
		if err := errors.Join(errs...); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// Verify implements plan.Resource. It decides anew where the accepts belong.
func (f Forward) Verify(ctx context.Context, w *kernel.World) error {
	if len(f.Addrs) == 0 {
		return nil
	}
	way, err := f.decide(ctx, w)
	if err != nil {
		return err
	}
	var d drift
	var lifted []func(kernel.Verdict) (table string) // by what Ensure would put into a table
	for _, t := range way.tables(f.Addrs) {
		rules, first, err := f.missing(ctx, w, t)
		if err != nil {
			return err
		}
		for _, r := range rules {
			d.add(fmt.Errorf("%v: rule %q is missing", t, r))
		}
		if len(rules) > 0 && t.Variant == kernel.IPTNFT {
			lifted = append(lifted, func(v kernel.Verdict) string {
				if first || v.Rule == "" {
					return ip(t.V6) + " filter"
				}
				return ""
			})
		}
	}
	if way.Firewalld {
		err := f.inZone(ctx, w)
		if d.add(err); err != nil {
			lifted = append(lifted, func(kernel.Verdict) string { return "inet firewalld" })
		}
	}
	if way.Foreign {
		d.add(f.notLifted(w, lifted))
	}
	return d.err()
}

// notLifted are the verdicts of others that drop the container's packets, whatever Ensure would make.
func (f Forward) notLifted(w *kernel.World, lifted []func(kernel.Verdict) (table string)) error {
	for skip := ourTables(); ; {
		dropped, _, err := f.dropped(w, skip)
		if err != nil {
			return err
		}
		var d drift
		more := len(skip)
		for _, v := range dropped {
			var by string
			for _, lift := range lifted {
				if t := lift(v); t != "" && strings.HasPrefix(v.Chain.String(), t+" ") {
					by = t
				}
			}
			if by != "" {
				skip = append(skip, by)
				continue
			}
			d.add(Beyond{fmt.Errorf("the container's packets are %v; %s", v, f.advice(v))})
		}
		if len(skip) == more {
			return d.err()
		}
	}
}

// Remove implements plan.Remover. It needs only the owner.
func (f Forward) Remove(ctx context.Context, w *kernel.World) error {
	var known forwarded
	there, err := w.Memory.Recall(forwardRecord, f.Owner, &known)
	if err != nil {
		return err
	}
	me := kernel.OwnerHash(f.Owner)
	var errs []error
	if known.Zone != "" {
		others, err := zoneUsers(w, func(owner [8]byte) bool { return owner != me })
		errs = append(errs, err, leaveZone(ctx, known, others))
	}
	if known.IPTables || !there {
		errs = append(errs, unaccept(ctx, w, kernel.NetworkHash(f.Owner.Network), func(owner [8]byte) bool { return owner != me }))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return w.Memory.Forget(forwardRecord, f.Owner)
}

// Effect implements PacketRule.
func (Forward) Effect() Effect { return Opens }

// ourTables are those that the evaluation of others' rules leaves out.
func ourTables() []string { return []string{inetTable().String(), bridgeTable().String()} }

// dropped are the verdicts of others, but for those in the tables skip, that the container's packets to the outside, or the
// replies to them, do not go through; and what could not be told.
func (f Forward) dropped(w *kernel.World, skip []string) (dropped, doubts []kernel.Verdict, err error) {
	if l, err := w.Host.Link(f.Link); err == nil && l.Kind == "bridge" {
		if l, err = routedBy(w, l, f.Addrs); err != nil {
			return nil, nil, err
		}
		f.Link = l.Name
	}
	said := map[string]bool{} // one rule may drop both ways and both families
	for _, a := range f.Addrs {
		outside := outward(w, a.Is6())
		for _, p := range []kernel.Packet{{In: f.Link, Out: outside, Src: a}, {In: outside, Out: f.Link, Dst: a, Reply: true}} {
			v, err := w.Host.Forwarded(p, skip...)
			place := fmt.Sprint(v.Outcome, v.Chain, v.Jumped, v.Handle)
			switch {
			case err != nil:
				return nil, nil, err
			case said[place]:
			case v.Outcome == kernel.Dropped:
				dropped = append(dropped, v)
			case v.Outcome == kernel.Undecided && v.Chain.Table != "":
				doubts = append(doubts, v)
			}
			said[place] = true
		}
	}
	return dropped, doubts, nil
}

// outward is the link by which the host reaches the world; empty where it does not.
func outward(w *kernel.World, v6 bool) string {
	world := netip.AddrFrom4([4]byte{192, 0, 2, 1})
	if v6 {
		world = netip.MustParseAddr("2001:db8::1")
	}
	r, err := w.Host.RouteTo(world)
	if err != nil || r.Type != kernel.Unicast {
		return ""
	}
	l, err := w.Host.LinkAt(r.Link)
	if err != nil || l.Name == "lo" {
		return ""
	}
	return l.Name
}

// advice is what lifts a verdict.
func (f Forward) advice(v kernel.Verdict) string {
	if f.Backend == BackendNFT && v.Chain.Table == "filter" {
		return `an accept in our own table does not lift that: backend "auto" puts one where it counts`
	}
	link := f.Link
	if link == "" {
		link = "LINK"
	}
	// To the containers only answers and what is published to them: an accept of all would open them to everybody.
	return fmt.Sprintf("an accept of ours does not lift that: allow it there (nft insert rule %[1]v iifname %[2]s accept; nft insert rule %[1]v oifname %[2]s ct state established,related accept; nft insert rule %[1]v oifname %[2]s ct status dnat accept)", v.Chain, link)
}

// SweepForward removes the accepts of the network's attachments that keep does not want.
func SweepForward(ctx context.Context, w *kernel.World, network string, keep func(owner [8]byte) bool) error {
	records, err := forwardRecords(w, network)
	errs := []error{err}
	others, err := zoneUsers(w, func(owner [8]byte) bool {
		_, mine := records[owner]
		return !mine || keep(owner)
	})
	errs = append(errs, err)
	for owner, known := range records {
		if !keep(owner) {
			errs = append(errs, leaveZone(ctx, known, others))
		}
	}
	errs = append(errs, unaccept(ctx, w, kernel.NetworkHash(network), keep))
	return errors.Join(errs...)
}

// zoneUsers tells the addresses that attachments of any network have in a zone, of the owners that keep wants.
func zoneUsers(w *kernel.World, keep func(owner [8]byte) bool) (uses func(netip.Addr) bool, err error) {
	records, err := decoded[forwarded](w.Memory.All(forwardRecord))
	used := map[netip.Addr]bool{}
	for owner, known := range records {
		for _, a := range known.Addrs {
			used[a] = used[a] || keep(owner)
		}
	}
	return func(a netip.Addr) bool { return used[a] }, err
}

// ofIP are the addresses of one family.
func ofIP(addrs []netip.Addr, v6 bool) (out []netip.Addr) {
	for _, a := range addrs {
		if a.Is6() == v6 && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}
