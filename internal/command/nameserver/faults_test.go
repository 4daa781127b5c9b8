package nameserver

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/resource/names"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// serveVar names, in the environment, the directory of the records of a server in a process of its own.
const serveVar = "FAIRLEAD_TEST_SERVE"

// serveHere serves until it is told to end. As under systemd, the socket is there before the process.
func serveHere(m record.Store) error {
	socket, err := net.FileListener(os.NewFile(3, "socket"))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	return Serve(ctx, Settings{Memory: m, ResolvConf: resolvConf, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Holder: func(uint32) string { return "" }}, socket, func() {})
}

// TestFaults lets calls fail by which the server reads records and questions. It never says that a name does not exist
// which does. It ends with an error, and systemd starts it again, or answers in the end.
func TestFaults(t *testing.T) {
	r := newRig(t)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	os.Remove(Socket(r.memory))
	l, err := net.Listen("unix", Socket(r.memory))
	if err != nil {
		t.Fatal(err)
	}
	socket, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	r.record(false, "c1", names.Record{Addrs: addrs("10.1.0.2/16", "fd00:1::2/64")})

	faults := nstest.Faults()
	for i, call := range []string{"openat", "socket", "getdents64", "accept4", "recvmsg", "getsockopt", "fstat"} {
		t.Run(call, func(t *testing.T) {
			nstest.Sample(t, 4, func(n int) (fired bool) {
				return r.in(t).faulty(socket, call, n, faults[(i+n)%len(faults)])
			})
		})
	}
}

// in is the rig for a part of a test.
func (r *rig) in(t *testing.T) *rig {
	part := *r
	part.T = t
	return &part
}

// faulty runs a server whose nth call of a name fails, and starts it again where it ends. It asks for the name of a record
// that was there, and of one that comes.
func (r *rig) faulty(socket *os.File, call string, n int, errno unix.Errno) (fired bool) {
	r.Helper()
	ctx, stop := context.WithCancel(r.Context())
	var said bytes.Buffer
	server := func() *exec.Cmd {
		cmd := exec.CommandContext(ctx, "/proc/self/exe")
		cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
		cmd.Env = append(os.Environ(), serveVar+"="+r.memory.Dir)
		cmd.ExtraFiles = []*os.File{socket}
		cmd.Stdout, cmd.Stderr = &said, &said
		return cmd
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		count := 0
		nstest.WithFaults(server(), func(nstest.Syscall) unix.Errno {
			if count++; count != n {
				return 0
			}
			fired = true
			return errno
		}, call) // its error is that the test ends it
		for ctx.Err() == nil {
			server().Run()
		}
	}()

	defer func() {
		stop()
		if <-ended; r.Failed() {
			r.Logf("the server said:\n%s", said.String())
		}
	}()
	what := fmt.Sprintf("%s number %d is %s", call, n, unix.ErrnoName(errno))
	r.finds(what, "c1", "10.1.0.2")
	later := fmt.Sprint(call, n)
	r.record(false, later, names.Record{Addrs: addrs("10.1.0.9/16")})
	r.until(what+": "+later+" to be heard of", func() bool { return r.tell(later) == nil })
	r.finds(what, later, "10.1.0.9")
	r.memory.Delete(names.Kept, spec.Owner{Network: "net", ContainerID: later, IfName: "eth0"})
	return fired
}

// finds waits until a name has an address. Meanwhile it must not be said that there is no such name.
func (r *rig) finds(what, name, addr string) {
	r.Helper()
	r.until(what+": "+name, func() bool {
		got := r.answer("udp", name, dns.TypeA)
		if got == "NXDOMAIN" {
			r.Errorf("%s: %s is NXDOMAIN", what, name)
		}
		return got == addr || r.Failed()
	})
}
