package kernel

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzBusMessage reads whatever comes, and neither panics nor believes a length.
func FuzzBusMessage(f *testing.F) {
	reply := []byte("l\x02\x01\x01\x04\x00\x00\x00\x01\x00\x00\x00\x0f\x00\x00\x00\x05\x01u\x00\x02\x00\x00\x00\x08\x01g\x00\x01b\x00\x00\x01\x00\x00\x00")
	f.Add(reply)
	f.Add([]byte("l\x03\x01\x01\xff\xff\xff\xff\x01\x00\x00\x00\x08\x00\x00\x00"))
	f.Add([]byte("B\x04\x01\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x09\x04\x01s\x00\xff\xff\xff\xff\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := (&Bus{in: bufio.NewReader(bytes.NewReader(b))}).receive()
		if bytes.Equal(b, reply) && (err != nil || r.reply != 2 || r.value != true) {
			t.Errorf("an answer of true to message 2 is %+v, %v", r, err)
		}
	})
}

// TestBusRefused tells a bus that is not there from one that refuses, and does not take what is no D-Bus for one.
func TestBusRefused(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "tcp:host=192.0.2.1;unix:path="+dir+"/none,guid=7")
	if _, err := SystemBus(t.Context()); !errors.Is(err, ErrNoBus) || !strings.Contains(err.Error(), dir+"/none") {
		t.Errorf("no bus: %v", err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "bus"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			bufio.NewReader(c).ReadString('\n')
			c.Write([]byte("REJECTED KERBEROS\r\n"))
			c.Close()
		}
	}()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+dir+"/bus")
	if _, err := SystemBus(context.Background()); err == nil || !strings.Contains(err.Error(), "REJECTED KERBEROS") {
		t.Errorf("a bus that refuses: %v", err)
	}
}
