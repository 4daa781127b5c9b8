package link

import (
	"errors"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/hostdev"
	"github.com/fairlead-cni/fairlead/spec"
)

// linkRecord is the record of which link of the container an attachment's is.
const linkRecord = "link"

type madeLink struct {
	NS     kernel.Identity // of the container's namespace
	Index  int
	Kind   string
	Master *chosenMaster // that it stands on; nil for links that have none
}

// contained are the kinds of the links that we make in a container, and that no deletion on the host takes along.
func contained() []string { return []string{"macvlan", "macvtap", "ipvlan", "vlan", "dummy", "tun"} }

// rememberLink writes down which link in the container was made for the owner, or deletes it again.
func rememberLink(w *kernel.World, o spec.Owner, name, kind string, master *chosenMaster) error {
	index, err := rtnl.IndexOf(w.Container, name)
	m := madeLink{Index: index, Kind: kind, Master: master}
	if err == nil {
		m.NS, err = w.Container.Identity()
	}
	if err == nil {
		err = w.Store.Put(linkRecord, o, m)
	}
	if err != nil {
		return errors.Join(err, removeOwn(w, o, name, kind))
	}
	return nil
}

// recallLink is what is remembered of the owner's link, if it is in this namespace.
func recallLink(w *kernel.World, o spec.Owner, in *kernel.NS) (m madeLink, err error) {
	known, err := w.Store.Get(linkRecord, o, &m)
	if err == nil && known {
		known, err = in.Is(m.NS)
	}
	if !known {
		m = madeLink{}
	}
	return m, err
}

func (m madeLink) is(l *rtnl.Link) bool {
	return m.Index != 0 && l.Index == m.Index && l.Kind == m.Kind
}

// tagged reports whether a link carries an owner's own tag.
func tagged(l *rtnl.Link, owner [8]byte) bool {
	_, h, _, ok := identity.ParseTag(l.Alias)
	return ok && h == owner
}

// ownLinks are an owner's links of some kinds in a container: the one that its record says, and else what its tag or
// like says that is in no other attachment's record.
func ownLinks(w *kernel.World, in *kernel.NS, m madeLink, owner [8]byte, like func(*rtnl.Link) bool,
	kinds ...string) ([]*rtnl.Link, error) {
	links, err := rtnl.Links(in)
	if err != nil {
		return nil, err
	}
	for _, is := range []func(*rtnl.Link) bool{m.is, func(l *rtnl.Link) bool { return tagged(l, owner) }, like} {
		found := slices.DeleteFunc(slices.Clone(links),
			func(l *rtnl.Link) bool { return !slices.Contains(kinds, l.Kind) || !is(l) })
		if len(found) > 0 {
			if found, err = unclaimed(w, in, links, found, owner); err != nil || len(found) > 0 {
				return found, err
			}
		}
	}
	return nil, nil
}

// unclaimed are those of found that no other attachment has recorded as its own.
func unclaimed(w *kernel.World, in *kernel.NS, links, found []*rtnl.Link, owner [8]byte) ([]*rtnl.Link, error) {
	id, err := in.Identity()
	if err != nil {
		return nil, err
	}
	records, err := resource.DecodeRecords[madeLink](w.Store.All(linkRecord))
	devices, derr := hostdev.DeviceRecords(w)
	if err := errors.Join(err, derr); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found, func(l *rtnl.Link) bool {
		for other, m := range records {
			if other != owner && m.NS.Same(id) && m.is(l) {
				return true
			}
		}
		return slices.ContainsFunc(devices, func(r hostdev.DeviceRecord) bool {
			return r.NS.Same(id) &&
				r.InContainer(links) == l
		})
	}), nil
}

// CalledNow adds to err, which says that a link does not exist, the link's present name if the namespace has it under
// another name.
func CalledNow(ns *kernel.NS, err error, is func(*rtnl.Link) bool) (said error, found bool) {
	if !errors.Is(err, rtnl.ErrNoLink) {
		return err, false
	}
	links, lerr := rtnl.Links(ns)
	if i := slices.IndexFunc(links, is); lerr == nil && i >= 0 {
		var lost rtnl.NoLink
		errors.As(err, &lost)
		now := spec.Difference{Field: "name", Want: lost.Name, Got: links[i].Name}
		return now.Saying(fmt.Errorf("%w; it is called %s now", err, links[i].Name)), true
	}
	return err, false
}

