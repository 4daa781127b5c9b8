package disk

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A range that somebody else may change is read with the lock held: who changes it, and takes the lock once, knows that
// nothing is allocated from the former one any more.
func TestGrantedUnderTheLock(t *testing.T) {
	s := &Store{DataDir: t.TempDir()}
	former, now := sets(t, "10.1.0.0/24"), sets(t, "10.2.0.0/24")
	locked := func() bool {
		fd, err := unix.Open(s.DataDir+"/net/lock", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return false
		}
		defer unix.Close(fd)
		return errors.Is(unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
	}
	s.Granted = func() ([]ipam.Set, error) {
		if locked() {
			return now, nil
		}
		return former, nil
	}
	o := spec.Owner{Network: "net", ContainerID: "a", IfName: "eth0"}
	got, err := s.Allocate(t.Context(), o)
	if err != nil || got.IPs[0].Address.String() != "10.2.0.2/24" {
		t.Errorf("%+v, %v: want an address of the range that was read with the lock held", got, err)
	}
	for name, use := range map[string]func() error{
		"status": func() error { return s.Status(t.Context(), "net") },
		"room":   func() error { _, _, err := s.Room(t.Context(), "net"); return err },
		"look":   func() error { _, err := s.Look(t.Context(), "net"); return err },
	} {
		s.Sets = nil
		if err := use(); err != nil || len(s.Sets) != 1 || s.Sets[0].String() != now[0].String() {
			t.Errorf("%s: %v, %v", name, s.Sets, err)
		}
	}

	leased, err := s.Leased("net")
	if err != nil || len(leased) != 1 || leased[0] != got.IPs[0].Address.Addr() {
		t.Errorf("leased: %v, %v", leased, err)
	}
	if none, err := s.Leased("other"); err != nil || len(none) != 0 {
		t.Errorf("of a network without a directory: %v, %v", none, err)
	}
	for prefix, want := range map[string]bool{"10.2.0.0/24": true, "10.3.0.0/24": false} {
		withdrawn := false
		busy, err := s.Withdraw(t.Context(), "net", []netip.Prefix{netip.MustParsePrefix(prefix)}, func() error {
			withdrawn = locked()
			return nil
		})
		if err != nil || busy != want || withdrawn == busy {
			t.Errorf("withdraw %s: busy %v, withdrawn with the lock held %v, %v", prefix, busy, withdrawn, err)
		}
	}

	s.Granted = func() ([]ipam.Set, error) { return nil, errors.New("nothing is granted") }
	for name, use := range map[string]func() error{
		"status":   func() error { return s.Status(t.Context(), "net") },
		"allocate": func() error { _, err := s.Allocate(t.Context(), o); return err },
		"room":     func() error { _, _, err := s.Room(t.Context(), "net"); return err },
	} {
		if err := use(); err == nil {
			t.Errorf("%s without a grant: no error", name)
		}
	}
	if b, err := s.Look(t.Context(), "net"); err != nil || len(b.Leases) != 1 || len(b.Problems) != 1 {
		t.Errorf("look without a grant: %+v, %v", b, err)
	}
	if err := s.Verify(t.Context(), o, got); err != nil {
		t.Errorf("verify without a grant: %v", err)
	}
}
