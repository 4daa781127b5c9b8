package kernel

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Numbers of ctnetlink that x/sys lacks. The bits of a filter stand in no header of the kernel.
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	ctaTupleOrig, ctaTupleReply = 1, 2
	ctaID                       = 12
	ctaZone                     = 18
	ctaFilter                   = 25 // holds one word of bits for each of the two tuples, 1 and 2

	ctaIP, ctaProto                     = 1, 2
	ctaProtoNum, ctaSrcPort, ctaDstPort = 1, 2, 3

	bySrc, byDst                  = 1 << 0, 1 << 1
	byProto, bySrcPort, byDstPort = 1 << 3, 1 << 4, 1 << 5
)

// A tuple is what flows have in common in one direction. Zero fields match any.
type tuple struct{ src, dst netip.AddrPort }

// bits are the filter's bits for the fields that are given. IPv6 addresses are left out: the kernel's filter
// takes those for a match that differ.
func (t tuple) bits() (bits uint32) {
	for i, p := range []netip.AddrPort{t.src, t.dst} {
		if p.Addr().Is4() {
			bits |= bySrc<<i | byProto
		}
		if p.Port() != 0 {
			bits |= bySrcPort<<i | byProto
		}
	}
	return bits
}

func (b *buffer) tuple(typ uint16, t tuple) {
	b.nest(typ, func() {
		b.nest(ctaIP, func() {
			for i, p := range []netip.AddrPort{t.src, t.dst} {
				if a := p.Addr(); a.Is4() {
					b.attr(uint16(1+i), a.AsSlice()...)
				} else if a.Is6() {
					b.attr(uint16(3+i), a.AsSlice()...)
				}
			}
		})
		b.nest(ctaProto, func() {
			b.attr(ctaProtoNum, unix.IPPROTO_UDP)
			for i, p := range []netip.AddrPort{t.src, t.dst} {
				if p.Port() != 0 {
					b.attr(uint16(ctaSrcPort+i), binary.BigEndian.AppendUint16(nil, p.Port())...)
				}
			}
		})
	})
}

// parseTuple reads a tuple of UDP; of another protocol it is empty.
func parseTuple(b []byte) (t tuple) {
	if !slices.Equal(Attr(b, ctaProto, ctaProtoNum), []byte{unix.IPPROTO_UDP}) {
		return t
	}
	end := func(a netip.Addr, i uint16) netip.AddrPort {
		port := Attr(b, ctaProto, ctaSrcPort+i)
		if len(port) != 2 {
			return netip.AddrPort{}
		}
		return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port))
	}
	src, dst := ctAddrs(b)
	return tuple{end(src, 0), end(dst, 1)}
}

func (t tuple) matches(u tuple) bool {
	for _, p := range [][2]netip.AddrPort{{t.src, u.src}, {t.dst, u.dst}} {
		if p[0].Addr().IsValid() && p[0].Addr() != p[1].Addr() || p[0].Port() != 0 && p[0].Port() != p[1].Port() {
			return false
		}
	}
	return true
}

func ctFamily(v6 bool) []byte {
	if v6 {
		return nfgenmsg(unix.AF_INET6)
	}
	return nfgenmsg(unix.AF_INET)
}

// filter appends a filter by both tuples.
func (r *requests) filter(orig, reply tuple) {
	if orig.bits()|reply.bits() == 0 {
		return // all flows of the family
	}
	r.tuple(ctaTupleOrig, orig)
	r.tuple(ctaTupleReply, reply)
	r.nest(ctaFilter, func() {
		for i, t := range []tuple{orig, reply} {
			// In the byte order of this machine, unlike all else.
			r.attr(uint16(1+i), binary.NativeEndian.AppendUint32(nil, t.bits())...)
		}
	})
}

// A UDPFlow is a published UDP port, or a range of them, that leads elsewhere than before.
type UDPFlow struct {
	Host       netip.Addr     // of the host; unspecified: any of its addresses
	Port, Last uint16         // Last is 0 or Port for one port
	To         netip.AddrPort // where it leads now or, where Gone, led; without a port, to the same number
	Gone       bool
}

// filter is what the flows have in common. It cannot say ranges: see of.
func (f UDPFlow) filter() (orig, reply tuple) {
	port := f.Port
	if f.many() {
		port = 0
	}
	orig.dst = netip.AddrPortFrom(netip.Addr{}, port)
	if f.Gone {
		reply.src = f.To
	} else if !f.Host.IsUnspecified() {
		orig.dst = netip.AddrPortFrom(f.Host, port)
	}
	return orig, reply
}

func (f UDPFlow) many() bool { return f.Last > f.Port }

// of reports whether f means a flow with these tuples.
func (f UDPFlow) of(orig, reply tuple) bool {
	o, r := f.filter()
	port := orig.dst.Port()
	if f.many() && f.Gone && !f.leads(orig, reply) { // a port among them that leads elsewhere is not theirs
		return false
	}
	return o.matches(orig) && r.matches(reply) && f.Port <= port && port <= max(f.Port, f.Last)
}

