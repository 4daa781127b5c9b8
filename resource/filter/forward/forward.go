package forward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/foreign"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// The backends of the plugin firewall.
const (
	Auto      = "auto"
	NFT       = "nftables"
	IPTables  = "iptables"
	Firewalld = "firewalld"
)

// A Forward makes the host forward packets from a container's addresses, the replies, and packets to published ports.
// It matters only where rules of other programs drop packets: an accept in our table would not override a drop
// elsewhere. So the accepts are added where they have an effect. If no other program has a rule, there is nothing to
// do.
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
	return resource.Line("forward", resource.Opt("iifname", f.Link), resource.Opt("addr", strings.Join(addrs, ",")),
		resource.Opt("by", f.Backend),
		resource.Opt("after", f.Admin), resource.Opt("zone", f.Zone))
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
	backend, err := f.backend(ctx, w)
	if err != nil {
		return false, err
	}
	var known forwarded
	before, err := w.Store.Get(forwardRecord, f.Owner, &known)
	if err != nil {
		return false, err
	}
	defer func() {
		if err != nil && !before { // what stood before a repair stays
			err = errors.Join(err, f.Remove(context.WithoutCancel(ctx), w))
			changed = false
		}
	}()
	tables := backend.tables(w, f.Addrs...)
	now := known
	now.IPTables = known.IPTables || len(tables) > 0
	if backend.Firewalld || now.IPTables != known.IPTables {
		if backend.Firewalld {
			now.Zone, now.Addrs = f.Zone, f.Addrs
		}
		// Before the change: DEL undoes what was killed.
		if err := w.Store.Put(forwardRecord, f.Owner, now); err != nil {
			return false, err
		}
	}
	for _, t := range tables {
		did, err := f.accept(ctx, w, t)
		changed = changed || did
		if err != nil {
			return changed, err
		}
	}
	if backend.Firewalld {
		did, err := f.enter(ctx, w)
		changed = changed || did
		if err != nil {
			return changed, err
		}
	}
	f.warn(w, backend)
	return changed, nil
}

// Verify implements plan.Resource. It determines again where the accepts belong.
func (f Forward) Verify(ctx context.Context, w *kernel.World) error {
	if len(f.Addrs) == 0 {
		return nil
	}
	backend, err := f.decide(ctx, w)
	if err != nil {
		return err
	}
	var d resource.Drift
	for _, t := range backend.tables(w, f.Addrs...) {
		have, err := t.Save(ctx)
		if err != nil {
			return err
		}
		warnOfDropBefore(t, have["FORWARD"])
		shared, own := f.accepts(t.V6)
		for _, r := range iptables.Lacking(have, slices.Concat(shared, own)) {
			d.Add(spec.Missing(fmt.Sprintf("%v: rule %q", t, r)))
		}
	}
	if backend.Firewalld {
		d.Add(f.inZone(ctx, w))
	}
	f.warn(w, backend)
	return d.Err()
}

// Remove implements plan.Remover. It needs only the owner.
func (f Forward) Remove(ctx context.Context, w *kernel.World) error {
	var known forwarded
	there, err := w.Store.Get(forwardRecord, f.Owner, &known)
	if err != nil {
		return err
	}
	me := identity.OwnerHash(f.Owner)
	notMe := func(owner [8]byte) bool { return owner != me }
	var errs []error
	if known.Zone != "" {
		others, err := zoneUsers(w, notMe)
		errs = append(errs, err, leaveZone(ctx, known, others))
	}
	if known.IPTables || !there {
		errs = append(errs, unaccept(ctx, w, identity.NetworkHash(f.Owner.Network), notMe))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return w.Store.Delete(forwardRecord, f.Owner)
}

// Traits implements resource.Describer.
func (Forward) Traits() resource.Traits { return resource.Traits{Effect: resource.Opens} }

// warn names the chains of others that may drop the container's packets and that no accept of ours lifts. They are no
// error, nor drift: whether they do drop them takes more than a look to know.
func (f Forward) warn(w *kernel.World, b forwardBackend) {
	drops, err := foreign.MayDrop(w.Host, b.Unlifted, f.Link)
	if err != nil {
		slog.Warn("whether another program's chain drops the container's packets could not be looked up", "error", err)
	}
	for _, d := range drops {
		if family := d.Chain.Family; family == unix.NFPROTO_INET ||
			len(OfIP(f.Addrs, family == unix.NFPROTO_IPV6)) > 0 {
			slog.Warn(foreign.Doubtful+", which no accept of ours lifts",
				"chain", d.String(), "fix", f.advice(d))
		}
	}
}

// advice is what lifts a drop.
func (f Forward) advice(d foreign.Drop) string {
	if d.Chain.Table == "filter" && d.Chain.Name == "FORWARD" {
		if f.Backend != Auto {
			return `backend "auto" puts an accept there`
		}
		return "install the program of iptables that made it, and backend \"auto\" puts an accept there"
	}
	return foreign.Fix(d.Chain.String(), cmp.Or(f.Link, "LINK"))
}

// Sweep removes the accepts of the network's attachments for which keep returns false.
func Sweep(ctx context.Context, w *kernel.World, network string, keep func(owner [8]byte) bool) error {
	records, err := resource.DecodeRecords[forwarded](w.Store.Records(forwardRecord, network))
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
	errs = append(errs, unaccept(ctx, w, identity.NetworkHash(network), keep))
	return errors.Join(errs...)
}

// zoneUsers tells the addresses that attachments of any network have in a zone, of the owners that keep wants.
func zoneUsers(w *kernel.World, keep func(owner [8]byte) bool) (uses func(netip.Addr) bool, err error) {
	records, err := resource.DecodeRecords[forwarded](w.Store.All(forwardRecord))
	used := map[netip.Addr]bool{}
	for owner, known := range records {
		for _, a := range known.Addrs {
			used[a] = used[a] || keep(owner)
		}
	}
	return func(a netip.Addr) bool { return used[a] }, err
}

// OfIP returns the addresses of one family.
func OfIP(addrs []netip.Addr, v6 bool) (out []netip.Addr) {
	for _, a := range addrs {
		if a.Is6() == v6 && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}
