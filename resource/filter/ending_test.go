package filter_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"golang.org/x/sys/unix"
)

// needEnding skips where elements cannot end.
func needEnding(t *testing.T, w *kernel.World) {
	t.Helper()
	if n, err := nft.Open(w.Host); err != nil || !n.CanEnd() {
		t.Skip("elements of nf_tables cannot end before Linux 6.12")
	}
}

// endsSay has it be known whether elements can end, and so what a version before this one knows of it: nothing.
func endsSay(t *testing.T, answer string) {
	t.Helper()
	if err := os.MkdirAll(record.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(record.RunDir, "nft-ending"), []byte(answer), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(filepath.Join(record.RunDir, "nft-ending")) })
}

// deleted counts the elements of nf_tables that are deleted in the host's namespace while do runs.
func deleted(t *testing.T, w *kernel.World, do func()) (n int) {
	t.Helper()
	var fd int
	err := w.Host.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
			unix.NETLINK_NETFILTER); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	do()
	for buf := make([]byte, 1<<16); ; {
		size, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return n
		}
		for b := buf[:size]; len(b) >= unix.SizeofNlMsghdr; {
			length := int(b[0]) | int(b[1])<<8 | int(b[2])<<16
			if b[4] == unix.NFT_MSG_DELSETELEM {
				n++
			}
			b = b[min(max(length+3, unix.SizeofNlMsghdr)&^3, len(b)):]
		}
	}
}

func endingPlan() plan.Plan {
	return append(filtertest.KillFilterPlan(),
		filtertest.PortsOf("c1", "other", "10.2.2.5/24", filtertest.Range("", 9000, 9010),
			publish.Mapping{Protocol: "udp", HostPort: 53, ContainerPort: 53}))
}

// DEL deletes no element where they can end, and they are gone when it is done; where they cannot, it deletes them.
func TestRemoveEnds(t *testing.T) {
	for _, can := range []string{"1", "0"} {
		w := contract.NewWorld(t)
		needEnding(t, w)
		endsSay(t, can)
		filtertest.MakeTables(t, w)
		before := filtertest.Elements(t, w)
		p := endingPlan()
		for _, r := range p {
			contract.Ensure(t, w, r)
		}
		n := deleted(t, w, func() {
			if err := engine.Undo(t.Context(), w, p); err != nil {
				t.Error(err)
			}
			n, err := nft.Open(w.Host)
			for _, s := range filter.Inet().Sets {
				err = errors.Join(err, n.RawElements(s.Table, s.Name,
					func([]byte) { t.Errorf("where elements can end (%s), %s has one", can, s.Name) }))
			}
			if err != nil {
				t.Error(err)
			}
		})
		if (n == 0) != (can == "1") {
			t.Errorf("where elements can end (%s), %d were deleted", can, n)
		}
		if after := filtertest.Elements(t, w); after != before {
			t.Errorf("state after remove: %s", contract.Difference(before, after))
		}
	}
}

// What is added while its key is ending stands: the same again, and what another container has at its place.
func TestAddedWhileEnding(t *testing.T) {
	w := contract.NewWorld(t)
	needEnding(t, w)
	filtertest.MakeTables(t, w)
	mine, others := endingPlan(), plan.Plan{
		filtertest.PortsOf("c2", "net", "10.1.2.5/24", filtertest.TCP("", 8080), filtertest.TCP("192.0.2.1", 443)),
		filtertest.PortsOf("c2", "other", "10.2.2.5/24", filtertest.Range("", 9005, 9020)),
		masquerade.Sources{Owner: filtertest.PortsOf("c2", "net", "10.1.2.5/24").Owner,
			From: filtertest.KillFilterPlan()[1].(masquerade.Sources).From},
	}
	for i := range 40 {
		p := [...]plan.Plan{mine, others}[i%2]
		if i%4 > 1 {
			p = mine
		}
		for _, r := range p {
			contract.Ensure(t, w, r)
		}
		for _, r := range p {
			contract.Verify(t, w, r)
		}
		for _, r := range slices.Backward(p) { // and not Plan.Remove, which waits
			contract.Remove(t, w, r.(plan.Remover))
		}
	}
	if s := filtertest.State(t, w); strings.Contains(s, "elements") {
		t.Errorf("left:\n%s", s)
	}
}

// A DEL that is killed at any point is done by the next one, or by an ADD of the same.
//
// clause: P11
func TestKilledEnding(t *testing.T) {
	w := contract.NewWorld(t)
	needEnding(t, w)
	filtertest.MakeTables(t, w)
	before := filtertest.Elements(t, w)
	p := filtertest.KillFilterPlan()
	points := 0
	for n := 1; ; n++ {
		for _, r := range p {
			contract.Ensure(t, w, r)
		}
		killed := stopAt(t, n, w, "filter", "DEL", talks(), func() bool { return true })
		if n%2 == 0 {
			for _, r := range p {
				contract.Ensure(t, w, r)
			}
			if err := engine.Verify(t.Context(), w, p); err != nil {
				t.Errorf("killed at point %d, and added: %v", n, err)
			}
		}
		if err := engine.Undo(t.Context(), w, p); err != nil {
			t.Errorf("killed at point %d, and removed: %v", n, err)
		}
		if after := filtertest.Elements(t, w); after != before {
			t.Fatalf("killed at point %d, and removed:%s", n, contract.Difference(before, after))
		}
		if !killed {
			break
		}
		points++
	}
	if points < 10 {
		t.Errorf("killed at %d points only", points)
	}
	t.Logf("killed at %d points", points)
}

// A port that comes and goes as fast as can be, beside many others, always comes: the kernel sorts a set anew where one
// key has ended too often in it.
func TestEndingOften(t *testing.T) {
	w := contract.NewWorld(t)
	needEnding(t, w)
	p := filtertest.PortsOf("c1", "net", "10.1.2.5/24", filtertest.TCP("", 8080))
	contract.Ensure(t, w, p)
	for i := range 60 {
		var b nft.Batch
		for j := range 100 {
			b.Add(nft.Elem{Set: filter.OwnersSet(filter.Inet()), Key: nft.Key(uint32(i), uint32(j), uint32(0)),
				Comment: "x"})
		}
		n, err := nft.Open(w.Host)
		if err == nil {
			err = n.Commit(&b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 150 {
		contract.Remove(t, w, p)
		contract.Ensure(t, w, p)
	}
	contract.Verify(t, w, p)
}

// A client that goes on sending while its port is ending has no flow left that leads to the container.
func TestFlowsOfWhatEnds(t *testing.T) {
	l := filtertest.NewLab(t)
	needEnding(t, l.W)
	p := filtertest.PortsOfA(l, publish.Mapping{Protocol: "udp", HostPort: 8080, ContainerPort: 80})
	led := func() int {
		return strings.Count(nstest.RunIn(t, l.W.Host.Path, "conntrack", "-L", "-p", "udp"), "src=10.1.2.5 ")
	}
	for range 5 {
		l.Ensure(p, l.W)
		var c net.Conn
		if err := l.Neighbour.Do(func() (err error) {
			c,
				err = net.Dial("udp", "192.0.2.1:8080")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Microsecond):
					_, _ = c.Write([]byte("?")) // it may be refused
				}
			}
		}()
		<-time.After(10 * time.Millisecond)
		if led() == 0 {
			t.Error("no flow led to the container")
		}
		contract.Remove(t, l.W, p)
		close(stop)
		<-done
		if n := led(); n > 0 {
			t.Errorf("%d flows lead to the container yet", n)
		}
		c.Close()
	}
}
