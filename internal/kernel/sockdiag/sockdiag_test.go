package sockdiag

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/kernel/kerneltest"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

func TestListens(t *testing.T) {
	ns := kerneltest.Open(t)
	nstest.RunIn(t, ns.Path, "ip", "link", "set", "lo", "up")
	err := ns.Do(func() error {
		l, err := net.Listen("tcp4", "0.0.0.0:80")
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		u, err := net.ListenPacket("udp6", "[::1]:53")
		if err != nil {
			return err
		}
		t.Cleanup(func() { u.Close() })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr
	for _, c := range []struct {
		proto       byte
		host        string
		first, last uint16
		want        uint16
	}{
		{kernel.TCP, "0.0.0.0", 80, 80, 80}, {kernel.TCP, "192.0.2.1", 80, 80, 80}, {kernel.TCP, "0.0.0.0", 81, 81,
			0}, {kernel.UDP, "0.0.0.0", 80, 80,
			0},
		{kernel.TCP, "::", 80, 80, 0}, {kernel.UDP, "::1", 53, 53, 53}, {kernel.UDP, "::", 53, 53, 0},
		{kernel.TCP, "0.0.0.0", 1, 1000, 80}, {kernel.TCP, "192.0.2.1", 80, 81, 80}, {kernel.TCP, "0.0.0.0", 79, 80,
			80}, {kernel.TCP, "0.0.0.0", 81,
			65535, 0}, {kernel.TCP, "0.0.0.0", 1, 79, 0},
		{kernel.UDP, "0.0.0.0", 1, 1000, 0}, {kernel.TCP, "::", 1, 1000, 0}, {kernel.UDP, "::1", 1, 1000, 53}, {kernel.UDP,
			"::", 1, 1000, 53}, {kernel.UDP,
			"::2", 1, 1000, 0},
	} {
		got, ok := Listens(ns, c.proto, addr(c.host), c.first, c.last)
		if ok != (c.want != 0) || ok && got != c.want {
			t.Errorf("%s %s %d-%d: %d %v", kernel.ProtoName(c.proto), c.host, c.first, c.last, got, ok)
		}
	}
}

func TestListeners(t *testing.T) {
	ns := kerneltest.Open(t)
	nstest.RunIn(t, ns.Path, "ip", "link", "set", "lo", "up")
	err := ns.Do(func() error {
		for _, at := range []string{"tcp4 127.0.0.1:80", "tcp6 [::1]:80", "tcp [::]:81"} {
			network, addr, _ := strings.Cut(at, " ")
			l, err := net.Listen(network, addr)
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
		}
		u, err := net.ListenPacket("udp4", "0.0.0.0:53")
		if err != nil {
			return err
		}
		t.Cleanup(func() { u.Close() })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		proto byte
		port  uint16
		want  []string
		takes string // what 192.0.2.1, 2001:db8::1 and 127.0.0.1 get to
	}{
		{kernel.TCP, 80, []string{"127.0.0.1:80", "[::1]:80"}, "false false true"},
		{kernel.TCP, 81, []string{"[::]:81"}, "true true true"},
		{kernel.UDP, 53, []string{"0.0.0.0:53"}, "true false true"},
		{kernel.UDP, 80, nil, "false false false"},
	} {
		all, err := Listeners(ns, c.proto, c.port)
		var got []string
		var takes [3]bool
		for _, l := range all {
			got = append(got, l.At.String())
			for i, a := range []string{"192.0.2.1", "2001:db8::1", "127.0.0.1"} {
				takes[i] = takes[i] || l.Takes(netip.MustParseAddr(a))
			}
			if l.Inode == 0 {
				t.Errorf("%v has no inode", l.At)
			}
		}
		if text := fmt.Sprint(takes[0], takes[1], takes[2]); err != nil || !slices.Equal(got, c.want) || text != c.takes {
			t.Errorf("%s %d: %q %s %v, want %q %s", kernel.ProtoName(c.proto), c.port, got, text, err, c.want, c.takes)
		}
	}
}
