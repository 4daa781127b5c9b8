package kernel

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Rules as other programs write them, to be read by these.

// PlainNFTRule is a rule whose comment is as it is given: empty for none.
func PlainNFTRule(comment string) *NFTRule { return &NFTRule{comment: comment, plain: true} }

// DNATTo is "dnat to address:port"; port 0 is the same port.
func (r *NFTRule) DNATTo(to netip.AddrPort) *NFTRule {
	r.load(unix.NFT_REG_1, to.Addr().AsSlice())
	if to.Port() == 0 {
		return r.nat(unix.NFT_NAT_DNAT, to.Addr().Is6(), 0)
	}
	return r.load(unix.NFT_REG_2, NFTKey(to.Port())).nat(unix.NFT_NAT_DNAT, to.Addr().Is6(), unix.NFT_REG_2)
}

// Ether is "ether saddr mac".
func (r *NFTRule) Ether(mac net.HardwareAddr) *NFTRule {
	return r.payload(unix.NFT_PAYLOAD_LL_HEADER, 6, 6, reg(0)).cmp(unix.NFT_CMP_EQ, mac)
}

// Goto is "goto chain".
func (r *NFTRule) Goto(chain string) *NFTRule {
	r.jumps = chain
	return r.decide(unix.NFT_GOTO, chain)
}

// AddTable and AddChain make what may exist already.
func (b *NFTBatch) AddTable(t *NFTTable) {
	b.op("add", unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, t, "table "+t.String(), named(unix.NFTA_TABLE_NAME, t, 0, ""))
}

// AddChain makes a chain, without its rules.
func (b *NFTBatch) AddChain(t *NFTTable, c *NFTChain) { b.addChain(t, c) }
