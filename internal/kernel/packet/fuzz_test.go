package packet

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// FuzzNeighbour reads ARP and neighbour discovery of strangers. A question of this host is read as one for its address.
func FuzzNeighbour(f *testing.F) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	asked4, asked6 := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00::2")
	conn := func(v6 bool) *NeighbourConn { return &NeighbourConn{link: &rtnl.Link{MAC: mac}, v6: v6} }
	f.Add(conn(false).probe(asked4), false)
	f.Add(solicitation(asked6), true)
	advert := append(solicitation(asked6), targetLinkAddress, 1, 2, 0, 0, 0, 0, 9)
	advert[ip6Size] = neighbourAdvert
	f.Add(advert, true)
	f.Fuzz(func(t *testing.T, b []byte, v6 bool) {
		n := conn(v6)
		c, ok := n.parse(b, mac)
		if !ok {
			return
		}
		if len(c.MAC) != 6 || c.Addr.Is6() != v6 {
			t.Errorf("%x, IPv6 %v: %+v", b, v6, c)
		}
		question := n.probe
		if v6 {
			question = solicitation
		}
		again, ok := n.parse(question(c.Addr), mac)
		if !ok || !again.Probe || again.Addr != c.Addr || !bytes.Equal(again.MAC, mac) {
			t.Errorf("a question for %v is read as %+v", c.Addr, again)
		}
	})
}

// FuzzEcho reads what a raw socket delivers.
func FuzzEcho(f *testing.F) {
	header := append([]byte{0x45}, make([]byte, 19)...)
	f.Add(append(header, reply4, 0, 0, 0, 0, 7, 0, 9, 1, 2, 3), true)
	f.Add([]byte{request6, 0, 0, 0, 0, 7, 0, 9, 1, 2, 3}, false)
	f.Add([]byte{0x4f}, true)
	f.Fuzz(func(t *testing.T, b []byte, v4 bool) {
		e, ok := (&EchoConn{v4: v4}).parse(b)
		if ok && !bytes.HasSuffix(b, e.Data) {
			t.Errorf("%x has the data %x", b, e.Data)
		}
		if sum := Checksum(b); len(b)%2 == 0 && len(b) > 0 {
			whole := append(bytes.Clone(b), byte(sum>>8), byte(sum))
			if Checksum(whole) != 0 {
				t.Errorf("%x with its sum %04x has the sum %04x", b, sum, Checksum(whole))
			}
		}
	})
}