// leads reports whether a flow goes where f leads.
func (f UDPFlow) leads(orig, reply tuple) bool {
	return reply.src.Addr() == f.To.Addr() && reply.src.Port() == cmp.Or(f.To.Port(), orig.dst.Port())
}

// What conntrack's calls take, as measured with 262,144 buckets, in µs: reading locks every bucket, and
// deleting looks into those that are not empty.
const (
	readCost   = 15000
	deleteCost = 300
)

// few are so many flows that they are copied sooner than the kernel has picked some of them.
const few = 5000

// ForgetUDP makes conntrack forget what it knows of UDP to these ports that would not go now where it went:
// a client that never changes its port would keep an entry alive for ever. Others' flows that only pass
// through to such a port stay.
func (ns *NS) ForgetUDP(flows []UDPFlow) error {
	count, err := ns.flowCount()
	if len(flows) == 0 || err == nil && count == 0 {
		return nil
	}
	var errs []error
	var read [2][]UDPFlow // what has to be read, by family
	for _, f := range flows {
		if f.Host.Is6() {
			// The kernel's filter takes IPv6 addresses for a match that differ.
			read[1] = append(read[1], f)
			continue
		}
		filters, ok := ns.deletions(f)
		if !ok || f.many() || len(filters)*(deleteCost+count) > readCost+count || ns.deleteFlows(filters) != nil {
			read[0] = append(read[0], f)
		}
	}
	if count < few && (len(read[0])+len(read[1]) == 0 || !ns.mayKnow(aboutPorts(slices.Concat(read[:]...)))) {
		return nil
	}
	for v6, flows := range read {
		// Several ports are read in one go while there are few flows, else each by itself, for the kernel
		// to pick its flows: copying 50,000 takes 200 ms.
		if len(flows) > 1 && count < few {
			errs = append(errs, ns.forget(v6 == 1, tuple{}, tuple{}, flows))
			continue
		}
		for _, f := range flows {
			orig, reply := f.filter()
			errs = append(errs, ns.forget(v6 == 1, orig, reply, []UDPFlow{f}))
		}
	}
	return errors.Join(errs...)
}

// mayKnow reports whether conntrack has a flow that is meant, as far as its file in /proc says, which takes 0.5 ms: it
// is read without a lock on each bucket. Where there is no such file, it may.
func (ns *NS) mayKnow(meant func(line string) bool) bool {
	var text []byte
	if err := ns.Do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/nf_conntrack")
		return err
	}); err != nil {
		return true
	}
	for line := range strings.Lines(string(text)) {
		if meant(line) {
			return true
		}
	}
	return false
}

// sent is what a line of conntrack's file says of what was sent, which comes before the same of its answer.
func sent(line, key string) string {
	_, after, _ := strings.Cut(line, " "+key+"=")
	word, _, _ := strings.Cut(after, " ")
	return word
}

// aboutPorts tells the lines of conntrack's file that are about UDP to one of the ports.
func aboutPorts(flows []UDPFlow) func(line string) bool {
	return func(line string) bool {
		if !strings.Contains(line, " udp ") {
			return false
		}
		port, err := strconv.ParseUint(sent(line, "dport"), 10, 16)
		return err != nil || slices.ContainsFunc(flows,
			func(f UDPFlow) bool { return f.Port <= uint16(port) && uint16(port) <= max(f.Port, f.Last) })
	}
}

// ForgetSources makes conntrack forget what was begun in the name of addresses of these subnets and is not translated:
// before there was a rule that asks whose such a packet is, anybody could have sent it.
func (ns *NS) ForgetSources(subnets []netip.Prefix) error {
	count, err := ns.flowCount()
	if len(subnets) == 0 || err == nil && count == 0 {
		return nil
	}
	in := func(a netip.Addr) bool {
		return slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	if err == nil && count < few && !ns.mayKnow(func(line string) bool {
		a, err := netip.ParseAddr(sent(line, "src"))
		return err != nil || in(a)
	}) {
		return nil
	}
	var errs []error
	for _, v6 := range []bool{false, true} {
		if !slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return p.Addr().Is6() == v6 }) {
			continue
		}
		var forged []flow
		err := ns.flows(v6, tuple{}, tuple{}, func(b []byte) {
			src, dst := ctAddrs(Attr(b, ctaTupleOrig))
			if from, to := ctAddrs(Attr(b, ctaTupleReply)); in(src) && src == to && dst == from {
				forged = append(forged, flowOf(b))
			}
		})
		errs = append(errs, err, ns.forgetEach(v6, forged))
	}
	return errors.Join(errs...)
}

// ctAddrs are the addresses of a tuple of any protocol.
func ctAddrs(b []byte) (src, dst netip.Addr) {
	end := func(i uint16) netip.Addr {
		v := Attr(b, ctaIP, 1+i)
		if v == nil {
			v = Attr(b, ctaIP, 3+i)
		}
		a, _ := netip.AddrFromSlice(v)
		return a
	}
	return end(0), end(1)
}

// flowCount is how many flows conntrack knows of in this namespace.
func (ns *NS) flowCount() (int, error) {
	s, err := ns.Sysctl("net/netfilter/nf_conntrack_count")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(s)
}

