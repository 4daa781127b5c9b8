package link

import (
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
)

// removeMoved deletes the recorded link if the container has moved it into another namespace, where it would keep its
// place on the host's master. Found are the owner's links in the container. The link has the kind and the master that
// the record says. Its index may be another one, and its name, mark and address are what the container makes of them.
//
// The container's namespace has a number for each namespace that it has given a link to. A link that was moved twice
// may be in a namespace without a number, and when the container's namespace is gone, its numbers are too. Nothing
// leads to the link then, until its namespace ends.
func (m madeLink) removeMoved(w *kernel.World, in *kernel.NS, found []*rtnl.Link) error {
	if m.Master == nil || m.Master.Where != resource.Host || slices.ContainsFunc(found, m.is) {
		return nil
	}
	master, err := rtnl.LinkByIndex(w.Host, m.Master.Index)
	if err != nil {
		return resource.ExceptNoLink(err) // what stood on it went with it
	}
	below := master.Index
	if isMacvlan(master) || master.Kind == "ipvlan" && m.Kind == "ipvlan" {
		below = master.Peer // see onMaster
	}
	ids, err := rtnl.NSIDs(in)
	if err != nil || len(ids) == 0 {
		return err
	}
	host, err := rtnl.AssignNSID(in, w.Host)
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		if id == host {
			continue
		}
		links, err := rtnl.LinksIn(in, id)
		links = slices.DeleteFunc(links, func(l *rtnl.Link) bool {
			return l.Kind != m.Kind || l.Peer != below || !l.PeerAway || l.PeerNS != host
		})
		if len(links) > 0 && err == nil {
			var attached bool
			if attached, err = ofAttachment(w, in, id); attached {
				links = nil
			}
		}
		for _, l := range links {
			err = errors.Join(err, rtnl.DelLinkIn(in, id, l.Index))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ofAttachment reports whether the namespace that in calls id is in itself, or that of an attachment.
func ofAttachment(w *kernel.World, in *kernel.NS, id int) (bool, error) {
	if own, err := rtnl.NSID(in, in); err != nil || own == id {
		return true, err
	}
	records, err := resource.DecodeRecords[resource.Made](w.Store.All(resource.MadeRecord))
	if err != nil {
		return true, err
	}
	for _, m := range records {
		if m.Path == "" {
			continue
		}
		ns, err := m.Open()
		if err != nil {
			return true, err
		}
		if ns == nil {
			continue
		}
		other, err := rtnl.NSID(in, ns)
		ns.Close()
		if err != nil || other == id {
			return true, err
		}
	}
	return false, nil
}
