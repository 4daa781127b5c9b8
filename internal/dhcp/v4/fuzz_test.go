package v4

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// FuzzFrame: what is sent is one packet of UDP whose sums are right; and it comes to a client as it came from a server.
func FuzzFrame(f *testing.F) {
	f.Add([]byte("payload"), uint32(0x0a010002))
	f.Add([]byte{}, ^uint32(0))
	f.Add([]byte{0xff, 0xfe, 1}, uint32(0))
	f.Add([]byte{}, uint32(4294967203)) // whose sum is 16: 0 would be none
	f.Fuzz(func(t *testing.T, payload []byte, address uint32) {
		if len(payload) > 1472 {
			return
		}
		from := netip.AddrFrom4([4]byte{byte(address >> 24), byte(address >> 16), byte(address >> 8), byte(address)})
		b := frame(from, from, payload)
		copy(b[ipHeader:], []byte{0, serverPort, 0, clientPort}) // the other way round, of the same sum
		got, said, err := unframe(append(b, 0, 0, 0), false)     // with the padding of a short frame
		if err != nil || got != from || !bytes.Equal(said, payload) {
			t.Errorf("%x from %v is read as %x from %v, %v", payload, from, said, got, err)
		}
		for _, i := range []int{12, ipHeader + udpHeader, max(ipHeader+udpHeader, len(b)-1)} { // in the address, and in what is said
			if i < len(b) {
				bad := bytes.Clone(b)
				bad[i] ^= 0x10
				if _, _, err := unframe(bad, false); err == nil {
					t.Errorf("%x with another byte %d is taken", b, i)
				}
			}
		}
	})
}

// FuzzRoutes compares classless routes (RFC 3442) with how insomniacslk/dhcp reads them.
func FuzzRoutes(f *testing.F) {
	f.Add([]byte{22, 172, 16, 4, 10, 9, 0, 3, 0, 10, 9, 0, 1, 32, 10, 8, 0, 1, 0, 0, 0, 0})
	f.Add([]byte{24, 10, 1, 2, 10, 9, 0, 1, 24, 10, 1, 2, 10, 9, 0, 2, 33})
	f.Fuzz(func(t *testing.T, b []byte) {
		l := &dhcp.Lease{Addresses: []dhcp.Address{{Prefix: netip.MustParsePrefix("10.9.0.2/24")}}}
		got := routes(dhcpv4.Options{optClassless: b}, l, 1500)
		var theirs dhcpv4.Routes
		if theirs.FromBytes(b) != nil {
			return
		}
		var want []netip.Prefix
		for _, r := range theirs {
			a, _ := netip.AddrFromSlice(r.Dest.IP.To4())
			bits, _ := r.Dest.Mask.Size()
			gw, _ := netip.AddrFromSlice(r.Router.To4())
			dst := netip.PrefixFrom(a, bits).Masked()
			usable := gw.IsUnspecified() || router(gw, l.Addresses[0].Prefix)
			if usable && !slices.Contains(want, dst) {
				want = append(want, dst)
			}
		}
		var have []netip.Prefix
		for _, r := range got {
			have = append(have, r.Dst)
		}
		if !slices.Equal(have, want) {
			t.Errorf("%x leads to %v; insomniacslk/dhcp reads %v", b, have, want)
		}
	})
}

// FuzzRequest: whatever a configuration or a lease file says, what is asked for is a message that a server can read.
func FuzzRequest(f *testing.F) {
	f.Add("web", "vendor", uint16(61), []byte("id"), "00ff", 1400)
	f.Add("", "", uint16(12), []byte{}, "zz", 0)
	f.Add("h", "v", uint16(255), bytes.Repeat([]byte{1}, 600), "", 70000)
	f.Fuzz(func(t *testing.T, host, vendor string, code uint16, value []byte, id string, mtu int) {
		a := dhcp.Ask{Owner: owner().Owner, Hostname: host, VendorClass: vendor, Options: map[uint16][]byte{code: value},
			Request: []uint16{code, 1}}
		have := &dhcp.Lease{State: map[string]string{idState: id}}
		l := dhcp.Link{MAC: []byte{2, 0, 0, 0, 0, 9}, MTU: mtu}
		for _, typ := range []dhcpv4.MessageType{dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRelease} {
			m := request(typ, l, a, have)
			got, err := dhcpv4.FromBytes(m.ToBytes())
			if err != nil {
				t.Fatalf("%v: %v", m, err)
			}
			if len(got.Options[optClientID]) == 0 && (code != optClientID || len(value) > 0) {
				t.Errorf("%v has no identity", got)
			}
			for code, value := range m.Options {
				if len(value) < 256 && !bytes.Equal(got.Options[code], value) {
					t.Errorf("option %d is %x, want %x", code, got.Options[code], value)
				}
			}
		}
	})
}