// deletions are filters that say all that f means, for a kernel that deletes by filter: for any address of
// the host, one each.
func (ns *NS) deletions(f UDPFlow) (filters [][2]tuple, ok bool) {
	orig, reply := f.filter()
	if f.Gone || !f.Host.IsUnspecified() {
		return [][2]tuple{{orig, reply}}, true
	}
	routes, err := ns.Routes(RouteFilter{Family: IPv4, Table: unix.RT_TABLE_LOCAL})
	if err != nil {
		return nil, false
	}
	for _, r := range routes {
		switch {
		case r.Type != Local || r.Dst.Addr().IsLoopback() && r.Dst.Bits() < 32:
		case r.Dst.Bits() < 32:
			return nil, false
		default:
			filters = append(filters, [2]tuple{{dst: netip.AddrPortFrom(r.Dst.Addr(), f.Port)}, reply})
		}
	}
	return filters, true
}

// deleteFlows deletes by filters, which takes Linux 6.8. Before, a filter is an incomplete tuple, which is
// an error, and never "all".
func (ns *NS) deleteFlows(filters [][2]tuple) error {
	c, err := ns.conn(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range filters {
		r := c.requests()
		r.begin(ctDelete, unix.NLM_F_ACK, ctFamily(false)...)
		r.filter(f[0], f[1])
		if err := c.confirm(r); err != nil {
			return err
		}
	}
	return nil
}

// A flow is one that conntrack knows of, as it is named to delete it.
type flow struct{ orig, id, zone []byte }

func flowOf(b []byte) flow {
	return flow{slices.Clone(Attr(b, ctaTupleOrig)), slices.Clone(Attr(b, ctaID)), slices.Clone(Attr(b, ctaZone))}
}

// flows calls fn with the attributes of each flow that a filter lets through, which the kernel has picked from 5.8 on.
func (ns *NS) flows(v6 bool, orig, reply tuple, fn func(attrs []byte)) error {
	c, err := ns.conn(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.requests()
	r.begin(ctGet, unix.NLM_F_DUMP, ctFamily(v6)...)
	r.filter(orig, reply)
	err = c.dump(r, func(body []byte) {
		if len(body) >= 4 {
			fn(body[4:])
		}
	})
	if err != nil {
		return fmt.Errorf("list conntrack: %w", err)
	}
	return nil
}

// forgetEach deletes flows. One that has ended meanwhile is no error.
func (ns *NS) forgetEach(v6 bool, flows []flow) error {
	c, err := ns.conn(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range flows {
		r := c.requests()
		r.begin(ctDelete, unix.NLM_F_ACK, ctFamily(v6)...)
		r.attr(ctaTupleOrig|unix.NLA_F_NESTED, f.orig...)
		r.attr(ctaID, f.id...)
		if f.zone != nil {
			r.attr(ctaZone, f.zone...)
		}
		if err := c.confirm(r); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete from conntrack: %w", err)
		}
	}
	return nil
}

// forget deletes one by one, of what a filter lets through, what belongs to the flows.
func (ns *NS) forget(v6 bool, orig, reply tuple, flows []UDPFlow) error {
	type entry struct {
		orig, reply tuple
		flow
	}
	var all []entry
	err := ns.flows(v6, orig, reply, func(b []byte) {
		e := entry{orig: parseTuple(Attr(b, ctaTupleOrig)), reply: parseTuple(Attr(b, ctaTupleReply))}
		if e.orig.dst.IsValid() && slices.ContainsFunc(flows, func(f UDPFlow) bool { return f.of(e.orig, e.reply) }) {
			e.flow = flowOf(b)
			all = append(all, e)
		}
	})
	if err != nil {
		return err
	}

	local := map[netip.Addr]bool{}
	var unanswered error
	stale := func(e entry, f UDPFlow) bool {
		if !f.of(e.orig, e.reply) || !f.Gone && f.leads(e.orig, e.reply) {
			return false
		}
		if f.Gone || !f.Host.IsUnspecified() {
			return true
		}
		dst := e.orig.dst.Addr()
		if _, known := local[dst]; !known {
			route, err := ns.RouteTo(dst)
			local[dst] = err == nil && route.Type == Local
			if Unanswered(err) { // else there is no route, so that it is no address of the host's
				unanswered = fmt.Errorf("ask whether %v is an address of this host: %w", dst, err)
			}
		}
		return local[dst]
	}
	var gone []flow
	for _, e := range all {
		if slices.ContainsFunc(flows, func(f UDPFlow) bool { return stale(e, f) }) {
			gone = append(gone, e.flow)
		}
	}
	if unanswered != nil {
		return unanswered
	}
	return ns.forgetEach(v6, gone)
}

// confirm sends one request that asks for an acknowledgement, and reads it.
func (c *conn) confirm(r *requests) error {
	if err := c.send(r); err != nil {
		return err
	}
	var failed error
	err := c.receive(r.first, func(m message) bool {
		if m.typ == unix.NLMSG_ERROR {
			failed = m.err()
			return false
		}
		return true
	})
	return errors.Join(err, failed)
}
