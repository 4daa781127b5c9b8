package packetfilter

import (
	"errors"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

const metaIifkind = 26 // NFT_META_IIFKIND

// meta loads what the kernel keeps with the packet, or takes what a rule writes there.
func (m *machine) meta(d []byte) bool {
	w, key := m.w, attr32(d, unix.NFTA_META_KEY)
	if attr(d, unix.NFTA_META_SREG) != nil {
		switch key {
		case unix.NFT_META_MARK:
			mark, _ := m.load(d, unix.NFTA_META_SREG, 4)
			w.setMark(mark, m.sure)
		case unix.NFT_META_PRIORITY, unix.NFT_META_NFTRACE, unix.NFT_META_SECMARK: // which are never known
		default: // the kernel forwards a packet by its type, and what is to be routed leaves the bridge
			return m.endUnknown(metaText(key) + ", which is rewritten")
		}
		return true
	}
	b := unknown(16) // what is not named here has at most so much
	switch key {
	case unix.NFT_META_PROTOCOL:
		b = w.etherType()
	case unix.NFT_META_MARK:
		b = w.mark
	case unix.NFT_META_IIF:
		b = w.index(w.p.In, w.noIn())
	case unix.NFT_META_OIF:
		b = w.index(w.p.Out, w.noOut())
	case unix.NFT_META_IIFNAME:
		b = w.inName()
	case unix.NFT_META_OIFNAME:
		b = w.outName()
	case unix.NFT_META_SKUID, unix.NFT_META_SKGID, unix.NFT_META_CGROUP:
		if !w.p.Local && w.hook != Input {
			return false // a forwarded packet has no socket
		}
	case metaIifkind:
		if l, err := rtnl.LinkByName(w.ns, w.p.In); err == nil {
			b = exactly(nft.Key(l.Kind)...)
		}
	case unix.NFT_META_NFPROTO:
		b = exactly(w.pf)
	case unix.NFT_META_L4PROTO:
		if b = w.proto(); w.p.ARP {
			return false // it has none
		}
	case unix.NFT_META_PKTTYPE:
		if w.pf != unix.NFPROTO_BRIDGE && w.p.Dst.IsValid() && !w.p.Dst.IsMulticast() {
			b = exactly(0) // unicast to us, by its MAC address
		}
	}
	m.store(d, unix.NFTA_META_DREG, b, metaText(key))
	return true
}

// setMark takes a mark that a rule sets, if the packet comes to the rule.
func (w *walk) setMark(mark bits, sure tri) {
	mark = mark.under(nil) // a copy: the register may be written again
	if sure != yes {
		mark.join(w.mark)
	}
	w.mark = mark
}

// index is the index of a link, in the host's order.
func (w *walk) index(name string, none bool) bits {
	switch {
	case none:
		return native(0)
	case name == "":
		return unknown(4)
	}
	i, err := rtnl.IndexOf(w.ns, name)
	if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		return unknown(4)
	}
	return native(uint32(i)) // 0, which no link has, for one that is not there
}
