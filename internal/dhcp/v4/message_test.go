package v4

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

func kernelAddr(l *dhcp.Lease) rtnl.Addr { return rtnl.Addr{Prefix: l.Addresses[0].Prefix} }

// neighbour makes the client's kernel know where an address is, for the test answers no ARP.
func neighbour(t *testing.T, w *wire, a netip.Addr) {
	t.Helper()
	nstest.RunIn(t, w.link.NS.Path, "ip", "neigh", "replace", a.String(), "lladdr", w.mac.String(), "dev", "eth0")
}

// What a server says is what the lease has.
func TestLease(t *testing.T) {
	discover := request(dhcpv4.MessageTypeDiscover, dhcp.Link{MAC: []byte{2, 0, 0, 0, 0, 9}, MTU: 1500}, owner(), nil)
	for name, tc := range map[string]struct {
		options map[byte][]byte
		want    string
	}{
		"a router": {map[byte][]byte{optRouter: {10, 9, 0, 254, 10, 9, 0, 253}},
			"gw 10.9.0.254 [0.0.0.0/0 10.9.0.254]"},
		"no router": {nil, "gw invalid IP []"},
		"itself is no router": {map[byte][]byte{optRouter: {10, 9, 0, 77, 10, 9, 0, 253}},
			"gw 10.9.0.253 [0.0.0.0/0 10.9.0.253]"},
		"the subnet's are no routers": {map[byte][]byte{optRouter: {10, 9, 0, 255, 10, 9, 0, 0, 10, 9, 0, 1}},
			"gw 10.9.0.1 [0.0.0.0/0 10.9.0.1]"},
		"no routes by the subnet's": {map[byte][]byte{optClassless: {24, 10, 11, 0, 10, 9, 0, 255, 24, 10, 12, 0, 10, 9,
			0, 0, 24, 10, 13, 0, 10, 9, 0, 77, 0, 10, 9, 0, 1}}, "gw invalid IP [0.0.0.0/0 10.9.0.1]"},
		"no static ones either": {map[byte][]byte{optStatic: {172, 16, 5, 0, 10, 9, 0, 255, 172, 17, 5, 0, 10, 9, 0,
			77, 172, 18, 5, 0, 10, 9, 0, 2}}, "gw invalid IP [172.18.0.0/16 10.9.0.2]"},
		"both ends of a /31": {map[byte][]byte{optMask: {255, 255, 255, 254}, optRouter: {10, 9, 0, 76}},
			"gw 10.9.0.76 [0.0.0.0/0 10.9.0.76]"},
		"dots are no name": {map[byte][]byte{optDomain: []byte(".."),
			optSearch: []byte("\x03-a.\x00\x02a-\x00\x01a\x00")}, "gw invalid IP [] dns {[]  [a] []}"},
		"a dot is no name": {map[byte][]byte{optDomain: []byte(".")}, "gw invalid IP []"},
		"a dot at the end": {map[byte][]byte{optDomain: []byte("lan.")},
			"gw invalid IP [] dns {[] lan. [] []}"},
		"two dots":      {map[byte][]byte{optDomain: []byte("a..b")}, "gw invalid IP []"},
		"half a router": {map[byte][]byte{optRouter: {10, 9, 0}}, "gw invalid IP []"},
		"static routes": {map[byte][]byte{optRouter: {10, 9, 0, 254},
			optStatic: {172, 16, 5, 0, 10, 9, 0, 1, 0, 0, 0, 0, 10, 9, 0,
				1}}, "gw 10.9.0.254 [172.16.0.0/16 10.9.0.1] [0.0.0.0/0 10.9.0.254]"},
		"classless ones alone": {map[byte][]byte{optRouter: {10, 9, 0, 254},
			optStatic: {172, 16, 5, 0, 10, 9, 0, 1}, optClassless: {22, 172, 16, 4, 10, 9, 0,
				3}}, "gw 10.9.0.254 [172.16.4.0/22 10.9.0.3]"},
		"a classless default": {map[byte][]byte{optClassless: {0, 10, 9, 0, 3}},
			"gw invalid IP [0.0.0.0/0 10.9.0.3]"},
		"on the link": {map[byte][]byte{optClassless: {24, 172, 16, 4, 0, 0, 0, 0}},
			"gw invalid IP [172.16.4.0/24 0.0.0.0 scope 253]"},
		"a router elsewhere": {map[byte][]byte{optMask: {255, 255, 255, 255}, optRouter: {10, 9, 0, 254}},
			"gw 10.9.0.254 [0.0.0.0/0 10.9.0.254 scope 253]"},
		"unreadable classless": {map[byte][]byte{optRouter: {10, 9, 0, 254},
			optClassless: {33, 1, 2, 3, 4, 5, 6, 7, 8}}, "gw 10.9.0.254 [0.0.0.0/0 10.9.0.254]"},
		"host bits": {map[byte][]byte{optClassless: {9, 172, 255, 10, 9, 0, 3}},
			"gw invalid IP [172.128.0.0/9 10.9.0.3]"},
		"a small MTU": {map[byte][]byte{optRouter: {10, 9, 0, 254}, optMTU: {5, 120}},
			"gw 10.9.0.254 [0.0.0.0/0 10.9.0.254 mtu 1400] mtu 1400"},
		"a great MTU": {map[byte][]byte{optRouter: {10, 9, 0, 254}, optMTU: {35, 40}},
			"gw 10.9.0.254 [0.0.0.0/0 10.9.0.254] mtu 9000"},
		"an impossible MTU": {map[byte][]byte{optMTU: {0, 67}}, "gw invalid IP []"},
		"names": {map[byte][]byte{optDNS: {10, 9, 0, 53, 127, 0, 0, 1},
			optDomain: []byte("lan.example\x00"), optSearch: []byte("\x03lan\x07example\x00\x03sub\xc0\x00")}, "gw invalid IP [] dns {[10.9.0.53] lan.example [lan.example sub.lan.example] []}"},
		"a resolv.conf in a domain name": {map[byte][]byte{optDomain: []byte("a\nnameserver 6.6.6.6")}, "gw invalid IP []"},
		"labels in a loop":               {map[byte][]byte{optSearch: []byte("\x01a\xc0\x00")}, "gw invalid IP []"},
		"time servers":                   {map[byte][]byte{optNTP: {10, 9, 0, 123}}, "gw invalid IP [] ntp [10.9.0.123]"},
	} {
		r := answerTo(question{DHCPv4: discover}, dhcpv4.MessageTypeOffer, func(r *dhcpv4.DHCPv4) {
			for code, v := range tc.options {
				r.Options[code] = v
			}
		})
		p, err := parse(r.ToBytes(), discover)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		l, err := lease(p, dhcp.Link{MTU: 1500})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text := fmt.Sprintf("gw %v", l.Gateway)
		for _, rt := range l.Routes {
			s := rt.Dst.String()
			if rt.GW.IsValid() {
				s += " " + rt.GW.String()
			}
			if rt.Scope != nil {
				s += fmt.Sprint(" scope ", *rt.Scope)
			}
			if rt.MTU != 0 {
				s += fmt.Sprint(" mtu ", rt.MTU)
			}
			text += " [" + s + "]"
		}
		if len(l.Routes) == 0 {
			text += " []"
		}
		if l.MTU != 0 {
			text += fmt.Sprint(" mtu ", l.MTU)
		}
		if !l.DNS.Empty() {
			text += fmt.Sprint(" dns ", l.DNS)
		}
		if len(l.NTP) > 0 {
			text += fmt.Sprint(" ntp ", l.NTP)
		}
		if text != tc.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, text, tc.want)
		}
	}
}

