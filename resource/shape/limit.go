package shape

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/tc"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Limit is a token bucket and the packets that it limits.
type Limit struct {
	Rate  uint64 // bytes a second
	Burst uint32 // bytes that may pass at once; a packet of the link's MTU always may
	Queue uint32 // bytes that may wait

	// Only these destinations are limited, or all but these; of both, one at most is set. With From they are
	// sources.
	Only, Except []netip.Prefix
	From         bool

	// Reference is the burst that the reference plugin, which has no default, sets: zero if it had refused.
	Reference uint32
}

// The filters of htb: all of one preference are of one protocol.
const (
	prefIPv4 = 1
	prefIPv6 = 2
)

// String returns the limit in the words of tc(8).
func (l Limit) String() string {
	kind := "tbf"
	if l.some() {
		kind = "htb"
	}
	end := "dst"
	if l.From {
		end = "src"
	}
	list := func(word string, ps []netip.Prefix) string {
		var s []string
		for _, p := range ps {
			s = append(s, p.String())
		}
		if s == nil {
			return ""
		}
		return word + " " + end + " " + strings.Join(s, ",")
	}
	return resource.Line(kind, fmt.Sprintf("rate %dbit burst %db limit %db", l.Rate*8, l.Burst, l.Queue),
		list("only", l.Only), list("except", l.Except))
}

func (l Limit) some() bool { return len(l.Only)+len(l.Except) > 0 }

// largest returns the length of the longest frame of a link, in bytes.
func largest(l *rtnl.Link) uint32 { return uint32(l.MTU) + 14 }

// fitted returns the limit adapted to a link. tbf drops a packet that its queue or its bucket cannot hold, so both
// are at least as large as a packet.
func (l Limit) fitted(dev *rtnl.Link) Limit {
	l.Queue = max(l.Queue, largest(dev))
	if !l.some() {
		l.Burst = max(l.Burst, largest(dev))
	}
	return l
}

// add creates the qdisc with its classes and filters.
func (l Limit) add(ns *kernel.NS, link int) error {
	bucket := tc.TokenBucket{Rate: l.Rate, Burst: l.Burst, Limit: l.Queue}
	if !l.some() {
		return tc.AddQdisc(ns, link, tc.Qdisc{Kind: "tbf", Handle: ourHandle, Parent: tc.Root, Bucket: bucket})
	}
	if err := tc.AddQdisc(ns, link, tc.Qdisc{Kind: "htb", Handle: ourHandle, Parent: tc.Root,
		Default: l.others()}); err != nil {
		return err
	}
	if err := tc.AddClass(ns, link, tc.Qdisc{Kind: "htb", Handle: ourHandle | 1, Parent: tc.Root,
		Bucket: bucket}); err != nil {
		return err
	}
	if err := tc.AddQdisc(ns, link, tc.Qdisc{Kind: "bfifo", Parent: ourHandle | 1, Bucket: bucket}); err != nil {
		return err
	}
	for _, f := range l.filters() {
		if err := tc.AddFilter(ns, link, f); err != nil {
			return err
		}
	}
	return nil
}

// others returns the class for packets that no filter matches: the limited class, or none, which does not limit them.
func (l Limit) others() uint32 {
	if len(l.Only) > 0 {
		return 0
	}
	return 1
}

func (l Limit) filters() (fs []tc.Filter) {
	for _, p := range append(l.Only[:len(l.Only):len(l.Only)], l.Except...) {
		f := tc.Filter{Kind: "u32", Parent: ourHandle, Pref: prefIPv4, Protocol: tc.IPv4Protocol,
			Sel: tc.AddressMatch(p, l.From), ClassID: ourHandle}
		if p.Addr().Is6() {
			f.Pref, f.Protocol = prefIPv6, tc.IPv6Protocol
		}
		if len(l.Only) > 0 {
			f.ClassID |= 1
		}
		fs = append(fs, f)
	}
	return fs
}

func (l Limit) verify(ns *kernel.NS, dev *rtnl.Link, have *tc.Qdisc) error {
	var d resource.Drift
	if !l.some() {
		d.Want("kind", "tbf", have.Kind)
		if have.Kind == "tbf" {
			l.wantBucket(&d, dev, have.Bucket)
			l.wantQueue(&d, dev, have.Bucket.Limit)
		}
		return d.Err()
	}
	d.Want("kind", "htb", have.Kind)
	if have.Kind != "htb" {
		return d.Err()
	}
	d.Want("default class", fmt.Sprintf(":%x", l.others()), fmt.Sprintf(":%x", have.Default))
	class := have.Handle | 1
	classes, err := tc.Classes(ns, dev.Index)
	d.Add(err)
	var found *tc.Qdisc
	for _, c := range classes {
		if c.Kind == "htb" && c.Handle == class {
			found = c
		}
	}
	if found == nil {
		d.Add(spec.Missing(fmt.Sprintf("class %x:1", class>>16)))
		return d.Err()
	}
	l.wantBucket(&d, dev, found.Bucket)
	queue, err := tc.QdiscAt(ns, dev.Index, class)
	d.Add(err)
	switch {
	case queue == nil || queue.Kind != "bfifo":
		d.Add(spec.DiffersBy("queue", "class %x:1 has no queue of kind bfifo", class>>16))
	default:
		l.wantQueue(&d, dev, queue.Bucket.Limit)
	}
	l.wantFilters(&d, ns, dev)
	return d.Err()
}

// wantBucket compares rate and burst. The kernel stores the burst as a rounded time, and other programs round it
// before that. A burst that was raised to a packet's length depends on the MTU at that time.
func (l Limit) wantBucket(d *resource.Drift, dev *rtnl.Link, have tc.TokenBucket) {
	d.Want("rate", fmt.Sprint(l.Rate*8, "bit"), fmt.Sprint(have.Rate*8, "bit"))
	if have.Rate != l.Rate {
		return // the same burst takes another time
	}
	want := l.fitted(dev).Burst
	ticks := tc.BurstTicks(l.Rate, want, l.some())
	off := int32(have.Ticks - ticks)
	if want > l.Burst && off >= 0 || max(off, -off) <= int32(min(32+ticks/1000, 1<<30)) {
		return
	}
	d.Want("burst", fmt.Sprint(want, "b"), fmt.Sprintf("%.0fb", float64(have.Ticks)*64*float64(have.Rate)/1e9))
}

func (l Limit) wantQueue(d *resource.Drift, dev *rtnl.Link, have uint32) {
	if want := l.fitted(dev).Queue; want == l.Queue || have < want {
		d.Want("limit", fmt.Sprint(want, "b"), fmt.Sprint(have, "b"))
	}
}

// wantFilters compares the filters of htb. There must be no others.
func (l Limit) wantFilters(d *resource.Drift, ns *kernel.NS, dev *rtnl.Link) {
	have, err := tc.Filters(ns, dev.Index, ourHandle)
	if err != nil {
		d.Add(err)
		return
	}
	want := l.filters()
	names := append(l.Only[:len(l.Only):len(l.Only)], l.Except...)
	n := 0
	for i, f := range want {
		there := false
		for _, g := range have {
			there = there || f.Matches(g)
		}
		if !there {
			d.Add(spec.Missing(fmt.Sprintf("the filter of %v", names[i])))
			continue
		}
		n++
	}
	if len(have) > n {
		d.Add(spec.DiffersBy("filters", "there are %d filters, want %d", len(have), len(want)))
	}
}
