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
	r.load(unix.NFT_REG_1, to.Addr().AsSlice())
	if to.Port() == 0 {
		return r.nat(unix.NFT_NAT_DNAT, to.Addr().Is6(), 0)
	}
	return r.load(unix.NFT_REG_2, Key(to.Port())).nat(unix.NFT_NAT_DNAT, to.Addr().Is6(), unix.NFT_REG_2)
}

// Ether appends "ether saddr mac".
func (r *Rule) Ether(mac net.HardwareAddr) *Rule {
	return r.payload(unix.NFT_PAYLOAD_LL_HEADER, 6, 6, reg(0)).cmp(unix.NFT_CMP_EQ, mac)
}

// Goto appends "goto chain".
func (r *Rule) Goto(chain string) *Rule {
	r.jumps = chain
	return r.decide(unix.NFT_GOTO, chain)
}