// Times that a server says are taken where they are in order.
func TestTimes(t *testing.T) {
	s := func(n byte) []byte { return []byte{0, 0, 0, n} }
	for _, tc := range []struct {
		valid  time.Duration
		o1, o2 []byte
		t1, t2 time.Duration
	}{
		{80 * time.Second, nil, nil, 40 * time.Second, 70 * time.Second},
		{80 * time.Second, s(10), s(20), 10 * time.Second, 20 * time.Second},
		{80 * time.Second, s(20), s(10), 10 * time.Second, 10 * time.Second},
		{80 * time.Second, s(10), s(80), 10 * time.Second, 70 * time.Second},
		{80 * time.Second, s(0), s(0), 40 * time.Second, 70 * time.Second},
		{80 * time.Second, []byte{1}, []byte{255, 255, 255, 255}, 40 * time.Second, 70 * time.Second},
		{dhcp.Forever, s(10), s(20), dhcp.Forever, dhcp.Forever},
	} {
		if t1, t2 := times(tc.valid, tc.o1, tc.o2); t1 != tc.t1 || t2 != tc.t2 {
			t.Errorf("%v %v %v: %v, %v", tc.valid, tc.o1, tc.o2, t1, t2)
		}
	}
}

// Options may go on in two old fields of a message.
func TestOverload(t *testing.T) {
	m := request(dhcpv4.MessageTypeDiscover, dhcp.Link{MAC: []byte{2, 0, 0, 0, 0, 9}}, owner(), nil)
	b := answerTo(question{DHCPv4: m}, dhcpv4.MessageTypeOffer,
		func(r *dhcpv4.DHCPv4) { r.Options[optOverload] = []byte{3} }).ToBytes()
	copy(b[108:], []byte{optRouter, 4, 10, 9, 0, 254, 255})
	copy(b[44:], []byte{optDNS, 4, 10, 9, 0, 53, 255})
	r, err := parse(b, m)
	if err != nil || !bytes.Equal(r.Options[optRouter], []byte{10, 9, 0, 254}) ||
		!bytes.Equal(r.Options[optDNS], []byte{10, 9, 0, 53}) {
		t.Errorf("%v %v", err, r)
	}
}

