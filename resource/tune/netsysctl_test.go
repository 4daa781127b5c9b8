package tune

import (
	"encoding/binary"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// TestTuningOpensOnce: with many namespaces it is finding a setting that takes the kernel long.
func TestTuningOpensOnce(t *testing.T) {
	w := tuningWorld(t)
	opened := func(ns *kernel.NS, do func()) (n int) {
		t.Helper()
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		err = ns.Do(func() error { // the close after each keeps two from being told as one
			_, err := unix.InotifyAddWatch(fd, "/proc/sys/net/core/somaxconn", unix.IN_OPEN|unix.IN_CLOSE)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		do()
		buf := make([]byte, 4096)
		got, _ := unix.Read(fd, buf)
		for at := 0; at+unix.SizeofInotifyEvent <= got; at += unix.SizeofInotifyEvent {
			if binary.NativeEndian.Uint32(buf[at+4:])&unix.IN_OPEN != 0 {
				n++
			}
		}
		return n
	}
	r := Tuning{Owner: contract.Owner, Link: "eth0", Sysctls: netSysctls(t, "net.core.somaxconn", "503")}
	for _, ns := range []*kernel.NS{w.Container, w.Host} {
		if n := opened(ns, func() { contract.Must(t, w, r) }); n != 1 {
			t.Errorf("ensure opened it %d times in %s", n, ns.Path)
		}
		var err error
		if n := opened(w.Container, func() { err = r.Remove(t.Context(), w) }); n != 1 || err != nil {
			t.Errorf("remove opened it %d times, error %v", n, err)
		}
	}
}
