package trace

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// load loads a program that returns a verdict for every packet.
func load(t *testing.T, kind uint32, verdict uint64) int {
	t.Helper()
	code := []uint64{0xb7 | verdict<<32, 0x95} // r0 = verdict; exit
	license := []byte("GPL\x00")
	attr := struct {
		kind, count   uint32
		code, license uint64
		rest          [16]uint64
	}{kind: kind, count: uint32(len(code)), code: uint64(uintptr(unsafe.Pointer(&code[0]))),
		license: uint64(uintptr(unsafe.Pointer(&license[0])))}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		nstest.Skip(t, "the kernel does not load BPF programs: ", errno)
	}
	t.Cleanup(func() { unix.Close(int(fd)) })
	return int(fd)
}

// attach attaches a program that lets the next one decide, at tcx of a link. It returns nil if the kernel has no tcx.
func attach(t *testing.T, dev string, at uint32) (detach func()) {
	t.Helper()
	link := indexOf(t, dev)
	const next = 0xffffffff // TCX_NEXT
	fd := load(t, unix.BPF_PROG_TYPE_SCHED_CLS, next)
	attr := struct{ link, program, at, flags, replace, relative uint32 }{uint32(link), uint32(fd), at, 0, 0, 0}
	call := func(command uintptr) unix.Errno {
		_, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		return errno
	}
	switch errno := call(unix.BPF_PROG_ATTACH); errno {
	case 0:
	case unix.EINVAL: // before Linux 6.6
		return nil
	default:
		t.Fatal(errno)
	}
	return func() {
		if errno := call(unix.BPF_PROG_DETACH); errno != 0 {
			t.Error(errno)
		}
	}
}

func indexOf(t *testing.T, dev string) int {
	t.Helper()
	link, err := net.InterfaceByName(dev)
	if err != nil {
		t.Fatal(err)
	}
	return link.Index
}

// setXDP sets the program at XDP of a link, in the part that every driver has. A negative fd removes it.
func setXDP(t *testing.T, dev string, fd int) {
	t.Helper()
	const generic = 1 << 1 // XDP_FLAGS_SKB_MODE
	ns, err := kernel.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	req := netlink.NewRequest(unix.RTM_SETLINK, unix.NLM_F_ACK, unix.IfInfomsg{Index: int32(indexOf(t, dev))})
	req.Nest(unix.IFLA_XDP, func() {
		req.Host32(unix.IFLA_XDP_FD, uint32(fd))
		req.Host32(unix.IFLA_XDP_FLAGS, generic)
	})
	if err := rtnl.Tell(ns, req); err != nil {
		t.Fatal(err)
	}
}

// TestPrograms follows packets past BPF programs at links: nobody can tell what becomes of them.
func TestPrograms(t *testing.T) {
	f := newField(t)
	verdict := func(from string, dst string) *Answer {
		t.Helper()
		a, err := f.Trace(Question{From: f.byName[from], Dst: netip.MustParseAddr(dst), Proto: kernel.UDP, DstPort: 7000})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, c := range []struct{ from, dst, dev, hook string }{
		{"a", "10.1.0.1", "va", "ingress"},
		{"a", "10.1.0.1", "br0", "ingress"},
		{"host", "10.1.0.2", "br0", "egress"},
		{"host", "10.1.0.2", "va", "egress"},
		{"host", "10.2.0.2", "vfar", "egress"},
	} {
		if a := verdict(c.from, c.dst); a.Verdict != Passes {
			t.Fatalf("%s to %s without a program: %+v", c.from, c.dst, a)
		}
		nstest.Run(t, "tc", "qdisc", "add", "dev", c.dev, "clsact")
		nstest.Run(t, "tc", "filter", "add", "dev", c.dev, c.hook, "bpf", "bytecode", "1,6 0 0 4294967295", "classid", "1:1")
		a := verdict(c.from, c.dst)
		want := "at tc " + c.hook + " of " + c.dev + " does"
		if a.Verdict != Unknown || !strings.HasSuffix(a.Why, want) || a.Look != "bpftool net show dev "+c.dev {
			t.Errorf("%s to %s: %s, %s (%+v); want %s", c.from, c.dst, a.Verdict, a.Why, a.Advice, want)
		}
		nstest.Run(t, "tc", "qdisc", "del", "dev", c.dev, "clsact")
	}

	for _, c := range []struct {
		from, dst, dev, hook string
		at                   uint32
	}{
		{"a", "10.1.0.1", "va", "ingress", unix.BPF_TCX_INGRESS},
		{"host", "10.2.0.2", "vfar", "egress", unix.BPF_TCX_EGRESS},
	} {
		detach := attach(t, c.dev, c.at)
		if detach == nil {
			t.Log("the kernel has no tcx")
			break
		}
		a := verdict(c.from, c.dst)
		want := "at tcx " + c.hook + " of " + c.dev + " does"
		if a.Verdict != Unknown || !strings.HasSuffix(a.Why, want) || a.Look != "bpftool net show dev "+c.dev {
			t.Errorf("%s to %s: %s, %s (%+v); want %s", c.from, c.dst, a.Verdict, a.Why, a.Advice, want)
		}
		detach()
		if a := verdict(c.from, c.dst); a.Verdict != Passes {
			t.Errorf("%s to %s after the program has gone: %+v", c.from, c.dst, a)
		}
	}

	const xdpPass = 2
	fd := load(t, unix.BPF_PROG_TYPE_XDP, xdpPass)
	for _, dev := range []string{"va", "br0"} {
		setXDP(t, dev, fd)
		a := verdict("a", "10.1.0.1")
		has := slices.ContainsFunc(a.Hops, func(h Hop) bool {
			return h.Kind == Program && strings.HasSuffix(h.Text, "at XDP of "+dev+" does")
		})
		if a.Verdict != Unknown || !has {
			t.Errorf("XDP at %s: %+v", dev, a)
		}
		setXDP(t, dev, -1)
	}
}