// Renamed returns the present name of an owner's host-side interface if it was renamed. It returns "" otherwise.
func Renamed(w *kernel.World, listed string, o spec.Owner) (now string, err error) {
	v := Veth{Owner: o, Host: listed}
	var chosen string
	known, err := w.Store.Get(hostNameRecord, o, &chosen)
	if err != nil || listed != identity.LinkName("veth", o) && !(known && listed == chosen) {
		return "", err
	}
	links, err := rtnl.Links(w.Host)
	if i := slices.IndexFunc(links, v.isOwned); i >= 0 {
		now = links[i].Name
	}
	return now, err
}

// own returns the owner's link in the container. If the link was renamed, the error contains its present name.
func own(w *kernel.World, o spec.Owner, name, kind string) (*rtnl.Link, error) {
	ns, l, err := resource.Container.Link(w, name)
	if errors.Is(err, rtnl.ErrNoLink) {
		m, merr := recallLink(w, o, ns)
		if merr != nil {
			return nil, merr
		}
		err, _ = CalledNow(ns, err, func(l *rtnl.Link) bool {
			return l.Kind == kind &&
				(m.is(l) || tagged(l, identity.OwnerHash(o)))
		})
	}
	return l, err
}

// removeOwn deletes the owner's link in the container and its record. Without a record, it deletes the link with that
// name and kind, because the reference's plugin leaves no mark.
func removeOwn(w *kernel.World, o spec.Owner, name, kind string) error {
	if w.Container != nil {
		m, err := recallLink(w, o, w.Container)
		if err != nil {
			return err
		}
		links, err := ownLinks(w, w.Container, m, identity.OwnerHash(o),
			func(l *rtnl.Link) bool { return l.Name == name || derived(l, o) }, kind)
		if err = errors.Join(err, deleteAll(w.Container, links), m.removeMoved(w, w.Container, links)); err != nil {
			return err
		}
	}
	return w.Store.Delete(linkRecord, o)
}

// derived reports whether a link has one of the addresses that only the owner's has.
func derived(l *rtnl.Link, o spec.Owner) bool {
	return slices.ContainsFunc(contMACs(o), func(mac string) bool { return l.MAC.String() == mac })
}

// contMACs are the addresses that the owner's link in the container has where none is asked for: the first that is
// free.
func contMACs(o spec.Owner) []string {
	macs := []string{identity.MAC("cont", o).String()}
	for n := 2; n <= 9; n++ {
		macs = append(macs, identity.MAC(fmt.Sprint("cont", n), o).String())
	}
	return macs
}

func deleteAll(ns *kernel.NS, links []*rtnl.Link) error {
	var errs []error
	for _, l := range links {
		errs = append(errs, rtnl.DelLink(ns, l.Index))
	}
	return errors.Join(errs...)
}

// TakenByAnother reports whether the container interface with the owner's name is known to belong to another
// attachment. Then another network's ADD came first and the owner's ADD was refused. The owner's DEL must not remove
// an interface for which it has no record.
func TakenByAnother(w *kernel.World, o spec.Owner) (bool, error) {
	if w.Container == nil {
		return false, nil
	}
	if _, err := rtnl.IndexOf(w.Container, o.IfName); err != nil {
		return false, resource.ExceptNoLink(err)
	}
	var mine resource.Made
	known, err := w.Store.Get(resource.MadeRecord, o, &mine)
	if err != nil {
		return false, err
	}
	id, err := w.Container.Identity()
	if err != nil || known && mine.Same(id) {
		return false, err
	}
	all, err := resource.DecodeRecords[resource.Made](w.Store.All(resource.MadeRecord))
	for owner, m := range all {
		if owner != identity.OwnerHash(o) && m.Owner.IfName == o.IfName && m.Same(id) {
			return true, nil
		}
	}
	return false, err
}
