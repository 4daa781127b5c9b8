// Package conntrack deletes flows from the kernel's connection tracking that would take another way now. It reads no
// rules of the packet filter.
package conntrack

import (
	"cmp"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// A UDPFlow is a published UDP port, or a range of ports, whose destination has changed.
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

// ForgetUDP deletes the UDP flows to these ports that would not go to the same destination now. Without this, a
// client that never changes its source port would keep the old entry alive for ever. Flows of others that only pass
// through the host to such a port stay.
func ForgetUDP(ns *kernel.NS, flows []UDPFlow) error {
	count, err := flowCount(ns)
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
		filters, ok := deletions(ns, f)
		if !ok || f.many() || len(filters)*(deleteCost+count) > readCost+count || deleteFlows(ns, filters) != nil {
			read[0] = append(read[0], f)
		}
	}
	if count < few && (len(read[0])+len(read[1]) == 0 || !mayKnow(ns, aboutPorts(slices.Concat(read[:]...)))) {
		return nil
	}
	for v6, flows := range read {
		// Several ports are read in one go while there are few flows, else each by itself, for the kernel
		// to pick its flows: copying 50,000 takes 200 ms.
		if len(flows) > 1 && count < few {
			errs = append(errs, forget(ns, v6 == 1, tuple{}, tuple{}, flows))
			continue
		}
		for _, f := range flows {
			orig, reply := f.filter()
			errs = append(errs, forget(ns, v6 == 1, orig, reply, []UDPFlow{f}))
		}
	}
	return errors.Join(errs...)
}

// mayKnow reports whether conntrack has a flow that is meant, as far as its file in /proc says, which takes 0.5 ms: it
// is read without a lock on each bucket. Where there is no such file, it may.
func mayKnow(ns *kernel.NS, meant func(line string) bool) bool {
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

// ForgetSources deletes the flows that began from an address of these subnets and are not translated. Before a rule
// checked source addresses, any host could have sent those packets.
func ForgetSources(ns *kernel.NS, subnets []netip.Prefix) error {
	return forgetFrom(ns, subnets, func(src, dst, from, to netip.Addr) bool { return src == to && dst == from })
}

// ForgetAddresses deletes all flows that began from one of these addresses, which are new on this host.
func ForgetAddresses(ns *kernel.NS, addrs []netip.Addr) error {
	var single []netip.Prefix
	for _, a := range addrs {
		single = append(single, netip.PrefixFrom(a, a.BitLen()))
	}
	return forgetFrom(ns, single, func(_, _, _, _ netip.Addr) bool { return true })
}

// forgetFrom deletes the flows from an address of some subnets that are meant, by the addresses of what was sent (src,
// dst) and of its answer (from, to).
func forgetFrom(ns *kernel.NS, subnets []netip.Prefix, meant func(src, dst, from, to netip.Addr) bool) error {
	count, err := flowCount(ns)
	if len(subnets) == 0 || err == nil && count == 0 {
		return nil
	}
	in := func(a netip.Addr) bool {
		return slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	if err == nil && count < few && !mayKnow(ns, func(line string) bool {
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
		err := eachFlow(ns, v6, tuple{}, tuple{}, func(b []byte) {
			src, dst := ctAddrs(netlink.Attr(b, ctaTupleOrig))
			from, to := ctAddrs(netlink.Attr(b, ctaTupleReply))
			if in(src) && meant(src, dst, from, to) {
				forged = append(forged, flowOf(b))
			}
		})
		errs = append(errs, err, forgetEach(ns, v6, forged))
	}
	return errors.Join(errs...)
}

// deletions are filters that say all that f means, for a kernel that deletes by filter: for any address of
// the host, one each.
func deletions(ns *kernel.NS, f UDPFlow) (filters [][2]tuple, ok bool) {
	orig, reply := f.filter()
	if f.Gone || !f.Host.IsUnspecified() {
		return [][2]tuple{{orig, reply}}, true
	}
	routes, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: rtnl.IPv4, Table: unix.RT_TABLE_LOCAL})
	if err != nil {
		return nil, false
	}
	for _, r := range routes {
		switch {
		case r.Type != rtnl.Local || r.Dst.Addr().IsLoopback() && r.Dst.Bits() < 32:
		case r.Dst.Bits() < 32:
			return nil, false
		default:
			filters = append(filters, [2]tuple{{dst: netip.AddrPortFrom(r.Dst.Addr(), f.Port)}, reply})
		}
	}
	return filters, true
}
