package shape

import (
	"context"
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/tc"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Redirect sends all packets that arrive on a link through the owner's ifb. After the ifb, they continue as before.
type Redirect struct {
	Owner spec.Owner
	Where resource.Where
	Link  string // empty: whatever is remembered of the owner
}

func (r Redirect) String() string {
	if r.Link == "" {
		return "filter dev " + r.Where.String() + "any ingress ours"
	}
	return resource.Line("filter dev "+r.Where.String()+r.Link, "ingress protocol all redirect dev", ifbName(r.Owner))
}

// clsactIngress is where packets come in, in both kinds of qdisc that are there for it.
const clsactIngress = tc.IngressHandle | 0xFFF2

// Ensure implements plan.Resource. Existing filters stay and are applied first. Only a filter of the reference's
// plugin is replaced.
func (r Redirect) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	ns, l, err := r.Where.Link(w, r.Link)
	if err != nil {
		return false, err
	}
	to, err := rtnl.IndexOf(ns, ifbName(r.Owner))
	if err != nil {
		return false, err
	}
	old, err := replaced(ns, r.Where, r.Owner)
	if err != nil {
		return false, err
	}
	filters, err := tc.Filters(ns, l.Index, clsactIngress)
	if err != nil {
		return false, err
	}
	stale, there := false, false
	for _, f := range filters {
		if f.Redirect == old && old != 0 {
			if err := tc.DelQdisc(ns, l.Index, tc.Ingress); err != nil {
				return false, err
			}
			stale, there = false, false
			break
		}
		there = there || f.Pref == ourPref && f.Matches(redirection(to))
		stale = stale || f.Pref == ourPref
	}
	if there {
		return false, nil
	}
	if err := remember(w, redirectRecord, r.Owner, r.Where, l); err != nil {
		return false, err
	}
	if err := redirect(ns, l.Index, to, stale); err != nil {
		return false, errors.Join(err, r.Remove(ctx, w))
	}
	if old != 0 {
		err = rtnl.DelLink(ns, old)
	}
	return true, err
}

// replaced returns the index of the ifb that the reference's plugin made for the owner, or 0.
func replaced(ns *kernel.NS, where resource.Where, o spec.Owner) (int, error) {
	if where != resource.Host {
		return 0, nil
	}
	i, err := rtnl.IndexOf(ns, referenceIFB(o))
	return i, resource.ExceptNoLink(err)
}

func redirection(to int) tc.Filter {
	return tc.Filter{Parent: clsactIngress, Pref: ourPref, Protocol: tc.AnyProtocol, Sel: tc.AnyPacket(),
		Redirect: to}
}

func redirect(ns *kernel.NS, link, to int, stale bool) error {
	q, err := tc.QdiscAt(ns, link, tc.Ingress)
	if err != nil {
		return err
	}
	if q == nil {
		err = tc.AddQdisc(ns, link, tc.Qdisc{Kind: "ingress", Handle: tc.IngressHandle, Parent: tc.Ingress})
	} else if stale {
		err = tc.DelFilters(ns, link, redirection(to))
	}
	if err != nil {
		return err
	}
	return tc.AddFilter(ns, link, redirection(to))
}

// Traits implements resource.Describer.
func (r Redirect) Traits() resource.Traits {
	return resource.Traits{Fix: fixShaped(r.Where, r), On: resource.Iface{Where: r.Where, Name: r.Link}}
}

// Verify implements plan.Resource.
func (r Redirect) Verify(_ context.Context, w *kernel.World) error {
	ns, l, err := r.Where.Link(w, r.Link)
	if err != nil {
		return err
	}
	_, to, err := ifb(w, r.Where, r.Owner)
	if err != nil {
		return err
	}
	filters, err := tc.Filters(ns, l.Index, clsactIngress)
	if err != nil {
		return err
	}
	for _, f := range filters {
		want := redirection(to.Index)
		want.ClassID = f.ClassID // which counts for nothing here
		if f.Matches(want) {
			return nil
		}
	}
	return spec.DiffersBy("filter", "no filter redirects incoming packets to %s, so they are not limited", to.Name)
}

// Remove implements plan.Remover. It also removes a filter that leads to the ifb of the reference's plugin. Without
// the ifb, that filter would drop all incoming packets.
func (r Redirect) Remove(_ context.Context, w *kernel.World) error {
	ns, err := r.Where.Namespace(w)
	if err != nil {
		return err
	}
	old, err := replaced(ns, r.Where, r.Owner)
	return errors.Join(err, forEachShaped(w, redirectRecord, r.Owner, r.Where, r.Link,
		func(ns *kernel.NS, link int) error {
			return dropRedirect(ns, link, old)
		}))
}

// dropRedirect deletes our filter, and its qdisc if no other filter uses it. Deleting the qdisc also deletes the
// filter of the reference's plugin that leads to its ifb, old.
func dropRedirect(ns *kernel.NS, link, old int) error {
	filters, err := tc.Filters(ns, link, clsactIngress)
	if err != nil {
		return err
	}
	if old != 0 && slices.ContainsFunc(filters, func(f tc.Filter) bool { return f.Redirect == old }) {
		return tc.DelQdisc(ns, link, tc.Ingress)
	}
	mine, others := 0, 0
	for _, f := range filters {
		if f.Pref == ourPref && f.Kind == "u32" {
			mine++
		} else {
			others++
		}
	}
	q, err := tc.QdiscAt(ns, link, tc.Ingress)
	switch {
	case err != nil || q == nil:
		return resource.ExceptNoLink(err)
	case q.Kind == "ingress" && others == 0 && mine > 0:
		return tc.DelQdisc(ns, link, tc.Ingress)
	case mine > 0:
		return tc.DelFilters(ns, link, redirection(0))
	}
	return nil
}
