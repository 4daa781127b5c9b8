package cli

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/command/nameserver"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/resource/names"
)

// The socket that systemd has opened is taken: who asked before the server ran is answered, and the socket stays when
// the server ends.
func TestNamesActivation(t *testing.T) {
	fairlead := program(t)
	socket := nameserver.Socket(record.Store{Dir: record.Dir})
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	f, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan error, 1)
	for range 2 {
		go func() { asked <- names.Ask(t.Context(), socket, names.Question{Network: "net"}) }()
		cmd := exec.Command("sh", "-c", `export LISTEN_PID=$$ LISTEN_FDS=1; exec "$0" dns`, fairlead)
		cmd.ExtraFiles, cmd.Stderr = []*os.File{f}, os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := <-asked; err != nil {
			t.Error(err)
		}
		cmd.Process.Signal(os.Interrupt)
		timer := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		timer.Stop()
		if _, err := os.Stat(socket); err != nil {
			t.Error(err)
		}
	}
}
