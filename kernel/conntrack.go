package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

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
			bits |= bySrc << i
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
					b.attr(uint16(ctaSrcPort+i), NFTKey(p.Port())...)
				}
			}
		})
	})
}

// parseTuple reads a tuple of UDP; of another protocol it is empty.
func parseTuple(b []byte) (t tuple) {
	if !slices.Equal(attr(b, ctaProto, ctaProtoNum), []byte{unix.IPPROTO_UDP}) {
		return t
	}
	end := func(i uint16) netip.AddrPort {
		v := attr(b, ctaIP, 1+i)
		if v == nil {
			v = attr(b, ctaIP, 3+i)
		}
		a, _ := netip.AddrFromSlice(v)
		port := attr(b, ctaProto, ctaSrcPort+i)
		if len(port) != 2 {
			return netip.AddrPort{}
		}
		return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port))
	}
	return tuple{end(0), end(1)}
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
	r.tuple(ctaTupleOrig, orig)
	r.tuple(ctaTupleReply, reply)
	r.nest(ctaFilter, func() {
		for i, t := range []tuple{orig, reply} {
			// In the byte order of this machine, unlike all else.
			r.attr(uint16(1+i), binary.NativeEndian.AppendUint32(nil, t.bits())...)
		}
	})
}

// ForgetUDP makes conntrack forget what it knows of UDP that was sent to a port of this host, at host or,
// where that is unspecified, at any address of the host, and that goes elsewhere than to.
func (ns *NS) ForgetUDP(host netip.Addr, port uint16, to netip.AddrPort) error {
	orig := tuple{dst: netip.AddrPortFrom(host, port)}
	if host.IsUnspecified() {
		orig.dst = netip.AddrPortFrom(netip.Addr{}, port)
	}
	local := map[netip.Addr]bool{}
	return ns.forget(host.Is6(), orig, tuple{}, func(o, r tuple) bool {
		dst := o.dst.Addr()
		if r.src == to {
			return false
		}
		// Others' traffic to that port only passes through here.
		if _, known := local[dst]; !known && host.IsUnspecified() {
			r, err := ns.RouteTo(dst)
			local[dst] = err == nil && r.Type == Local
		}
		return local[dst] || dst == host
	})
}

// ForgetUDPTo makes conntrack forget UDP that was sent to a port and translated to another address.
func (ns *NS) ForgetUDPTo(port uint16, to netip.AddrPort) error {
	orig, reply := tuple{dst: netip.AddrPortFrom(netip.Addr{}, port)}, tuple{src: to}
	c, err := ns.conn(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	if to.Addr().Is4() {
		// From 6.8 on the kernel deletes by a filter. Before, this is an incomplete tuple, which is an
		// error, and never "delete all".
		c.mu.Lock()
		r := c.requests()
		r.begin(ctDelete, unix.NLM_F_ACK, ctFamily(false)...)
		r.filter(orig, reply)
		err = c.confirm(r)
		c.mu.Unlock()
		if err == nil {
			return nil
		}
	}
	return ns.forget(to.Addr().Is6(), orig, reply, func(tuple, tuple) bool { return true })
}

// forget asks for the flows that match, which the kernel has picked from 5.8 on, and deletes one by one
// those that which wants. The whole table is never copied: at 50,000 flows that takes 200 ms.
func (ns *NS) forget(v6 bool, orig, reply tuple, which func(orig, reply tuple) bool) error {
	c, err := ns.conn(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	type found struct {
		orig, reply       tuple
		rawOrig, id, zone []byte
	}
	var all []found
	c.mu.Lock()
	r := c.requests()
	r.begin(ctGet, unix.NLM_F_DUMP, ctFamily(v6)...)
	r.filter(orig, reply)
	err = c.dump(r, func(body []byte) {
		if len(body) < 4 {
			return
		}
		b := body[4:]
		f := found{orig: parseTuple(attr(b, ctaTupleOrig)), reply: parseTuple(attr(b, ctaTupleReply))}
		if orig.matches(f.orig) && reply.matches(f.reply) && f.orig.dst.IsValid() {
			f.rawOrig, f.id, f.zone = slices.Clone(attr(b, ctaTupleOrig)), slices.Clone(attr(b, ctaID)), slices.Clone(attr(b, ctaZone))
			all = append(all, f)
		}
	})
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("list conntrack: %w", err)
	}
	all = slices.DeleteFunc(all, func(f found) bool { return !which(f.orig, f.reply) })

	c.mu.Lock()
	defer c.mu.Unlock()
	for f := range slices.Values(all) {
		r := c.requests()
		r.begin(ctDelete, unix.NLM_F_ACK, ctFamily(v6)...)
		r.attr(ctaTupleOrig|unix.NLA_F_NESTED, f.rawOrig...)
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
