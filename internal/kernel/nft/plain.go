package nft

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Rules as other programs write them, to be read by these.

// PlainRule returns a rule with exactly this comment, or without one if comment is "".
func PlainRule(comment string) *Rule { return &Rule{comment: comment, plain: true} }

// DNATTo appends "dnat to address:port". Port 0 keeps the packet's port.
func (r *Rule) DNATTo(to netip.AddrPort) *Rule {
	r.constant(reg(0), to.Addr().AsSlice())
	port := uint32(0)
	if to.Port() != 0 {
		port = reg(4)
		r.constant(port, Key(to.Port()))
	}
	return r.nat(unix.NFT_NAT_DNAT, to.Addr().Is6(), port)
}

// Ether appends "ether saddr mac".
func (r *Rule) Ether(mac net.HardwareAddr) *Rule { return r.Is(frame(6, 6), mac) }

// Goto appends "goto chain".
func (r *Rule) Goto(chain string) *Rule { return r.decide(unix.NFT_GOTO, chain) }
