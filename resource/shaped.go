package resource

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// A shaped link is remembered where it outlives its attachment: a tap of a hypervisor, say. A veth pair dies with
// the container, and what is in the container with that. The index tells it from one that got its name later.
type shaped map[string]int

const (
	qdiscRecord    = "qdisc"
	redirectRecord = "redirect"
)

// remember is called before the change: a call that is killed after it is undone by DEL.
func remember(w *kernel.World, record string, o spec.Owner, where Where, l *kernel.Link) error {
	if where != Host || l.Kind == "veth" || l.Kind == "ifb" {
		return nil
	}
	links := shaped{}
	if _, err := w.Memory.Recall(record, o, &links); err != nil {
		return err
	}
	if links == nil {
		links = shaped{}
	}
	if links[l.Name] == l.Index {
		return nil
	}
	links[l.Name] = l.Index
	return w.Memory.Remember(record, o, links)
}

// forEachShaped calls drop for the link of that name, if there is one, and for those that are remembered, and
// forgets them.
func forEachShaped(w *kernel.World, record string, o spec.Owner, where Where, link string, drop func(*kernel.NS, int) error) error {
	ns, err := where.ns(w)
	if err != nil {
		return err
	}
	var errs []error
	if link != "" {
		if i, err := ns.Index(link); err == nil {
			errs = append(errs, drop(ns, i))
		} else {
			errs = append(errs, gone(err))
		}
	}
	if where != Host {
		return errors.Join(errs...)
	}
	var links shaped
	if _, err := w.Memory.Recall(record, o, &links); err != nil {
		return errors.Join(append(errs, err)...)
	}
	errs = append(errs, links.drop(w, drop))
	if errors.Join(errs...) == nil {
		return w.Memory.Forget(record, o)
	}
	return errors.Join(errs...)
}

func (s shaped) drop(w *kernel.World, drop func(*kernel.NS, int) error) error {
	var errs []error
	for name, index := range s {
		if i, err := w.Host.Index(name); err == nil && i == index {
			errs = append(errs, drop(w.Host, i))
		} else {
			errs = append(errs, gone(err))
		}
	}
	return errors.Join(errs...)
}

// mendShaped ensures what is on the host and not as it should be. What the reference plugin made is as it should be.
func mendShaped(ctx context.Context, w *kernel.World, where Where, r plan.Resource) (bool, error) {
	if where != Host || r.Verify(ctx, w) == nil {
		return false, nil
	}
	return r.Ensure(ctx, w)
}

// sweepShaped takes the limits of attachments that are gone off links that outlive them. Their records are the
// caller's to forget.
func sweepShaped(w *kernel.World, network string, keep func(owner [8]byte) bool) error {
	var errs []error
	for record, drop := range map[string]func(*kernel.NS, int) error{qdiscRecord: dropQdisc, redirectRecord: dropRedirect} {
		records, err := decoded[shaped](w.Memory.Records(record, network))
		errs = append(errs, err)
		for owner, links := range records {
			if !keep(owner) {
				errs = append(errs, links.drop(w, drop))
			}
		}
	}
	return errors.Join(errs...)
}
