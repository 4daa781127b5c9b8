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

// ownersIn finds who has a record of a name.
func ownersIn[T any](record string) ownersOf {
	return func(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
		return recorded[T](w, record, network)
	}
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

// forEach calls do for every tag, and goes on past an error.
func forEach(tags []plan.Tag, do func(plan.Tag) error) error {
	var errs []error
	for _, t := range tags {
		errs = append(errs, do(t))
	}
	return errors.Join(errs...)
}

// forgetAll forgets the records of tags.
func forgetAll(w *kernel.World, tags []plan.Tag, records ...string) error {
	return forEach(tags, func(t plan.Tag) error {
		var errs []error
		for _, record := range records {
			errs = append(errs, w.Memory.ForgetOf(record, t.Network, t.Hash))
		}
		return errors.Join(errs...)
	})
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

// kindFuncs are what a Kind does. A nil one does nothing.
type kindFuncs struct {
	// owners tells GC whose it is.
	owners ownersOf
	remove func(ctx context.Context, w *kernel.World, t plan.Tag) error
	// found removes at once what owners found. Where it is nil, remove is called for each.
	found func(ctx context.Context, w *kernel.World, tags []plan.Tag) error
	// tidy is that of plan.Tidier.
	tidy func(ctx context.Context, w *kernel.World, network string, used bool) error
}

// newKind is the Kind of that name.
func newKind(name string, do kindFuncs) plan.Kind { return funcKind{name, do} }

type funcKind struct {
	name string
	kindFuncs
}

// Name implements plan.Kind.
func (k funcKind) Name() string { return k.name }

// Owners implements plan.Kind.
func (k funcKind) Owners(ctx context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	if k.owners == nil {
		return nil, nil
	}
	return k.owners(ctx, w, network)
}

// Remove implements plan.Kind.
func (k funcKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	switch {
	case k.remove == nil:
		return nil
	case k.found != nil && len(tags) > 0 && !tags[0].Known():
		return k.found(ctx, w, tags)
	}
	return forEach(tags, func(t plan.Tag) error { return k.remove(ctx, w, t) })
}

// Tidy implements plan.Tidier.
func (k funcKind) Tidy(ctx context.Context, w *kernel.World, network string, used bool) error {
	if k.tidy == nil {
		return nil
	}
	return k.tidy(ctx, w, network, used)
}

// recordKind is a kind whose owners a record names. DEL removes by the owner; GC by what is recorded, which it forgets.
func recordKind[T any](
	name, record string,
	del func(context.Context, *kernel.World, plan.Tag) error,
	gc func(context.Context, *kernel.World, plan.Tag, T) error,
) plan.Kind {
	return newKind(name, recordFuncs(record, del, gc))
}

// recordFuncs are those of a recordKind.
func recordFuncs[T any](
	record string,
	del func(context.Context, *kernel.World, plan.Tag) error,
	gc func(context.Context, *kernel.World, plan.Tag, T) error,
) kindFuncs {
	return kindFuncs{
		owners: ownersIn[T](record),
		remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			r, found := t.Found.(T)
			if !found {
				return del(ctx, w, t)
			}
			if err := gc(ctx, w, t, r); err != nil {
				return err
			}
			return w.Memory.ForgetOf(record, t.Network, t.Hash)
		},
	}
}

// ownersOf finds who has something of a kind in a network.
type ownersOf func(ctx context.Context, w *kernel.World, network string) ([]plan.Tag, error)

// byResource is a kind whose resource removes all of it by the owner alone. Owners, if any, name the whole owner.
func byResource(name string, owners ownersOf, of func(spec.Owner) plan.Remover) plan.Kind {
	return newKind(name, kindFuncs{owners: owners, remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
		return of(t.Owner).Remove(ctx, w)
	}})
}

// PortKind is the Kind of Port: links of others that were made ports of a bridge. They are taken off it and stay.
func PortKind() plan.Kind {
	detached := func(_ context.Context, w *kernel.World, _ plan.Tag, ours ports) error {
		var errs []error
		for link, master := range ours {
			errs = append(errs, detach(w, link, master))
		}
		return errors.Join(errs...)
	}
	return recordKind("bridge port", portRecord, func(ctx context.Context, w *kernel.World, t plan.Tag) error {
		ours, _, err := recordOf[ports](w, portRecord, t)
		if err = errors.Join(err, detached(ctx, w, t, ours)); err != nil {
			return err
		}
		return w.Memory.Forget(portRecord, t.Owner) // half a record, of a call that was killed, too
	}, detached)
}

