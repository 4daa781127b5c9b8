package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
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

func ctFamily(v6 bool) []byte {
	if v6 {
		return netlink.NetfilterHeader(unix.AF_INET6)
	}
	return netlink.NetfilterHeader(unix.AF_INET)
}

// flowCount is how many flows conntrack knows of in this namespace.
func flowCount(ns *kernel.NS) (int, error) {
	s, err := procsys.Get(ns, "net/netfilter/nf_conntrack_count")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(s)
}

// deleteFlows deletes by filters, which takes Linux 6.8. Before, a filter is an incomplete tuple, which is
// an error, and never "all".
func deleteFlows(ns *kernel.NS, filters [][2]tuple) error {
	for _, f := range filters {
		err := tell(ns, ctDelete, 0, false, func(r *netlink.Requests) { putFilter(r, f[0], f[1]) })
		if err != nil {
			return err
		}
	}
	return nil
}

// A flow is one that conntrack knows of, as it is named to delete it.
type flow struct{ orig, id, zone []byte }

func flowOf(b []byte) flow {
	return flow{slices.Clone(netlink.Attr(b, ctaTupleOrig)), slices.Clone(netlink.Attr(b, ctaID)),
		slices.Clone(netlink.Attr(b, ctaZone))}
}

// eachFlow calls fn with the attributes of each flow that a filter lets through, which the kernel has picked from 5.8
// on.
func eachFlow(ns *kernel.NS, v6 bool, orig, reply tuple, fn func(attrs []byte)) error {
	c, err := ns.Conn(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	r := c.Requests()
	r.Begin(ctGet, unix.NLM_F_DUMP, ctFamily(v6)...)
	putFilter(r, orig, reply)
	err = c.Dump(r, func(body []byte) {
		if len(body) >= 4 {
			fn(body[4:])
		}
	})
	return netlink.About(err, "list conntrack")
}

// forgetEach deletes flows. One that has ended meanwhile is no error.
func forgetEach(ns *kernel.NS, v6 bool, flows []flow) error {
	for _, f := range flows {
		err := tell(ns, ctDelete, 0, v6, func(r *netlink.Requests) {
			r.Attr(ctaTupleOrig|unix.NLA_F_NESTED, f.orig...)
			r.Attr(ctaID, f.id...)
			r.OptAttr(ctaZone, f.zone...)
		})
		if err = netlink.Except(err, unix.ENOENT); err != nil {
			return netlink.About(err, "delete from conntrack")
		}
	}
	return nil
}

// forget deletes one by one, of what a filter lets through, what belongs to the flows.
func forget(ns *kernel.NS, v6 bool, orig, reply tuple, flows []UDPFlow) error {
	type entry struct {
		orig, reply tuple
		flow
	}
	var all []entry
	err := eachFlow(ns, v6, orig, reply, func(b []byte) {
		e := entry{orig: parseTuple(netlink.Attr(b, ctaTupleOrig)), reply: parseTuple(netlink.Attr(b, ctaTupleReply))}
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
			route, err := rtnl.RouteTo(ns, dst)
			local[dst] = err == nil && route.Type == rtnl.Local
			if kernel.Unanswered(err) { // else there is no route, so that it is no address of the host's
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
	return forgetEach(ns, v6, gone)
}

// tell sends a request that changes flows, with the attributes that put appends, and reads the acknowledgement.
func tell(ns *kernel.NS, typ, flags uint16, v6 bool, put func(*netlink.Requests)) error {
	c, err := ns.Conn(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	r := c.Requests()
	r.Begin(typ, flags|unix.NLM_F_ACK, ctFamily(v6)...)
	put(r)
	if err := c.Send(r); err != nil {
		return err
	}
	var failed error
	err = c.Receive(r.First, func(m netlink.Message) bool {
		if m.Type == unix.NLMSG_ERROR {
			failed = m.Err()
			return false
		}
		return true
	})
	return errors.Join(err, failed)
}
