package spoof_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/spoof"
	"golang.org/x/sys/unix"
)

// TestAddressFlood: a container sends frames from many MAC addresses, to fill the bridge's forwarding database. The
// bridge learns none of a container whose addresses are checked.
func TestAddressFlood(t *testing.T) {
	const frames = 500
	l := filtertest.NewLab(t)
	l.Serve(l.B, "b", "tcp", ":80")
	s := spoof.Check{Owner: l.OwnerA, Link: "va", MAC: mac(l, l.A)}
	l.Ensure(s, l.W)
	learned := func() int {
		flood(l, l.A, frames)
		l.Expect(l.A, "tcp", "10.1.2.6:80", "b 10.1.2.5") // comes after them
		return strings.Count(nstest.RunIn(t, l.W.Host.Path, "bridge", "fdb", "show", "br", "br0"), "02:f1:00:")
	}
	if n := learned(); n != 0 {
		t.Errorf("the bridge has learned %d of %d addresses", n, frames)
	}
	if err := errors.Join(s.Remove(l.Context(), l.W), l.W.Finish()); err != nil {
		t.Fatal(err)
	}
	if n := learned(); n != frames {
		t.Errorf("without the check, the bridge has learned %d of %d addresses", n, frames)
	}
}

// flood sends frames by eth0, each from another address, of a type that nobody answers.
func flood(l *filtertest.Lab, ns *kernel.NS, frames int) {
	l.Helper()
	eth0, err := rtnl.LinkByName(ns, "eth0")
	if err != nil {
		l.Fatal(err)
	}
	everybody := net.HardwareAddr{255, 255, 255, 255, 255, 255}
	err = ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for i := range frames {
			from := net.HardwareAddr{2, 0xf1, 0, 0, byte(i >> 8), byte(i)}
			frame := slices.Concat(everybody, from, []byte{0x88, 0xb5}, make([]byte, 46))
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: eth0.Index}); err != nil {
				return fmt.Errorf("frame %d: %w", i, err)
			}
		}
		return nil
	})
	if err != nil {
		l.Fatal(err)
	}
}