// TransientBridgeKind is the Kind of TransientBridge. A bridge that others use stays; GC also removes those that the network has marked.
func TransientBridgeKind() plan.Kind {
	remove := func(ctx context.Context, w *kernel.World, t plan.Tag, name string) error {
		return TransientBridge{Bridge: Bridge{Name: name}, Network: t.Network}.Remove(ctx, w)
	}
	do := recordFuncs(transientRecord, func(
		ctx context.Context, w *kernel.World, t plan.Tag,
	) error {
		name, known, err := recordOf[string](w, transientRecord, t)
		if err != nil || !known {
			return err
		}
		if err := remove(ctx, w, t, name); err != nil {
			return err
		}
		return w.Memory.Forget(transientRecord, t.Owner)
	}, remove)
	do.tidy = tidyBridges
	return newKind("bridge that goes with its last port", do)
}

func tidyBridges(ctx context.Context, w *kernel.World, network string, _ bool) error {
	links, err := w.Host.Links()
	errs := []error{err}
	for _, l := range links {
		_, owner, _, ok := kernel.ParseTag(l.Alias)
		if l.Kind == "bridge" && ok && owner == kernel.OwnerHash(networkOwner(network, l.Name)) {
			errs = append(errs, TransientBridge{Bridge: Bridge{Name: l.Name}, Network: network}.Remove(ctx, w))
		}
	}
	return errors.Join(errs...)
}

