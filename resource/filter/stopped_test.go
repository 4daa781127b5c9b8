package filter_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"golang.org/x/sys/unix"
)

// A process that is stopped at any point of its work on the packet filter, with the lock or without, keeps no other
// one from its own; and when it goes on, what both have made is there, once.
func TestStoppedHolder(t *testing.T) {
	for _, verb := range []string{"ADD", "DEL"} {
		nstest.Apart(t, verb, func(t *testing.T) {
			last := nstest.Sample(t, 8, func(n int) (stopped bool) { return stoppedHolder(t, n, verb) })
			if last < 10 {
				t.Errorf("the last point is %d only", last)
			}
			t.Logf("the last point is %d", last)
		})
	}
}

func stoppedHolder(t *testing.T, n int, verb string) (stopped bool) {
	w := contract.NewWorld(t)
	if n%2 == 0 { // else what attachments share is made by one of the two
		filtertest.MakeTables(t, w)
	}
	mine := filtertest.KillFilterPlan()
	if verb == "DEL" {
		for _, r := range mine {
			contract.Ensure(t, w, r)
		}
	}
	// with the address of the one that is stopped
	next := filtertest.PortsOf("c2", "net", "10.1.2.5/24", filtertest.TCP("", 8081))
	gone := filtertest.PortsOf("c3", "net", "10.1.2.5/24", filtertest.TCP("", 8082))
	others := plan.Plan{next, masquerade.Sources{Owner: next.Owner, From: []netip.Prefix{next.To4}}}
	contract.Ensure(t, w, gone)
	stopped = stopAt(t, n, w, "filter", verb, talks(), func() (kill bool) {
		ns, err := kernel.Open(w.Host.Path) // as another process: nobody has waited yet
		if err != nil {
			t.Error(err)
			return false
		}
		defer ns.Close()
		other := &kernel.World{Host: ns, Store: w.Store}
		ctx := t.Context() // a lock that has to be had is given up with an error
		for _, r := range others {
			if _, err := r.Ensure(ctx, other); err != nil {
				t.Errorf("while another is stopped at point %d: %v", n, err)
			}
			if err := r.Verify(ctx, other); err != nil {
				t.Errorf("while another is stopped at point %d: %v", n, err)
			}
		}
		if err := gone.Remove(ctx, other); err != nil {
			t.Errorf("while another is stopped at point %d: %v", n, err)
		}
		return false
	})
	if !stopped {
		return false
	}
	all := others
	if verb == "ADD" {
		all = append(all, mine...)
	}
	if err := engine.Verify(t.Context(), w, all); err != nil {
		t.Errorf("stopped at point %d: %v", n, err)
	}
	for _, line := range []string{"jump masquerade_ip_", "jump hairpin_ip_"} {
		if s := filtertest.State(t, w); strings.Count(s, line) != 1 {
			t.Errorf("stopped at point %d: %q is there %d times:\n%s", n, line, strings.Count(s, line), s)
		}
	}
	if err := engine.Undo(t.Context(), w, all); err != nil {
		t.Error(err)
	}
	if s := filtertest.State(t, w); strings.Contains(s, "elements") {
		t.Errorf("stopped at point %d, and removed:\n%s", n, s)
	}
	return true
}

// A process that is stopped at any point of taking a policy from a bridge, or of putting one there, keeps no other one
// from its own: the policy stands as long as one attachment needs it, and goes with the last.
func TestStoppedPolicy(t *testing.T) {
	calls := append(talks(), unix.SYS_RENAMEAT, unix.SYS_UNLINKAT, unix.SYS_GETDENTS64)
	for _, tt := range []struct{ stopped, other string }{{"DEL", "ADD"}, {"ADD", "DEL"}, {"DEL", "DEL"},
		{"ADD", "ADD"}} {
		nstest.Apart(t, tt.stopped+" beside "+tt.other, func(t *testing.T) {
			last := nstest.Sample(t, 4, func(n int) (stopped bool) {
				w := contract.NewWorld(t)
				contract.Host(t, w, "ip link add br7 up type bridge")
				contract.Host(t, w, "ip addr add 10.7.0.1/24 dev br7")
				first, second := filtertest.PolicyPlan("c1"), filtertest.PolicyPlan("c2")
				rules := func() string { return filtertest.FailClosedState(t, w) }
				unruled := rules()
				contract.Must(t, w, first...)
				if err := engine.Undo(t.Context(), w, first); err != nil { // what is shared stays
					t.Fatal(err)
				}
				before := filtertest.Elements(t, w)
				if tt.stopped == "DEL" {
					contract.Must(t, w, first...)
				}
				if tt.other == "DEL" {
					contract.Must(t, w, second...)
				}
				stopped = stopAt(t, n, w, "policy", tt.stopped, calls, func() bool {
					ns, err := kernel.Open(w.Host.Path)
					if err != nil {
						t.Error(err)
						return false
					}
					defer ns.Close()
					other := &kernel.World{Host: ns, Store: w.Store}
					ctx := nstest.Context(t)
					if tt.other == "DEL" {
						err = engine.Undo(ctx, other, second)
					}
					for _, r := range second {
						if _, eerr := r.Ensure(ctx, other); tt.other == "ADD" && eerr != nil {
							err = eerr
						}
					}
					if err != nil {
						t.Errorf("while another is stopped at point %d: %v", n, err)
					}
					return false
				})
				if !stopped {
					return false
				}
				for verb, p := range map[string]plan.Plan{tt.stopped: first, tt.other: second} {
					if tt.stopped == tt.other {
						p = first
					}
					if err := engine.Verify(t.Context(), w, p); verb == "ADD" && err != nil {
						t.Errorf("stopped at point %d: %v", n, err)
					}
				}
				if err := errors.Join(engine.Undo(t.Context(), w, first), engine.Undo(t.Context(), w, second)); err != nil {
					t.Error(err)
				}
				if after := filtertest.Elements(t, w); after != before {
					t.Errorf("stopped at point %d, and removed:%s", n, contract.Difference(before, after))
				}
				if after := rules(); after != unruled {
					t.Errorf("stopped at point %d, and removed:%s", n, contract.Difference(unruled, after))
				}
				return true
			})
			if last < 4 {
				t.Errorf("the last point is %d only", last)
			}
			t.Logf("the last point is %d", last)
		})
	}
}

