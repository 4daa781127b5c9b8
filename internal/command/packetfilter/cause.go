package packetfilter

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
)

// AnyAddress is the packet with addresses that are not known, but for their family.
func (p Packet) AnyAddress() Packet {
	p.six = p.is6()
	p.Src, p.Dst = netip.Addr{}, netip.Addr{}
	return p
}

// Cause returns what of a dropped packet its drop depends on. A packet that equals it there is dropped too, whatever
// else it says.
func (v Verdict) Cause(ns *kernel.NS, skip ...string) Packet {
	cause := v.Packet
	cause.six = cause.is6()
	forget := []func(*Packet){
		func(p *Packet) { p.SrcPort = 0 },
		func(p *Packet) { p.DstPort, p.ICMP = 0, 0 },
		func(p *Packet) { p.Proto, p.SrcPort, p.DstPort, p.ICMP = 0, 0, 0, 0 },
		func(p *Packet) { p.Src = netip.Addr{} },
		func(p *Packet) { p.Dst = netip.Addr{} },
	}
	for _, part := range forget {
		wider := cause
		part(&wider)
		if wider == cause {
			continue
		}
		if w, err := at(ns, int(v.Chain.Hook), wider, skip, nil); err == nil && w.Outcome == Dropped {
			cause = wider
		}
	}
	return cause
}
