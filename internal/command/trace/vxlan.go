package trace

import (
	"bytes"
	"net"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/command/packetfilter"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// encapsulate sends the packet in a packet of VXLAN, if the device has an entry for the next hop.
func (w *walk) encapsulate(p *place, l *rtnl.Link, next netip.Addr) {
	if w.known == nil || len(w.known.MAC) == 0 {
		w.stop(p, "neighbour", look("ip neigh show dev "+l.Name), "the MAC address of %v on %s is not known", next,
			l.Name)
		return
	}
	w.pass(p, "neighbour", "%v on %s is at %v", next, l.Name, w.known.MAC)
	var to netip.Addr
	entries, _ := rtnl.NeighbourMessages(p.ns, rtnl.ForwardingTable, l.Index)
	for _, m := range entries {
		if n := m.Neighbour(); bytes.Equal(n.MAC, w.known.MAC) {
			to = n.Addr
		}
	}
	v := l.Data.VXLAN
	if !to.IsValid() {
		w.stop(p, "tunnel", look("bridge fdb show dev "+l.Name),
			"%s has no forwarding entry for the MAC address of %v, so no host gets the packet", l.Name, next)
		return
	}
	inner := w.p
	w.Left = &inner
	w.pass(p, "tunnel", "%s puts it into UDP to %v port %d (VXLAN id %d)", l.Name, to, v.Port, v.ID)
	w.p = packetfilter.Packet{Src: v.Local, Dst: to, Proto: kernel.UDP, DstPort: v.Port, Inner: &inner, VNI: v.ID}
	w.send(p)
}

// decapsulate has a device of VXLAN take the packet that is inside.
func (w *walk) decapsulate(p *place) {
	links, err := rtnl.Links(p.ns)
	if err != nil {
		w.unknown(p, "tunnel", Advice{}, "%v", err)
		return
	}
	i := slices.IndexFunc(links, func(l *rtnl.Link) bool {
		v := l.Data.VXLAN
		return v != nil && v.ID == w.p.VNI && v.Port == w.p.DstPort && l.Up
	})
	if i < 0 {
		w.stop(p, "tunnel", look("ip -d link show type vxlan"),
			"no device of VXLAN that is up has id %d and port %d", w.p.VNI, w.p.DstPort)
		return
	}
	l := links[i]
	w.p = *w.p.Inner
	if mac := net.HardwareAddr(w.p.DstMAC[:]); !bytes.Equal(mac, l.MAC) {
		w.stop(p, "tunnel", Advice{}, "%s is at %v, and the packet is for %v", l.Name, l.MAC, mac)
		return
	}
	w.pass(p, "tunnel", "%s takes the packet that is inside", l.Name)
	w.enter(p, l, netip.Addr{})
}
