package resource

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// LinkLocal gives a link of this program its IPv6 link-local address at once. It is the address that the kernel would
// derive from the MAC. No duplicate detection is needed, because the MAC is unique to this machine and link.
//
// The kernel adds its own address a second or two after the link has a carrier. Until then, it resolves no neighbour
// on that link for forwarded packets, so packets to a new container would be lost. Call LinkLocal before the link has
// a carrier; the kernel then adds no other address. A link without IPv6 needs none.
func LinkLocal(ns *kernel.NS, index int, mac net.HardwareAddr) {
	if len(mac) != 6 {
		return
	}
	err := rtnl.AddAddr(ns, index, rtnl.Addr{Prefix: LinkLocalOf(mac), Scope: unix.RT_SCOPE_LINK, NoDAD: true})
	if err != nil && !errors.Is(err, fs.ErrExist) {
		slog.Debug("the kernel makes the link-local address, or there is none", "link", index, "error", err)
	}
}

// LinkLocalOf returns the link-local address that the kernel derives from a MAC address of six bytes.
func LinkLocalOf(mac net.HardwareAddr) netip.Prefix {
	a := netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe,
		13: mac[3], 14: mac[4], 15: mac[5]})
	return netip.PrefixFrom(a, 64)
}

// OwnLinkLocal reports whether an address may be the link-local address that the kernel has given the link. If the
// kernel derives addresses from a secret (net.ipv6.conf.LINK.addr_gen_mode), any link-local address may be.
func OwnLinkLocal(ns *kernel.NS, l *rtnl.Link, p netip.Prefix) bool {
	if !p.Addr().Is6() || !p.Addr().IsLinkLocalUnicast() {
		return false
	}
	if len(l.MAC) == 6 && p == LinkLocalOf(l.MAC) {
		return true
	}
	mode, err := procsys.Get(ns, "net/ipv6/conf/"+l.Name+"/addr_gen_mode")
	return err != nil || mode != "0"
}
