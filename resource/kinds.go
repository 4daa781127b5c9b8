package resource

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// recorded lists the attachments of a network that have a record of a name in the host's memory. Found is the record.
func recorded[T any](w *kernel.World, record, network string) ([]plan.Tag, error) {
	records, err := decoded[T](w.Memory.Records(record, network))
	tags := make([]plan.Tag, 0, len(records))
	for hash, r := range records {
		tags = append(tags, plan.Tag{Network: network, Hash: hash, Found: r})
	}
	return tags, err
}

// recordOf is what is recorded of a tag's attachment, and whether anything is.
func recordOf[T any](w *kernel.World, record string, t plan.Tag) (r T, known bool, err error) {
	if r, known = t.Found.(T); known {
		return r, true, nil
	}
	raw, err := w.Memory.Raw(record, t.Network, t.Hash)
	if err != nil || raw == nil {
		return r, false, err
	}
	return r, json.Unmarshal(raw, &r) == nil, nil
}

// forEach calls remove for every tag and, of those where it succeeds, forgets the record that Owners found. It goes on past an error.
func forEach(w *kernel.World, record string, tags []plan.Tag, remove func(plan.Tag) error) error {
	var errs []error
	for _, t := range tags {
		err := remove(t)
		if err == nil && record != "" && !t.Known() {
			err = w.Memory.ForgetOf(record, t.Network, t.Hash)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// notOf reports whether a hash is that of none of the tags: what a look over many leaves alone.
func notOf(tags []plan.Tag) (keep func(owner [8]byte) bool) {
	of := map[[8]byte]bool{}
	for _, t := range tags {
		of[t.Hash] = true
	}
	return func(owner [8]byte) bool { return !of[owner] }
}

// Outlives reports whether what a record tells of may still be there after GC has removed what it could: a device that is nowhere yet.
func Outlives(record string) bool { return record == deviceMemory }

// prevMAC is the address that the previous result gives the container's interface of a tag, where there is one.
func prevMAC(t plan.Tag) (mac string, attached bool) {
	if t.Prev == nil {
		return "", false
	}
	for _, f := range t.Prev.Interfaces {
		if f.Name == t.Owner.IfName && f.Sandbox != "" {
			return f.MAC, true
		}
	}
	return "", false
}

// PortKind is the Kind of Port: links of others that were made ports of a bridge. They are taken off it and stay.
type PortKind struct{}

// Name implements plan.Kind.
func (PortKind) Name() string { return "bridge port" }

// Owners implements plan.Kind.
func (PortKind) Owners(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	return recorded[ports](w, portRecord, network)
}

// Remove implements plan.Kind.
func (PortKind) Remove(_ context.Context, w *kernel.World, tags ...plan.Tag) error {
	return forEach(w, "", tags, func(t plan.Tag) error {
		ours, _, err := recordOf[ports](w, portRecord, t)
		errs := []error{err}
		for link, master := range ours {
			errs = append(errs, detach(w, link, master))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		return w.Memory.ForgetOf(portRecord, t.Network, t.Hash) // half a record, of a call that was killed, too
	})
}

// ContainerLink is the Kind of a link that was made in the container, of a type of ip(8): macvlan, ipvlan, vlan, dummy, tun.
type ContainerLink string

// Name implements plan.Kind.
func (k ContainerLink) Name() string { return string(k) + " interface" }

// Owners implements plan.Kind. An ADD that was killed has written no link down, and that the namespace was entered.
func (k ContainerLink) Owners(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	made, err := decoded[Made](w.Memory.Records(MadeRecord, network))
	links, lerr := decoded[madeLink](w.Memory.Records(linkRecord, network))
	var tags []plan.Tag
	for hash, m := range made {
		if l, known := links[hash]; m.Path != "" && (!known || l.Kind == string(k)) {
			tags = append(tags, plan.Tag{Network: network, Hash: hash, Found: m})
		}
	}
	for hash, l := range links {
		if m, known := made[hash]; l.Kind == string(k) && (!known || m.Path == "") {
			tags = append(tags, plan.Tag{Network: network, Hash: hash})
		}
	}
	return tags, errors.Join(err, lerr)
}

// Remove implements plan.Kind.
func (k ContainerLink) Remove(_ context.Context, w *kernel.World, tags ...plan.Tag) error {
	return forEach(w, linkRecord, tags, func(t plan.Tag) error {
		if t.Known() {
			return removeOwn(w, t.Owner, t.Owner.IfName, string(k))
		}
		m, _ := t.Found.(Made)
		if m.Path == "" { // gone with its namespace
			return nil
		}
		ns, err := m.open()
		if ns == nil || err != nil {
			return err
		}
		defer ns.Close()
		made, err := recallLink(w, m.Owner, ns)
		if err != nil {
			return err
		}
		links, err := ownLinks(w, ns, made, t.Hash, func(l *kernel.Link) bool {
			return l.Name == m.Owner.IfName && (derived(l, m.Owner) || l.Group == kernel.LinkGroup(t.Network))
		}, string(k))
		return errors.Join(err, deleteAll(ns, links))
	})
}

// TransientBridgeKind is the Kind of TransientBridge.
type TransientBridgeKind struct{}

// Name implements plan.Kind.
func (TransientBridgeKind) Name() string { return "bridge that goes with its last port" }

// Owners implements plan.Kind.
func (TransientBridgeKind) Owners(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	return recorded[string](w, transientRecord, network)
}

// Remove implements plan.Kind. A bridge that others use stays.
func (TransientBridgeKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	return forEach(w, "", tags, func(t plan.Tag) error {
		name, known, err := recordOf[string](w, transientRecord, t)
		if err != nil || !known {
			return err
		}
		if err := (TransientBridge{Bridge: Bridge{Name: name}, Network: t.Network}).Remove(ctx, w); err != nil {
			return err
		}
		return w.Memory.ForgetOf(transientRecord, t.Network, t.Hash)
	})
}

// Tidy implements plan.Tidier: the bridges that the network has marked, and nobody uses any more.
func (TransientBridgeKind) Tidy(ctx context.Context, w *kernel.World, network string, _ bool) error {
	links, err := w.Host.Links()
	errs := []error{err}
	for _, l := range links {
		if _, owner, _, ok := kernel.ParseTag(l.Alias); l.Kind == "bridge" && ok && owner == kernel.OwnerHash(networkOwner(network, l.Name)) {
			errs = append(errs, TransientBridge{Bridge: Bridge{Name: l.Name}, Network: network}.Remove(ctx, w))
		}
	}
	return errors.Join(errs...)
}

// LimitKind is the Kind of Qdisc and Redirect: limits on a link that may outlive the attachment.
type LimitKind struct{}

// Name implements plan.Kind.
func (LimitKind) Name() string { return "bandwidth limit" }

// Owners implements plan.Kind.
func (LimitKind) Owners(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	sent, err := recorded[shaped](w, qdiscRecord, network)
	received, rerr := recorded[shaped](w, redirectRecord, network)
	return append(sent, received...), errors.Join(err, rerr)
}

// Remove implements plan.Kind. DEL may have no result, so it looks on both ends of the container's link.
func (LimitKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	var errs []error
	for _, t := range tags {
		if o := t.Owner; t.Known() {
			for _, r := range []plan.Remover{Redirect{Owner: o, Link: o.IfName}, Qdisc{Owner: o, Link: o.IfName}, Redirect{Owner: o, Where: Host}, Qdisc{Owner: o, Where: Host}} {
				errs = append(errs, lives(r.Remove(ctx, w)))
			}
			continue
		}
		for record, drop := range map[string]func(*kernel.NS, int) error{
			qdiscRecord: dropQdisc, redirectRecord: func(ns *kernel.NS, link int) error { return dropRedirect(ns, link, 0) },
		} {
			errs = append(errs, forEach(w, record, []plan.Tag{{Network: t.Network, Hash: t.Hash}}, func(t plan.Tag) error {
				links, _, err := recordOf[shaped](w, record, t)
				return errors.Join(err, links.drop(w, drop))
			}))
		}
	}
	return errors.Join(errs...)
}

// lives is err, but for a namespace that is gone: nothing in it is left to remove.
func lives(err error) error {
	if errors.Is(err, kernel.ErrNoNamespace) {
		return nil
	}
	return err
}

// VRFKind is the Kind of VRF. Name is that of the configuration: what the reference's plugin made is found by it.
type VRFKind struct{ VRF string }

// Name implements plan.Kind.
func (VRFKind) Name() string { return "VRF" }

// Owners implements plan.Kind.
func (VRFKind) Owners(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	return recorded[member](w, vrfRecord, network)
}

// Remove implements plan.Kind.
func (k VRFKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	return forEach(w, vrfRecord, tags, func(t plan.Tag) error {
		if m, found := t.Found.(member); found {
			return within(ctx, m.Path, m.NS, func(ns *kernel.NS) error { return m.leave(ctx, ns, true) })
		}
		return VRF{Owner: t.Owner, Name: k.VRF}.Remove(ctx, w)
	})
}

// SourceRoutingKind is the Kind of SourceRouting. Table is that of the configuration: the rules that the reference's plugin made are
// found by it, and by the addresses of the result.
type SourceRoutingKind struct{ Table int }

// Name implements plan.Kind.
func (SourceRoutingKind) Name() string { return "source routing" }

// Owners implements plan.Kind.
func (SourceRoutingKind) Owners(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	return recorded[sources](w, sourceRecord, network)
}

// Remove implements plan.Kind.
func (k SourceRoutingKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	return forEach(w, sourceRecord, tags, func(t plan.Tag) error {
		if rec, found := t.Found.(sources); found {
			return rec.sweep(ctx)
		}
		s := SourceRouting{Owner: t.Owner, Table: k.Table}
		if t.Prev != nil {
			for _, ip := range t.Prev.IPs {
				s.Sources = append(s.Sources, Source{Prefix: ip.Address, Via: ip.Gateway})
			}
		}
		return s.Remove(ctx, w)
	})
}

// TuningKind is the Kind of Tuning. DataDir is that of the configuration: what the reference's plugin changed is found there.
type TuningKind struct{ DataDir string }

// Name implements plan.Kind.
func (TuningKind) Name() string { return "tuning" }

// Owners implements plan.Kind.
func (TuningKind) Owners(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	return recorded[tuned](w, tuningRecord, network)
}

// Remove implements plan.Kind. In GC what was tuned went with its container.
func (k TuningKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	return forEach(w, tuningRecord, tags, func(t plan.Tag) error {
		if r, found := t.Found.(tuned); found {
			return removeBackup(r.File)
		}
		mac, _ := prevMAC(t)
		return Tuning{Owner: t.Owner, Link: t.Owner.IfName, DataDir: k.DataDir, Seen: mac}.Remove(ctx, w)
	})
}

// DeviceKind is the Kind of HostDevice and UserspaceDevice: devices of the host, which go back to it. Ways are those by which
// the configuration says which device: what the reference's plugin moved is found by them.
type DeviceKind struct{ Ways []Device }

// Name implements plan.Kind.
func (DeviceKind) Name() string { return "device of the host" }

// Owners implements plan.Kind.
func (DeviceKind) Owners(_ context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
	records, err := deviceRecords(w)
	for _, r := range records {
		if r.Owner.Network == network {
			tags = append(tags, plan.TagOf(r.Owner))
		}
	}
	return tags, err
}

// Remove implements plan.Kind. What is nowhere yet stays recorded.
func (k DeviceKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	return forEach(w, "", tags, func(t plan.Tag) error {
		h := HostDevice{Owner: t.Owner, Name: t.Owner.IfName}
		if len(k.Ways) > 0 {
			h.Device, h.Also = k.Ways[0], k.Ways[1:]
		}
		_, h.Attached = prevMAC(t)
		return h.Remove(ctx, w)
	})
}

// LoopbackKind is lo in the container, which DEL sets down.
type LoopbackKind struct{}

// Name implements plan.Kind.
func (LoopbackKind) Name() string { return "lo that is up" }

// Owners implements plan.Kind: lo goes with its namespace.
func (LoopbackKind) Owners(context.Context, *kernel.World, string) ([]plan.Tag, error) {
	return nil, nil
}

// Remove implements plan.Kind.
func (LoopbackKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	return forEach(w, "", tags, func(plan.Tag) error { return Up{Link: "lo"}.Remove(ctx, w) })
}

// ForwardKind is the Kind of Forward.
type ForwardKind struct{}

// Name implements plan.Kind.
func (ForwardKind) Name() string { return "accept of forwarded packets" }

// Owners implements plan.Kind: records, and the comments of the accepts in iptables.
func (ForwardKind) Owners(ctx context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	tags, err := recorded[forwarded](w, forwardRecord, network)
	accepted, aerr := accepted(ctx, w, network)
	return append(tags, accepted...), errors.Join(err, aerr)
}

// Remove implements plan.Kind.
func (ForwardKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	if len(tags) == 1 && tags[0].Known() {
		return Forward{Owner: tags[0].Owner}.Remove(ctx, w)
	}
	err := SweepForward(ctx, w, tags[0].Network, notOf(tags))
	if err != nil {
		return err
	}
	return forEach(w, forwardRecord, tags, func(plan.Tag) error { return nil })
}

// PolicyKind is the Kind of Ingress and IPTIngress on links that attachments share.
type PolicyKind struct{}

// Name implements plan.Kind.
func (PolicyKind) Name() string { return "policy" }

// Owners implements plan.Kind.
func (PolicyKind) Owners(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	nft, err := recorded[string](w, policedRecord, network)
	ipt, ierr := recorded[string](w, iptPolicedRecord, network)
	return append(nft, ipt...), errors.Join(err, ierr)
}

// Remove implements plan.Kind. The network's policy on a link goes with the last attachment that has one.
func (PolicyKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	if len(tags) == 1 && tags[0].Known() {
		return Policed{Owner: tags[0].Owner}.Remove(ctx, w)
	}
	keep := notOf(tags)
	if err := errors.Join(sweepPolicies(ctx, w, tags[0].Network, keep), sweepPoliced(ctx, w, tags[0].Network, keep)); err != nil {
		return err
	}
	return errors.Join(forEach(w, policedRecord, tags, func(plan.Tag) error { return nil }),
		forEach(w, iptPolicedRecord, tags, func(plan.Tag) error { return nil }))
}

// Tidy implements plan.Tidier.
func (PolicyKind) Tidy(ctx context.Context, w *kernel.World, network string, used bool) error {
	return errors.Join(SweepStages(ctx, w), SweepNetwork(ctx, w, network, used))
}

// FailClosedKind is the Kind of FailClosed on links of attachments' own.
type FailClosedKind struct{}

// Name implements plan.Kind.
func (FailClosedKind) Name() string { return "routing rules of a policy" }

// Owners implements plan.Kind. A rule does not say of which network it is; PolicyKind tidies up those for links that are gone.
func (FailClosedKind) Owners(context.Context, *kernel.World, string) ([]plan.Tag, error) {
	return nil, nil
}

// Remove implements plan.Kind.
func (FailClosedKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	return forEach(w, "", tags, func(t plan.Tag) error { return FailClosed{Owner: t.Owner}.Remove(ctx, w) })
}

// PublishIPTablesKind is the Kind of PublishIPTables.
type PublishIPTablesKind struct{}

// Name implements plan.Kind.
func (PublishIPTablesKind) Name() string { return "published ports in iptables" }

// Owners implements plan.Kind.
func (PublishIPTablesKind) Owners(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	return iptOwners(w, iptPublished, network)
}

// Remove implements plan.Kind.
func (PublishIPTablesKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	return forEach(w, "", tags, func(t plan.Tag) error { return PublishIPTables{Publish: Publish{Owner: t.Owner}}.Remove(ctx, w) })
}

// MasqueradeIPTablesKind is the Kind of MasqueradeIPTables.
type MasqueradeIPTablesKind struct{}

// Name implements plan.Kind.
func (MasqueradeIPTablesKind) Name() string { return "masquerade in iptables" }

// Owners implements plan.Kind.
func (MasqueradeIPTablesKind) Owners(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	return iptOwners(w, iptMasquerade, network)
}

// Remove implements plan.Kind.
func (MasqueradeIPTablesKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	return forEach(w, "", tags, func(t plan.Tag) error { return MasqueradeIPTables{Masquerade{Owner: t.Owner}}.Remove(ctx, w) })
}

// iptOwners are the attachments of a network that have rules in iptables by our records, which name the whole owner.
func iptOwners(w *kernel.World, record, network string) (tags []plan.Tag, err error) {
	records, err := iptRecords(w, record, network)
	for hash, r := range records {
		if o := (spec.Owner{Network: network, ContainerID: r.ContainerID, IfName: r.IfName}); kernel.OwnerHash(o) == hash {
			tags = append(tags, plan.TagOf(o))
		}
	}
	return tags, err
}
