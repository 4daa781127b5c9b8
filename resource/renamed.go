package resource

import (
	"errors"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// Whoever is root in a container may call its links what he likes, and write any mark on them. A mark is gone by in his
// namespace only: it says what of his is an attachment's, and nothing of the host's or of another container's.

// A Made is what is remembered of where an attachment's link was made, under MadeRecord.
type Made struct {
	kernel.Identity        // of the container's namespace, which another may have the path of by now
	Path            string // empty in the records of earlier versions
}

// contained are the kinds of the links that we make in a container, and that no deletion on the host takes along.
func contained() []string { return []string{"macvlan", "macvtap", "ipvlan", "vlan", "dummy", "tun"} }

// tagged reports whether a link carries an owner's own tag.
func tagged(l *kernel.Link, owner [8]byte) bool {
	_, h, _, ok := kernel.ParseTag(l.Alias)
	return ok && h == owner
}

// taggedIn are the links of a container with an owner's tag, whatever they are called, of one of the kinds.
func taggedIn(ns *kernel.NS, owner [8]byte, kinds ...string) ([]*kernel.Link, error) {
	links, err := ns.Links()
	return slices.DeleteFunc(links, func(l *kernel.Link) bool { return !tagged(l, owner) || !slices.Contains(kinds, l.Kind) }), err
}

// calledNow is err, that a link is not there, with the name that it has now if one of the namespace's is it.
func calledNow(ns *kernel.NS, err error, is func(*kernel.Link) bool) (said error, found bool) {
	if !errors.Is(err, kernel.ErrNoLink) {
		return err, false
	}
	links, lerr := ns.Links()
	if i := slices.IndexFunc(links, is); lerr == nil && i >= 0 {
		return fmt.Errorf("%w; it is called %s now", err, links[i].Name), true
	}
	return err, false
}

// Renamed is the name that the host's end of an owner's pair has now, if it is listed by another one that leads nowhere;
// else it is empty.
func Renamed(w *kernel.World, listed string, o spec.Owner) (now string, err error) {
	v := Veth{Owner: o, Host: listed}
	var chosen string
	known, err := w.Memory.Recall(hostNameRecord, o, &chosen)
	if err != nil || listed != kernel.LinkName("veth", o) && !(known && listed == chosen) {
		return "", err
	}
	links, err := w.Host.Links()
	if i := slices.IndexFunc(links, v.ours); i >= 0 {
		now = links[i].Name
	}
	return now, err
}

// own is the owner's link in the container. Where it has another name by now, the error says which.
func own(w *kernel.World, o spec.Owner, name, kind string) (*kernel.Link, error) {
	ns, l, err := Container.link(w, name)
	if errors.Is(err, kernel.ErrNoLink) {
		err, _ = calledNow(ns, err, func(l *kernel.Link) bool { return l.Kind == kind && tagged(l, kernel.OwnerHash(o)) })
	}
	return l, err
}

// removeOwn deletes the link of that name and kind in the container, or what the owner's has become there under another
// name. One that is marked as somebody else's stays; one without a mark was made by the reference's plugin.
func removeOwn(w *kernel.World, o spec.Owner, name, kind string) error {
	if w.Container == nil {
		return nil
	}
	l, err := w.Container.Link(name)
	if gone(err) != nil {
		return err
	}
	if err == nil && l.Kind == kind && tagged(l, kernel.OwnerHash(o)) {
		return w.Container.DelLink(l.Index)
	}
	renamed, rerr := taggedIn(w.Container, kernel.OwnerHash(o), kind)
	switch {
	case rerr != nil:
		return rerr
	case len(renamed) > 0: // and what has its name is the container's own
		return deleteAll(w.Container, renamed)
	case err != nil || l.Kind != kind || !owned(l, o) && marked(l):
		return nil
	}
	return w.Container.DelLink(l.Index)
}

func deleteAll(ns *kernel.NS, links []*kernel.Link) error {
	var errs []error
	for _, l := range links {
		errs = append(errs, ns.DelLink(l.Index))
	}
	return errors.Join(errs...)
}

// marked reports whether a link carries the mark of some attachment, or of some network.
func marked(l *kernel.Link) bool {
	_, _, _, ok := kernel.ParseTag(l.Alias)
	return ok || kernel.OfGroup(l.Group)
}

// sweepContained removes what attachments of the network that keep does not want have in containers that live on. An ADD that
// was killed has left a link of the network's group without a tag, if it got as far: the first message cannot set one.
func sweepContained(w *kernel.World, network string, keep func(owner [8]byte) bool) error {
	records, err := decoded[Made](w.Memory.Records(MadeRecord, network))
	errs := []error{err}
	for owner, m := range records {
		if keep(owner) || m.Path == "" {
			continue
		}
		ns, err := m.open()
		if ns == nil {
			errs = append(errs, err)
			continue
		}
		links, err := ns.Links()
		alone := true // no attachment that stays is in there: it might just be made
		for other, h := range records {
			alone = alone && !(keep(other) && h.Same(m.Identity))
		}
		links = slices.DeleteFunc(links, func(l *kernel.Link) bool {
			_, _, _, ok := kernel.ParseTag(l.Alias)
			unfinished := alone && !ok && l.Group == kernel.LinkGroup(network)
			return !slices.Contains(contained(), l.Kind) || !tagged(l, owner) && !unfinished
		})
		errs = append(errs, err, deleteAll(ns, links))
		ns.Close()
	}
	return errors.Join(errs...)
}

// open is the namespace, or nil if it is gone.
func (m Made) open() (*kernel.NS, error) { return kernel.Reopen(m.Path, m.Identity) }
