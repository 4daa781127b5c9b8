package wireguard

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// newKey is a private key.
func newKey(t *testing.T) wgtypes.Key {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// peer is node i.
func peer(t *testing.T, i byte) Peer {
	return Peer{Node: fmt.Sprint("n", i), Key: newKey(t).PublicKey(),
		Endpoints: []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, i}), 51820),
			netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: i}), 51820)},
		Prefixes: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, i, 0}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 3: i}), 64)}}
}

// apply is what the kernel makes of a change, as wireguard(4) says.
func apply(have wgtypes.Device, c wgtypes.Config) wgtypes.Device {
	if c.PrivateKey != nil {
		have.PrivateKey, have.PublicKey = *c.PrivateKey, c.PrivateKey.PublicKey()
	}
	if c.ListenPort != nil {
		have.ListenPort = *c.ListenPort
	}
	if c.FirewallMark != nil {
		have.FirewallMark = *c.FirewallMark
	}
	for _, p := range c.Peers {
		var now wgtypes.Peer
		var others []wgtypes.Peer
		for _, was := range have.Peers {
			if was.PublicKey == p.PublicKey {
				now = was
				continue
			}
			var kept []net.IPNet
			for _, n := range was.AllowedIPs { // a prefix goes to the peer that had it said last
				isMoved := false
				for _, m := range p.AllowedIPs {
					isMoved = isMoved || m.String() == n.String()
				}
				if !isMoved {
					kept = append(kept, n)
				}
			}
			was.AllowedIPs = kept
			others = append(others, was)
		}
		have.Peers = others
		if p.Remove {
			continue
		}
		now.PublicKey, now.PresharedKey, now.PersistentKeepaliveInterval = p.PublicKey, *p.PresharedKey, *p.PersistentKeepaliveInterval
		if p.ReplaceAllowedIPs {
			now.AllowedIPs = nil
		}
		now.AllowedIPs = append(now.AllowedIPs, p.AllowedIPs...)
		if p.Endpoint != nil {
			at := *p.Endpoint
			now.Endpoint = &at
		}
		have.Peers = append(have.Peers, now)
	}
	return have
}

// One change makes a device what it should be, from whatever it is, and touches no peer that is right.
func TestCompare(t *testing.T) {
	two, three, stranger := peer(t, 2), peer(t, 3), peer(t, 9)
	d := Device{Name: "wg0", Key: newKey(t), Port: 51820, Peers: []Peer{two, three}}
	_, whole := d.compare(&wgtypes.Device{})
	right := apply(wgtypes.Device{}, whole)
	if found, change := d.compare(&right); len(found) > 0 || len(change.Peers) > 0 {
		t.Fatalf("a device that is as it should be: %v", found)
	}
	swapped := three
	swapped.Prefixes = two.Prefixes
	renewed := two
	renewed.Key = newKey(t).PublicKey()

	for name, tc := range map[string]struct {
		want   Device
		damage func(*wgtypes.Device)
		says   string
		peers  int // in the change
	}{
		"another key":   {d, func(w *wgtypes.Device) { w.PublicKey = stranger.Key }, "public-key is " + stranger.Key.String(), 0},
		"another port":  {d, func(w *wgtypes.Device) { w.ListenPort = 9 }, "listen-port is 9, want 51820", 0},
		"a mark":        {d, func(w *wgtypes.Device) { w.FirewallMark = 7 }, "fwmark is 7, want 0", 0},
		"no peer":       {d, func(w *wgtypes.Device) { w.Peers = w.Peers[:1] }, "peer " + three.Key.String() + " is missing", 1},
		"no endpoint":   {d, func(w *wgtypes.Device) { w.Peers[0].Endpoint = nil }, "endpoint of peer", 1},
		"elsewhere":     {d, func(w *wgtypes.Device) { w.Peers[0].Endpoint.IP = net.IPv4(192, 0, 2, 99) }, "is 192.0.2.99:51820, want 192.0.2.2:51820", 1},
		"other port":    {d, func(w *wgtypes.Device) { w.Peers[0].Endpoint.Port = 9 }, "is 192.0.2.2:9, want 192.0.2.2:51820", 1},
		"other address": {d, func(w *wgtypes.Device) { w.Peers[0].Endpoint.IP = net.ParseIP("2001:db8::2") }, "", 0},
		"as IPv6":       {d, func(w *wgtypes.Device) { w.Peers[0].Endpoint.IP = net.ParseIP("::ffff:192.0.2.2") }, "", 0},
		"prefix lost":   {d, func(w *wgtypes.Device) { w.Peers[0].AllowedIPs = w.Peers[0].AllowedIPs[:1] }, "allowed-ips of peer", 1},
		"all prefixes": {d, func(w *wgtypes.Device) {
			w.Peers[0].AllowedIPs = append(w.Peers[0].AllowedIPs, net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)})
		}, "allowed-ips of peer", 1},
		"a preshared key": {d, func(w *wgtypes.Device) { w.Peers[1].PresharedKey = stranger.Key }, "preshared-key of peer", 1},
		"a keepalive":     {d, func(w *wgtypes.Device) { w.Peers[1].PersistentKeepaliveInterval = time.Minute }, "persistent-keepalive of peer", 1},
		"a stranger": {d, func(w *wgtypes.Device) {
			*w = apply(*w, wgtypes.Config{Peers: []wgtypes.PeerConfig{stranger.config(wgtypes.Peer{})}})
		}, "peer " + stranger.Key.String() + " is too much", 1},
		"a node has gone":      {Device{"wg0", d.Key, 51820, []Peer{three}}, func(*wgtypes.Device) {}, "peer " + two.Key.String() + " is too much", 1},
		"a node's new key":     {Device{"wg0", d.Key, 51820, []Peer{renewed, three}}, func(*wgtypes.Device) {}, "is missing", 2},
		"prefixes change hand": {Device{"wg0", d.Key, 51820, []Peer{swapped}}, func(*wgtypes.Device) {}, "allowed-ips", 2},
	} {
		have := apply(wgtypes.Device{}, whole)
		tc.damage(&have)
		found, change := tc.want.compare(&have)
		text := found.Error()
		if tc.says == "" && len(found) > 0 || !strings.Contains(text, tc.says) || len(change.Peers) != tc.peers {
			t.Errorf("%s: %d peers change, %q; want %d, %q", name, len(change.Peers), text, tc.peers, tc.says)
		}
		if strings.Contains(text, d.Key.String()) {
			t.Errorf("%s: the private key is in %q", name, text)
		}
		have = apply(have, change)
		if left, _ := tc.want.compare(&have); len(left) > 0 {
			t.Errorf("%s: after the change: %v", name, left)
		}
	}
}
