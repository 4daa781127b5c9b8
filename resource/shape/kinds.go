package shape

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/spec"
)

// LimitKind returns the Kind of Qdisc and Redirect, for limits on a link that may outlive the attachment. DEL may
// have no result, so Remove looks at both ends of the container's link.
func LimitKind() plan.Kind {
	drops := map[string]func(*kernel.NS, int) error{
		qdiscRecord:    dropQdisc,
		redirectRecord: func(ns *kernel.NS, link int) error { return dropRedirect(ns, link, 0) },
	}
	return resource.NewKind("bandwidth limit", resource.KindFuncs{
		Owners: func(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
			sent, err := resource.RecordedTags[shaped](w, qdiscRecord, network)
			received, rerr := resource.RecordedTags[shaped](w, redirectRecord, network)
			return append(sent, received...), errors.Join(err, rerr)
		},
		Remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			var errs []error
			if o := t.Owner; t.Known() {
				if other, err := unlimited(w, o); other || err != nil {
					return err
				}
				for _, r := range []plan.Remover{
					Redirect{Owner: o, Link: o.IfName}, Qdisc{Owner: o, Link: o.IfName},
					Redirect{Owner: o, Where: resource.Host}, Qdisc{Owner: o, Where: resource.Host},
				} {
					errs = append(errs, resource.ExceptNoNamespace(r.Remove(ctx, w)))
				}
				return errors.Join(errs...)
			}
			t.Found = nil // of one of the two records
			for record, drop := range drops {
				links, _, err := resource.RecordOf[shaped](w, record, t)
				if err = errors.Join(err, links.drop(w, drop)); err == nil {
					err = w.Store.DeleteOf(record, t.Network, t.Hash)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		}})
}

// unlimited reports whether the container interface belongs to another attachment and the owner has no record of a
// limit.
func unlimited(w *kernel.World, o spec.Owner) (bool, error) {
	for _, record := range []string{qdiscRecord, redirectRecord} {
		if known, err := w.Store.Get(record, o, &shaped{}); known || err != nil {
			return false, err
		}
	}
	return link.TakenByAnother(w, o)
}

// IFBKind returns the Kind of IFB.
func IFBKind() plan.Kind {
	return link.HostLinkKind("ifb", "ifb", func(ctx context.Context, w *kernel.World, o spec.Owner) error {
		return errors.Join(IFB{Owner: o, Where: resource.Host}.Remove(ctx, w),
			resource.ExceptNoNamespace(IFB{Owner: o}.Remove(ctx, w)))
	})
}