// Whatever comes in a packet, it is a lease that could be put on a link, or an error.
func FuzzAnswer(f *testing.F) {
	l := dhcp.Link{Name: "eth0", MAC: []byte{2, 0, 0, 0, 0, 9}, MTU: 1500}
	m := request(dhcpv4.MessageTypeDiscover, l, owner(), nil)
	m.TransactionID = [4]byte{1, 2, 3, 4}
	b := answerTo(question{DHCPv4: m}, dhcpv4.MessageTypeOffer, func(r *dhcpv4.DHCPv4) {
		r.Options[optClassless] = []byte{22, 172, 16, 4, 10, 9, 0, 3}
		r.Options[optSearch] = []byte("\x03lan\x07example\x00\x03sub\xc0\x00")
		r.Options[optOverload] = []byte{3}
	}).ToBytes()
	f.Add(frame(own, own, b))
	f.Fuzz(func(t *testing.T, packet []byte) {
		_, payload, err := unframe(packet, true)
		if err != nil {
			payload = packet
		}
		r, err := parse(payload, m)
		if err != nil {
			return
		}
		got, err := lease(r, l)
		if err != nil {
			return
		}
		p := got.Addresses[0].Prefix
		if !p.IsValid() || !p.Addr().Is4() || p.Bits() == 0 || got.T1 > got.T2 || got.T2 > got.Valid ||
			got.Valid < leastTime {
			t.Errorf("%+v", got)
		}
		for _, rt := range got.Routes {
			if !rt.Dst.IsValid() || rt.Dst != rt.Dst.Masked() || rt.GW.IsValid() && !ordinary(rt.GW) && !rt.GW.IsUnspecified() {
				t.Errorf("%+v", rt)
			}
		}
	})
}
