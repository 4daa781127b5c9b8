package rtnl

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// An Addr is an address of a link.
type Addr struct {
	Prefix        netip.Prefix // the address with its subnet's length
	Scope         uint8
	NoDAD         bool // usable at once, without asking whether another host has it
	NoPrefixRoute bool // made without the route to its subnet
	Tentative     bool // not usable yet: the kernel is still asking
	DADFailed     bool // another host has it
	NoBroadcast   bool // an IPv4 address that has none, though its subnet would give it one
	Dynamic       bool // with an end: of a lease, or of a router's advertisement
	Temporary     bool // made by the kernel beside another one, to be exchanged soon (RFC 8981)
}

// Addrs returns the addresses of the link with that index. The error is ErrNoLink if there is no such link; before
// Linux 4.20 there is no error.
func Addrs(ns *kernel.NS, index int) ([]Addr, error) {
	msgs, err := addrs(ns, index)
	var list []Addr
	for _, m := range msgs {
		list = append(list, parseAddr(m))
	}
	return list, err
}

// A LinkAddr is an address and the index of its link.
type LinkAddr struct {
	Link int
	Addr
}

// HasAddr reports whether one of the addresses of links is ip, whatever its subnet.
func HasAddr[A interface{ ip() netip.Addr }](list []A, ip netip.Addr) bool {
	return slices.ContainsFunc(list, func(a A) bool { return a.ip() == ip })
}

func (a Addr) ip() netip.Addr { return a.Prefix.Addr() }

// AllAddrs returns the addresses of all links.
func AllAddrs(ns *kernel.NS) (list []LinkAddr, err error) {
	msgs, err := addrs(ns, 0)
	for _, m := range msgs {
		list = append(list, LinkAddr{int(netlink.U32(m[4:])), parseAddr(m)})
	}
	return list, err
}

// addrs are the kernel's words for the addresses of a link; zero: of all.
func addrs(ns *kernel.NS, index int) (of [][]byte, err error) {
	// Before Linux 4.20 the kernel does not look at the index.
	req := newRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP, unix.IfAddrmsg{Index: uint32(index)})
	msgs, err := Dump(ns, req, unix.RTM_NEWADDR)
	for _, m := range msgs {
		if len(m) >= unix.SizeofIfAddrmsg && (index == 0 || int(netlink.U32(m[4:])) == index) {
			of = append(of, m)
		}
	}
	if netlink.Is(err, unix.ENODEV) {
		return nil, NoLink{fmt.Sprintf("#%d", index)}
	}
	return of, netlink.About(err, "list addresses")
}

func parseAddr(m []byte) Addr {
	a := Addr{Scope: m[3]}
	flags := uint32(m[2])
	var local, address netip.Addr
	broadcast := false
	netlink.EachAttr(m[unix.SizeofIfAddrmsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(v)
		case unix.IFA_ADDRESS: // of IPv4, the peer's where there is one
			address, _ = netip.AddrFromSlice(v)
		case unix.IFA_BROADCAST:
			broadcast = true
		case unix.IFA_FLAGS:
			flags = netlink.U32(v)
		}
	})
	if !local.IsValid() {
		local = address
	}
	a.Prefix = netip.PrefixFrom(local, int(m[1]))
	a.NoDAD, a.NoPrefixRoute = flags&unix.IFA_F_NODAD != 0, flags&unix.IFA_F_NOPREFIXROUTE != 0
	a.Tentative, a.DADFailed = flags&unix.IFA_F_TENTATIVE != 0, flags&unix.IFA_F_DADFAILED != 0
	a.NoBroadcast = local.Is4() && !broadcast
	a.Dynamic, a.Temporary = flags&unix.IFA_F_PERMANENT == 0, local.Is6() && flags&unix.IFA_F_TEMPORARY != 0
	return a
}

// AddAddr adds an address to a link. The error is EEXIST if the link has the address.
func AddAddr(ns *kernel.NS, index int, a Addr) error {
	err := Tell(ns, addrRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, index, a))
	return netlink.About(err, "add address %v", a.Prefix)
}

// PreferAddr sets how long the kernel still chooses an existing IPv6 address as the source of new connections. A
// negative duration means for ever. Existing connections continue. The address itself has no end of life, because the
// kernel would remove an address with one when its link goes down.
func PreferAddr(ns *kernel.NS, index int, a Addr, left time.Duration) error {
	const forever = 0xffffffff
	preferred := uint32(forever)
	if left >= 0 {
		preferred = uint32(min(left/time.Second, forever-1))
	}
	req := addrRequest(unix.RTM_NEWADDR, unix.NLM_F_REPLACE, index, a)
	cacheInfo := [4]uint32{preferred, forever} // struct ifa_cacheinfo
	req.Attr(unix.IFA_CACHEINFO, netlink.Struct(cacheInfo)...)
	return netlink.About(Tell(ns, req), "prefer address %v for %v", a.Prefix, left)
}

// DelAddr deletes an address from a link. It is no error if the link does not have it.
func DelAddr(ns *kernel.NS, index int, a Addr) error {
	err := Tell(ns, addrRequest(unix.RTM_DELADDR, 0, index, a))
	return netlink.About(netlink.Except(err, unix.EADDRNOTAVAIL, unix.ENODEV), "delete address %v", a.Prefix)
}

func addrRequest(proto, flags, index int, a Addr) *netlink.Request {
	ip := a.Prefix.Addr()
	req := newRequest(proto, flags|unix.NLM_F_ACK, unix.IfAddrmsg{
		Family: Family(ip), Prefixlen: uint8(a.Prefix.Bits()), Scope: a.Scope, Index: uint32(index),
	})
	req.Attr(unix.IFA_LOCAL, ip.AsSlice()...)
	req.Attr(unix.IFA_ADDRESS, ip.AsSlice()...)
	var how uint32
	if a.NoDAD {
		how |= unix.IFA_F_NODAD
	}
	if a.NoPrefixRoute {
		how |= unix.IFA_F_NOPREFIXROUTE
	}
	req.Opt32(unix.IFA_FLAGS, how)
	// The kernel works out no broadcast address; a /31 and a /32 have none (RFC 3021).
	if ip.Is4() && a.Prefix.Bits() < 31 && !a.NoBroadcast {
		b := ip.As4()
		for i := a.Prefix.Bits(); i < 32; i++ {
			b[i/8] |= 0x80 >> (i % 8)
		}
		req.Attr(unix.IFA_BROADCAST, b[:]...)
	}
	return req
}