// LimitKind is the Kind of Qdisc and Redirect: limits on a link that may outlive the attachment. DEL may have no result, so it looks on
// both ends of the container's link.
func LimitKind() plan.Kind {
	drops := map[string]func(*kernel.NS, int) error{
		qdiscRecord: dropQdisc, redirectRecord: func(ns *kernel.NS, link int) error { return dropRedirect(ns, link, 0) },
	}
	return newKind("bandwidth limit", kindFuncs{
		owners: func(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
			sent, err := recorded[shaped](w, qdiscRecord, network)
			received, rerr := recorded[shaped](w, redirectRecord, network)
			return append(sent, received...), errors.Join(err, rerr)
		},
		remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			var errs []error
			if o := t.Owner; t.Known() {
				if other, err := unlimited(w, o); other || err != nil {
					return err
				}
				for _, r := range []plan.Remover{
					Redirect{Owner: o, Link: o.IfName}, Qdisc{Owner: o, Link: o.IfName},
					Redirect{Owner: o, Where: Host}, Qdisc{Owner: o, Where: Host},
				} {
					errs = append(errs, lives(r.Remove(ctx, w)))
				}
				return errors.Join(errs...)
			}
			t.Found = nil // of one of the two records
			for record, drop := range drops {
				links, _, err := recordOf[shaped](w, record, t)
				if err = errors.Join(err, links.drop(w, drop)); err == nil {
					err = w.Memory.ForgetOf(record, t.Network, t.Hash)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		}})
}

// unlimited reports whether the container's interface is another attachment's, and no limit is recorded of the owner.
func unlimited(w *kernel.World, o spec.Owner) (bool, error) {
	for _, record := range []string{qdiscRecord, redirectRecord} {
		if known, err := w.Memory.Recall(record, o, &shaped{}); known || err != nil {
			return false, err
		}
	}
	return anothers(w, o)
}

// lives is err, but for a namespace that is gone: nothing in it is left to remove.
func lives(err error) error {
	if errors.Is(err, kernel.ErrNoNamespace) {
		return nil
	}
	return err
}

// VRFKind is the Kind of VRF. Name is that of the configuration: what the reference's plugin made is found by it.
func VRFKind(name string) plan.Kind {
	return recordKind("VRF", vrfRecord, func(ctx context.Context, w *kernel.World, t plan.Tag) error {
		return VRF{Owner: t.Owner, Name: name}.Remove(ctx, w)
	}, func(ctx context.Context, _ *kernel.World, _ plan.Tag, m member) error {
		return within(ctx, m.Path, m.NS, func(ns *kernel.NS) error { return m.leave(ctx, ns, true) })
	})
}

// SourceRoutingKind is the Kind of SourceRouting. Table is that of the configuration: the rules that the reference's plugin made are
// found by it, and by the addresses of the result.
func SourceRoutingKind(table int) plan.Kind {
	return recordKind("source routing", sourceRecord, func(ctx context.Context, w *kernel.World, t plan.Tag) error {
		s := SourceRouting{Owner: t.Owner, Table: table}
		if t.Prev != nil {
			for _, ip := range t.Prev.IPs {
				s.Sources = append(s.Sources, Source{Prefix: ip.Address, Via: ip.Gateway})
			}
		}
		return s.Remove(ctx, w)
	}, func(ctx context.Context, _ *kernel.World, _ plan.Tag, rec sources) error { return rec.sweep(ctx) })
}

// TuningKind is the Kind of Tuning. DataDir is that of the configuration: what the reference's plugin changed is found there. In GC what
// was tuned went with its container.
func TuningKind(dataDir string) plan.Kind {
	return recordKind("tuning", tuningRecord, func(ctx context.Context, w *kernel.World, t plan.Tag) error {
		mac, _ := prevMAC(t)
		return Tuning{Owner: t.Owner, Link: t.Owner.IfName, DataDir: dataDir, Seen: mac}.Remove(ctx, w)
	}, func(_ context.Context, _ *kernel.World, _ plan.Tag, r tuned) error { return removeBackup(r.File) })
}

// DeviceKind is the Kind of HostDevice and UserspaceDevice: devices of the host, which go back to it. Ways are those by which
// the configuration says which device: what the reference's plugin moved is found by them. What is nowhere yet stays recorded.
func DeviceKind(ways []Device) plan.Kind {
	return newKind("device of the host", kindFuncs{
		owners: func(_ context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
			records, err := deviceRecords(w)
			for _, r := range records {
				if r.Owner.Network == network {
					tags = append(tags, plan.TagOf(r.Owner))
				}
			}
			return tags, err
		},
		remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			h := HostDevice{Owner: t.Owner, Name: t.Owner.IfName}
			if len(ways) > 0 {
				h.Device, h.Also = ways[0], ways[1:]
			}
			_, h.Attached = prevMAC(t)
			return h.Remove(ctx, w)
		}})
}

// LoopbackKind is lo in the container, which DEL sets down. It goes with its namespace.
func LoopbackKind() plan.Kind {
	return byResource("lo that is up", nil, func(spec.Owner) plan.Remover { return Up{Link: "lo"} })
}

// FailClosedKind is the Kind of FailClosed on links of attachments' own. A rule does not say of which network it is; PolicyKind tidies up
// those for links that are gone.
func FailClosedKind() plan.Kind {
	return byResource("routing rules of a policy", nil, func(o spec.Owner) plan.Remover { return FailClosed{Owner: o} })
}

// PublishIPTablesKind is the Kind of PublishIPTables.
func PublishIPTablesKind() plan.Kind {
	return byResource("published ports in iptables", iptOwners(iptPublished), func(o spec.Owner) plan.Remover {
		return PublishIPTables{Publish: Publish{Owner: o}}
	})
}

// MasqueradeIPTablesKind is the Kind of MasqueradeIPTables.
func MasqueradeIPTablesKind() plan.Kind {
	return byResource("masquerade in iptables", iptOwners(iptMasquerade), func(o spec.Owner) plan.Remover {
		return MasqueradeIPTables{Masquerade{Owner: o}}
	})
}

// iptOwners lists the attachments of a network that have rules in iptables by our records, which name the whole owner.
func iptOwners(record string) ownersOf {
	return func(_ context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
		records, err := iptRecords(w, record, network)
		for hash, r := range records {
			if o := (spec.Owner{Network: network, ContainerID: r.ContainerID, IfName: r.IfName}); kernel.OwnerHash(o) == hash {
				tags = append(tags, plan.TagOf(o))
			}
		}
		return tags, err
	}
}