// talks are the system calls that ask nf_tables something, change it, or take its lock.
func talks() []uintptr { return []uintptr{unix.SYS_SENDTO, unix.SYS_FLOCK} }

// A call that is killed at any point of writing a record leaves none that DEL does not find, though DEL looks for no
// more than what the record says.
func TestKilledRecord(t *testing.T) {
	names := []uintptr{unix.SYS_WRITE, unix.SYS_LINKAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_FTRUNCATE}
	contract.ChooseVariant(t, contract.NewWorld(t), xtables.NFT) // or it skips
	for _, before := range []bool{false, true} {
		points := 0
		for n := 1; ; n++ {
			w := contract.NewWorld(t)
			contract.ChooseVariant(t, w, xtables.NFT)
			p := contract.KillPlans["record"]()
			if before {
				m := filtertest.SourcesByIPTables()
				m.From = m.From[:1] // so that the record is written anew
				contract.Ensure(t, w, m)
			}
			killed := stopAt(t, n, w, "record", "ADD", names, func() bool { return true })
			if err := engine.Undo(t.Context(), &kernel.World{Host: w.Host, Store: w.Store}, p); err != nil {
				t.Error(err)
			}
			if left, err := os.ReadDir(w.Store.Dir); err != nil || len(left) > 0 {
				t.Errorf("killed at point %d, and removed: %v, %v", n, left, err)
			}
			if !killed {
				break
			}
			points++
		}
		if points < 3 {
			t.Errorf("killed at %d points only", points)
		}
	}
}

// stopAt has a child do verb, and stops it before a system call of those that calls names, for the n-th time. Meanwhile
// is run then; after it the child goes on, or is killed.
func stopAt(t *testing.T, n int, w *kernel.World, which, verb string, calls []uintptr,
	meanwhile func() (kill bool)) (stopped bool) {
	t.Helper()
	err := nstest.Stopping(calls, func() (err error) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), contract.KillMe+"="+which, contract.KillMe+"_VERB="+verb,
			contract.KillMe+"_HOST="+w.Host.Path, contract.KillMe+"_CONT="+w.Container.Path, contract.KillMe+"_MEMORY="+
				w.Store.Dir)
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
		if err := cmd.Start(); err != nil {
			return err
		}
		defer cmd.Process.Release()
		stopped, err = traced(cmd.Process.Pid, n, func() bool {
			kill := make(chan bool)
			go func() { kill <- meanwhile() }() // on a thread that can make the calls
			return <-kill
		})
		return err
	})
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		t.Skipf("trace a child: %v", err)
	}
	if err != nil {
		t.Error(err)
	}
	return stopped
}

// traced lets a process run to its end, and calls meanwhile where it stops before a system call for the n-th time. The
// programs that it runs are traced because the kernel would answer their calls with ENOSYS; they are not counted.
func traced(root, n int, meanwhile func() (kill bool)) (stopped bool, err error) {
	var ws unix.WaitStatus
	if _, err := unix.Wait4(root, &ws, 0, nil); err != nil {
		return false, err
	}
	const options = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK |
		unix.PTRACE_O_TRACESECCOMP | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(root, options); err != nil {
		return false, err
	}
	pid, sig := root, 0
	for {
		if !ws.Exited() && !ws.Signaled() {
			if err := unix.PtraceCont(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
				return stopped, err
			}
		}
		var werr error
		if pid, werr = unix.Wait4(-1, &ws, unix.WALL|unix.WNOTHREAD, nil); errors.Is(werr, unix.ECHILD) {
			return stopped, err // all have ended
		} else if werr != nil {
			return stopped, werr
		}
		sig = 0
		switch {
		case pid == root && (ws.Signaled() && ws.Signal() != unix.SIGKILL || ws.Exited() && ws.ExitStatus() != 0):
			err = fmt.Errorf("the child ends with %v", ws)
		case !ws.Stopped():
			continue // another thread's end, or that of a program
		case ws.TrapCause() == unix.PTRACE_EVENT_SECCOMP:
			if unix.Tgkill(root, pid, 0) != nil {
				continue // of a program
			}
			if n--; n == 0 {
				stopped = true
				if meanwhile() { // a thread that waits for the tracer is stopped; the others have nothing to do
					_ = unix.Kill(root, unix.SIGKILL)
				}
			}
		case ws.StopSignal() != unix.SIGTRAP && ws.StopSignal() != unix.SIGSTOP:
			sig = int(ws.StopSignal()) // the runtime's own, such as SIGURG
		}
	}
}
