package filter_test

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/forward"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A stopped process that holds the lock of iptables keeps nobody from putting accepts into a chain that stands, or from
// taking them away.
func TestStoppedAccepts(t *testing.T) {
	for _, v := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		t.Run(v.String(), func(t *testing.T) {
			w := contract.NewWorld(t)
			contract.Host(t, w, "iptables-%v -P FORWARD DROP", v)
			of := func(id, addr string) forward.Forward {
				o := spec.Owner{Network: "net", ContainerID: id, IfName: "eth0"}
				return forward.Forward{Owner: o, Backend: forward.IPTables,
					Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
			}
			first, second := of("c1", "10.1.2.5"), of("c2", "10.1.2.6")
			contract.Ensure(t, w, first)
			stoppedWith(t, "iptables")
			ctx := nstest.Context(t)
			if _, err := second.Ensure(ctx, w); err != nil {
				t.Error(err)
			}
			contract.Verify(t, w, first)
			contract.Verify(t, w, second)
			if err := first.Remove(ctx, w); err != nil {
				t.Error(err)
			}
			contract.Verify(t, w, second)
			if s := contract.Host(t, w, "iptables-%v -S", v); strings.Contains(s, "10.1.2.5") ||
				strings.Count(s, "-s 10.1.2.6") != 1 {
				t.Errorf("the rules are:\n%s", s)
			}
		})
	}
}

// stoppedWith has another process take the lock of that name, and stops it.
func stoppedWith(t *testing.T, name string) {
	t.Helper()
	unlock, err := record.Lock(t.Context(), name) // which makes the file
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	cmd := exec.Command("flock", "--no-fork", record.RunDir+"/"+name+".lock", "sh", "-c", "echo; exec sleep 1000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}

// A process that is stopped at any point of making its rules in iptables keeps no other one from making its own. When
// it goes on, what both have made is there, once.
func TestStoppedIPTables(t *testing.T) {
	calls := []uintptr{unix.SYS_FLOCK, unix.SYS_LINKAT, unix.SYS_WAITID}
	contract.ChooseVariant(t, contract.NewWorld(t), xtables.NFT) // or it skips
	points := 0
	for n := 1; ; n++ {
		w := contract.NewWorld(t)
		contract.ChooseVariant(t, w, xtables.NFT)
		mine := contract.KillPlans["record"]()
		next := filtertest.SourcesByIPTables()
		next.Owner.ContainerID = "c2"
		next.From = []netip.Prefix{contract.Prefix("10.1.2.6/24"), contract.Prefix("fd00::6/64")}
		stopped := stopAt(t, n, w, "record", "ADD", calls, func() (kill bool) {
			ctx := nstest.Context(t)
			if _, err := next.Ensure(ctx, &kernel.World{Host: w.Host, Store: w.Store}); err != nil {
				t.Errorf("while another is stopped at point %d: %v", n, err)
			}
			return false
		})
		if !stopped {
			break
		}
		points++
		all := append(mine, next)
		if err := engine.Verify(t.Context(), w, all); err != nil {
			t.Errorf("stopped at point %d: %v", n, err)
		}
		if err := engine.Undo(t.Context(), w, all); err != nil {
			t.Error(err)
		}
		if s := contract.Host(t, w, "iptables-nft -t nat -S"); strings.Contains(s, "10.1.2.") {
			t.Errorf("stopped at point %d, and removed:\n%s", n, s)
		}
	}
	if points < 6 {
		t.Errorf("stopped at %d points only", points)
	}
	t.Logf("stopped at %d points", points)
}
