package shape

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A shaped is the record of a limited link on the host, because DEL may have neither a result nor the container's
// namespace. The index distinguishes the link from a later one with the same name.
type shaped map[string]int

const (
	qdiscRecord    = "qdisc"
	redirectRecord = "redirect"
)

// remember writes the record before the change, so that DEL undoes a change whose call was killed.
func remember(w *kernel.World, record string, o spec.Owner, where resource.Where, l *rtnl.Link) error {
	if where != resource.Host || l.Kind == "ifb" {
		return nil
	}
	links := shaped{}
	if _, err := w.Store.Get(record, o, &links); err != nil {
		return err
	}
	if links == nil {
		links = shaped{}
	}
	if links[l.Name] == l.Index {
		return nil
	}
	links[l.Name] = l.Index
	return w.Store.Put(record, o, links)
}

// forEachShaped calls drop for the link of that name, if there is one, and on the host for the links that are
// remembered, which it forgets. Without a name, as in DEL, it calls it for the other end of the owner's link in the
// container, too.
func forEachShaped(w *kernel.World, record string, o spec.Owner, where resource.Where, link string,
	drop func(*kernel.NS, int) error) error {
	ns, err := where.Namespace(w)
	if err != nil {
		return err
	}
	var errs []error
	if link != "" {
		i, err := rtnl.IndexOf(ns, link)
		if errs = append(errs, resource.ExceptNoLink(err)); err == nil {
			errs = append(errs, drop(ns, i))
		}
	} else if end, err := resource.HostEnd(w, o.IfName); err != nil || end != nil {
		if errs = append(errs, err); err == nil {
			errs = append(errs, drop(w.Host, end.Index))
		}
	}
	if where == resource.Host && link != ifbName(o) {
		var links shaped
		_, err := w.Store.Get(record, o, &links)
		if errs = append(errs, err, links.drop(w, drop)); errors.Join(errs...) == nil {
			return w.Store.Delete(record, o)
		}
	}
	return errors.Join(errs...)
}

func (s shaped) drop(w *kernel.World, drop func(*kernel.NS, int) error) error {
	var errs []error
	for name, index := range s {
		if i, err := rtnl.IndexOf(w.Host, name); err == nil && i == index {
			errs = append(errs, drop(w.Host, i))
		} else {
			errs = append(errs, resource.ExceptNoLink(err))
		}
	}
	return errors.Join(errs...)
}

// fixShaped returns a Fix that ensures a resource on the host if it has drifted. What the reference's plugin made
// counts as correct.
func fixShaped(where resource.Where, r plan.Resource) func(context.Context, *kernel.World) (bool, error) {
	return func(ctx context.Context, w *kernel.World) (bool, error) {
		if where != resource.Host || r.Verify(ctx, w) == nil {
			return false, nil
		}
		return r.Ensure(ctx, w)
	}
}
