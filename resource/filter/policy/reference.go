package policy

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// policyRecord is the name of the record that an attachment needs its network's policy on a bridge. The policy is
// removed with the last such record, because later attachments may want no policy.
//
// No lock separates the last attachment's DEL from the next one's ADD. An ADD first writes its record and then reads
// the packet filter. A DEL first adds an entry to owners that such an ADD has to correct (see setLeaving), and then
// looks for records. So either DEL sees the record of ADD, or the kernel refuses DEL's transaction because ADD has
// changed the table.
const policyRecord = "policed"

// leaving is appended to the link's name in the record of an attachment whose DEL has begun. If several attachments
// leave at once, each sees that no other needs the policy. The name of a link contains no space.
const leaving = " leaving"

// remember records that o has a policy on a link, and reports whether that is news.
func remember(w *kernel.World, record string, o spec.Owner, link string) (news bool, err error) {
	was := ""
	if _, err := w.Store.Get(record, o, &was); err != nil || was == link {
		return false, err
	}
	return true, w.Store.Put(record, o, link)
}

// BridgeOf returns the link for which an attachment has recorded a policy. It returns "" if the attachment shares no
// such link.
func BridgeOf(w *kernel.World, o spec.Owner) (link string, err error) {
	if there, err := w.Store.Get(policyRecord, o, &link); err != nil || there {
		return strings.TrimSuffix(link, leaving), err
	}
	_, err = w.Store.Get(iptPolicyRecord, o, &link)
	return link, err
}

// removeReference takes an attachment's share in the policies of its network's bridge. It needs only the owner. With
// the last attachment, it removes the network's policy.
func removeReference(ctx context.Context, w *kernel.World, o spec.Owner) error {
	return errors.Join(removeRecord(ctx, w, o), releasePolicy(ctx, w, o))
}

func removeRecord(ctx context.Context, w *kernel.World, o spec.Owner) error {
	was := ""
	if there, err := w.Store.Get(policyRecord, o, &was); err != nil || !there {
		return err
	}
	bridge := strings.TrimSuffix(was, leaving)
	if was == bridge {
		err := w.Store.Put(policyRecord, o, bridge+leaving)
		// DEL makes room; GC removes what a kill would leave now
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			err = w.Store.Delete(policyRecord, o)
		}
		if err != nil {
			return err
		}
	}
	if err := ReleaseBridge(ctx, w, o.Network, bridge, func([8]byte) bool { return true }); err != nil {
		return err
	}
	return w.Store.Delete(policyRecord, o)
}

// sweepReferences takes the network's policy off bridges that no attachment of those that keep wants needs it
// for.
func sweepReferences(ctx context.Context, w *kernel.World, network string, keep func(owner [8]byte) bool) error {
	records, err := resource.DecodeRecords[string](w.Store.Records(policyRecord, network))
	used := map[string]bool{}
	for owner, link := range records {
		bridge, left := strings.CutSuffix(link, leaving)
		used[bridge] = used[bridge] || !left && keep(owner)
	}
	errs := []error{err}
	for bridge, is := range used {
		if !is {
			errs = append(errs, ReleaseBridge(ctx, w, network, bridge, keep))
		}
	}
	return errors.Join(errs...)
}

// ReleaseBridge removes a network's policy from a bridge, unless an attachment for which keep returns true needs it
// there.
func ReleaseBridge(ctx context.Context, w *kernel.World, network, bridge string,
	keep func(owner [8]byte) bool) error {
	stays := func() (bool, error) { // one that is found is enough, of thousands
		return w.Store.Find(policyRecord, network, func(owner [8]byte, b json.RawMessage) bool {
			var link string
			return json.Unmarshal(b, &link) == nil && link == bridge && keep(owner)
		})
	}
	if is, err := stays(); is || err != nil {
		return err
	}
	o := NetworkOwner(network, bridge)
	closed, err := standingProhibitions(w, failClosedTag(o, filter.KindNetwork))
	if err != nil {
		return err
	}
	err = filter.Transact(ctx, w, filter.InetSets(), func(f filter.Tx) error { return setLeaving(f, o, true) })
	if filter.Unavailable(err) {
		return closed.remove(w)
	}
	// What prohibits the way goes before the marks that lift it.
	if err = errors.Join(err, closed.remove(w)); err != nil {
		return err
	}
	is := false
	err = filter.Transact(ctx, w, filter.InetSets(), func(f filter.Tx) (err error) {
		if is, err = stays(); is || err != nil {
			return err
		}
		return errors.Join(f.Drop(identity.OwnerHash(o), filter.KindSubnet), transferPolicy(f, o, bridge))
	})
	if is { // an attachment came
		err = errors.Join(err, closed.add(w), filter.Transact(ctx, w, filter.InetSets(),
			func(f filter.Tx) error { return setLeaving(f, o, false) }))
	}
	return err
}

// setLeaving adds an entry that names no element to those of a network, or removes it. An ADD that reads it records its
// network's elements anew, so that what others read before that counts no more.
func setLeaving(f filter.Tx, o spec.Owner, now bool) error {
	me := identity.OwnerHash(o)
	have, err := f.Entries(me, filter.KindNetwork)
	if err != nil || len(have) == 0 {
		return err
	}
	var b nft.Batch
	switch last := have[len(have)-1]; {
	case now && last.Place.Set != nil:
		b.Add(f.Record(me, filter.KindNetwork, len(have), "leaving"))
	case !now && last.Place.Set == nil:
		b.Delete(last.Record)
	}
	return f.Commit(&b)
}

// transferPolicy drops a network's elements for a bridge; those that another network has on the same bridge become its.
func transferPolicy(f filter.Tx, o spec.Owner, bridge string) error {
	me := identity.OwnerHash(o)
	have, err := f.Entries(me, filter.KindNetwork)
	if err != nil || len(have) == 0 {
		return err
	}
	holders, err := policyHolders(f, me, bridge)
	if err != nil {
		return err
	}
	at, err := f.Current(have, holders)
	if err != nil {
		return err
	}
	b := &nft.Batch{}
	f.Replace(b, me, have, nil, at)
	for _, e := range holders {
		if at.At(e) == nil { // replace has deleted it, or it had to give way
			b.Add(e)
		}
	}
	f.Forget(b, have)
	return f.Commit(b)
}

// policyHolders are the elements that networks have recorded for a bridge but the one whose they are now. What would
// let in what one of them keeps out is not among them.
func policyHolders(f filter.Tx, but [8]byte, bridge string) (holders []nft.Elem, err error) {
	entries, err := f.AllEntries()
	isolated := false
	for _, e := range entries {
		if e.Owner == but || e.Kind != filter.KindNetwork || linkOf(e.Place) != bridge {
			continue
		}
		isolated = isolated || e.Place.Set.Name == "isolated"
		if !filter.Has(holders, e.Place) {
			holders = append(holders, e.Place)
		}
	}
	if isolated {
		holders = slices.DeleteFunc(holders, func(h nft.Elem) bool { return h.Set.Name == "within" })
	}
	return holders, err
}
