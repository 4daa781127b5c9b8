package shape

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/internal/kernel/tc"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Qdisc limits what a link sends. It is tbf, or htb if the limit is for some addresses only.
type Qdisc struct {
	Owner spec.Owner
	Where resource.Where
	Link  string // empty: whatever is remembered of the owner
	Limit
}

// The marks of what is ours: the major number of a qdisc's handle and the preference of a filter that sends
// what comes in to an ifb. It is the last one asked, for what it takes is not asked about again.
const (
	ourHandle = 0xFA1D << 16
	ourPref   = 0xFA1D

	referenceHandle = 1 << 16 // the major number that the reference plugin gives
)

func (q Qdisc) String() string {
	if q.Link == "" {
		return "qdisc dev " + q.Where.String() + "any root ours"
	}
	if q.Rate == 0 {
		return "qdisc dev " + q.Where.String() + q.Link + " root ours"
	}
	return resource.Line("qdisc dev "+q.Where.String()+q.Link, "root", q.Limit.String())
}

// Ensure implements plan.Resource. It does not replace a qdisc of another program.
func (q Qdisc) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	ns, l, err := q.Where.Link(w, q.Link)
	if err != nil {
		return false, err
	}
	have, err := tc.QdiscAt(ns, l.Index, tc.Root)
	if err != nil {
		return false, err
	}
	want := q.Limit.fitted(l)
	switch {
	case have == nil:
	case !ours(have) && !references(l, have):
		return false, spec.Errorf(spec.CodeConfig,
			"%s%s has a qdisc %s of another program, with handle %x:, and a link has one; remove it (tc qdisc del "+
				"dev %s root), or do not limit this link",
			q.Where, q.Link, have.Kind, have.Handle>>16, q.Link)
	case ours(have) && q.Limit.verify(ns, l, have) == nil:
		return false, nil
	default:
		if err := tc.DelQdisc(ns, l.Index, tc.Root); err != nil {
			return false, err
		}
	}
	if err := remember(w, qdiscRecord, q.Owner, q.Where, l); err != nil {
		return false, err
	}
	if err := want.add(ns, l.Index); err != nil {
		return false, errors.Join(err, q.Remove(ctx, w))
	}
	return true, nil
}

// Traits implements resource.Describer.
func (q Qdisc) Traits() resource.Traits {
	is := resource.Traits{Fix: fixShaped(q.Where, q), On: resource.Iface{Where: q.Where, Name: q.Link}}
	if q.Rate > 0 {
		direction := "to it "
		if q.Link == ifbName(q.Owner) {
			direction = "from the container "
		}
		is.Network.Marks = []string{direction + resource.BitRate(float64(q.Rate)*8)}
	}
	return is
}

// Verify implements plan.Resource. It also accepts the qdisc that the reference's plugin makes of the same
// configuration.
func (q Qdisc) Verify(ctx context.Context, w *kernel.World) error {
	ns, l, err := q.Where.Link(w, q.Link)
	if errors.Is(err, rtnl.ErrNoLink) && q.Link == ifbName(q.Owner) {
		ns, l, err = ifb(w, q.Where, q.Owner)
	}
	if err != nil {
		return err
	}
	have, err := tc.QdiscAt(ns, l.Index, tc.Root)
	if err != nil {
		return err
	}
	if have == nil {
		return spec.Missing("the qdisc")
	}
	want := q.Limit
	if references(l, have) && !q.some() && q.Reference > 0 {
		want.Burst, want.Queue = q.Reference, uint32(min(q.Rate/40+uint64(q.Reference), 1<<32-1))
	}
	return want.verify(ns, l, have)
}

// Remove implements plan.Remover. The link gets the kernel's default qdisc again. For a link on the host that
// outlives the attachment, Remove needs only the owner; for others, it needs the link's name.
func (q Qdisc) Remove(_ context.Context, w *kernel.World) error {
	return forEachShaped(w, qdiscRecord, q.Owner, q.Where, q.Link, dropQdisc)
}

func dropQdisc(ns *kernel.NS, link int) error {
	have, err := tc.QdiscAt(ns, link, tc.Root)
	if err != nil || have == nil || !ours(have) {
		return resource.ExceptNoLink(err)
	}
	return tc.DelQdisc(ns, link, tc.Root)
}

func ours(q *tc.Qdisc) bool { return q.Handle == ourHandle }

// references reports whether the reference's plugin can have made a qdisc. That plugin knows only veth pairs.
func references(l *rtnl.Link, q *tc.Qdisc) bool {
	return q.Handle == referenceHandle && q.Kind == "tbf" && (l.Kind == "veth" || l.Kind == "ifb")
}
