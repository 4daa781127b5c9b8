package resource

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/plan"
)

// A Network is what a plan says about the network of its attachment, for those who compare networks, draw them or
// follow a packet. So only the plugin reads the keys of its configuration.
type Network struct {
	Segment Segment
	Gateway bool     // the host routes to the container, and is its gateway
	Mode    string   // of a link on a master, if the configuration says one
	Marks   []string // what a picture says of the attachment, such as "MAC check"

	// Masquerades reports whether packets from the container's address src to dst get another source. Nil: none do.
	Masquerades func(src, dst netip.Addr) bool

	// Publishes reports whether packets to a port of the host are for the container. Nil: none are.
	Publishes func(dst netip.Addr, proto byte, port uint16) bool
}

// A Segment is a network of layer 2 on the host: containers on one reach each other without the host's routes.
type Segment struct {
	Kind string // bridge, ovs bridge or master; empty: none
	Link string // the bridge or the master; empty: the link of the default route
	VLAN string // a number, or the words of bridge(8); empty: untagged
}

// String returns the words for a segment, such as "bridge cni0 VLAN 5".
func (s Segment) String() string { return Line(s.Kind, s.Link, Opt("VLAN", s.VLAN)) }

// NetworkOf returns what the resources of a plan say together.
func NetworkOf(p plan.Plan) (n Network) {
	var masquerade []func(src, dst netip.Addr) bool
	var publish []func(dst netip.Addr, proto byte, port uint16) bool
	for _, r := range p {
		says := TraitsOf(r).Network
		if says.Segment.Kind != "" {
			n.Segment = says.Segment
		}
		n.Gateway, n.Mode = n.Gateway || says.Gateway, cmp.Or(says.Mode, n.Mode)
		for _, mark := range says.Marks {
			if !slices.Contains(n.Marks, mark) {
				n.Marks = append(n.Marks, mark)
			}
		}
		if says.Masquerades != nil {
			masquerade = append(masquerade, says.Masquerades)
		}
		if says.Publishes != nil {
			publish = append(publish, says.Publishes)
		}
	}
	n.Masquerades = func(src, dst netip.Addr) bool {
		return slices.ContainsFunc(masquerade, func(does func(src, dst netip.Addr) bool) bool { return does(src, dst) })
	}
	n.Publishes = func(dst netip.Addr, proto byte, port uint16) bool {
		return slices.ContainsFunc(publish, func(does func(netip.Addr, byte, uint16) bool) bool {
			return does(dst, proto, port)
		})
	}
	return n
}

// BitRate returns a rate with its unit; n is in bits per second.
func BitRate(n float64) string {
	unit := "bit/s"
	for _, larger := range []string{"kbit/s", "Mbit/s", "Gbit/s"} {
		if n < 1000 {
			break
		}
		n, unit = n/1000, larger
	}
	return fmt.Sprintf("%.4g %s", n, unit)
}
