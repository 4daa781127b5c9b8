package forward

import (
	"bufio"
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestFirewalldBus tells a bus that is not there from one that refuses and from one that never answers: only the first
// one means that no firewalld runs.
func TestFirewalldBus(t *testing.T) {
	dir := t.TempDir()
	ask := func(ctx context.Context) error { return withFirewalld(ctx, func(zones) error { return nil }) }
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+dir+"/none")
	if err := ask(t.Context()); !errors.Is(err, errNoFirewalld) || !strings.Contains(err.Error(), dir+"/none") {
		t.Errorf("no bus: %v", err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "carrier-pigeon:name=7")
	if err := ask(t.Context()); err == nil || errors.Is(err, errNoFirewalld) {
		t.Errorf("an address of an unknown kind: %v", err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "bus"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	answer := make(chan string, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			for in := bufio.NewScanner(c); in.Scan(); {
				said, ok := <-answer
				if !ok {
					break // and the connection stays open
				}
				c.Write([]byte(said + "\r\n"))
			}
		}
	}()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+dir+"/bus")
	answer <- "REJECTED KERBEROS"
	if err := ask(t.Context()); err == nil || errors.Is(err, errNoFirewalld) ||
		!strings.Contains(err.Error(), "authentication failed") {
		t.Errorf("a bus that refuses: %v", err)
	}
	close(answer)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := ask(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a bus that does not answer: %v", err)
	}
}
