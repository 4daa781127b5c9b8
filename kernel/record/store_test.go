package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A record that is a directory, as a slip of an administrator's hand leaves it, is none, and does not keep
// DEL from ending.
func TestMemoryOddRecord(t *testing.T) {
	m, o := Store{Dir: t.TempDir()}, spec.Owner{Network: "net", ContainerID: "c", IfName: "eth0"}
	for _, name := range []string{m.file("x", o), m.file("x", o) + unfinished} {
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var v int
	if ok, err := m.Get("x", o, &v); ok || err != nil {
		t.Errorf("recall: %v, %v", ok, err)
	}
	if err := m.Delete("x", o); err != nil {
		t.Errorf("forget: %v", err)
	}
}

// A record that a power cut tore is none, wherever it was torn.
func TestMemoryTorn(t *testing.T) {
	m, o := Store{Dir: t.TempDir()}, spec.Owner{Network: "net", ContainerID: "c", IfName: "eth0"}
	type record struct{ Link, Bridge string }
	if err := m.Put("x", o, record{"veth0", "cni0"}); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(m.file("x", o))
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) {
		if err := os.WriteFile(m.file("x", o), whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		var v record
		if ok, err := m.Get("x", o, &v); err != nil || ok && v != (record{"veth0", "cni0"}) {
			t.Errorf("%q: %v, %v, %v", whole[:n], ok, v, err)
		}
	}
	if err := m.Delete("x", o); err != nil {
		t.Error(err)
	}
}

// What has the name of a record and is a pipe, a link or too large is none, and neither waited for nor read.
func TestMemoryNoFile(t *testing.T) {
	m, o := Store{Dir: t.TempDir()}, spec.Owner{Network: "net", ContainerID: "c", IfName: "eth0"}
	for what, lay := range map[string]func(path string) error{
		"pipe": func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link": func(path string) error { return os.Symlink("/dev/zero", path) },
		"huge": func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 3<<30)) },
	} {
		if err := errors.Join(lay(m.file(what, o)), lay(m.file(what, o)+unfinished)); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			var v int
			if ok, err := m.Get(what, o, &v); ok || err != nil {
				t.Errorf("%s: recall: %v, %v", what, ok, err)
			}
			for _, list := range []func() (map[[8]byte]json.RawMessage, error){
				func() (map[[8]byte]json.RawMessage, error) { return m.All(what) },
				func() (map[[8]byte]json.RawMessage, error) { return m.Records(what, "net") },
			} {
				if all, err := list(); err != nil || len(all) > 0 {
					t.Errorf("%s: records: %v, %v", what, all, err)
				}
			}
			if err := m.Put(what, o, 5); err != nil {
				t.Errorf("%s: remember: %v", what, err)
			}
			if ok, err := m.Get(what, o, &v); !ok || err != nil || v != 5 {
				t.Errorf("%s: recall: %v, %v, %d", what, ok, err, v)
			}
		}()
		select {
		case <-done:
		case <-nstest.Context(t).Done():
			t.Fatalf("%s: it is waited for", what)
		}
	}
}

// Who looks for one record of thousands reads no more than that takes.
func TestMemoryFind(t *testing.T) {
	m := Store{Dir: t.TempDir()}
	for i := range 300 {
		o := spec.Owner{Network: []string{"net", "other"}[i%2], ContainerID: strconv.Itoa(i), IfName: "eth0"}
		if err := m.Put([]string{"kind", "kinds"}[i/2%2], o, i); err != nil {
			t.Fatal(err)
		}
	}
	read := 0
	found, err := m.Find("kind", "net", func([8]byte, json.RawMessage) bool { read++; return true })
	if !found || err != nil || read != 1 {
		t.Errorf("the first that suits: %v, %v, after %d", found, err, read)
	}
	read = 0
	if found, err = m.Find("kind", "net", func([8]byte, json.RawMessage) bool { read++; return false }); found || err != nil ||
		read != 75 {
		t.Errorf("none that suits: %v, %v, after %d of 75", found, err, read)
	}
	if found, err = (Store{Dir: m.Dir + "/none"}).Find("kind", "net", nil); found || err != nil {
		t.Errorf("no store: %v, %v", found, err)
	}
}

// Several calls write one record at a time, as of a bridge that they share, and others read it: each finds a whole one.
func TestMemoryShared(t *testing.T) {
	m, o := Store{Dir: t.TempDir()}, spec.Owner{Network: "n", ContainerID: "c", IfName: "eth0"}
	text := strings.Repeat("x", 3000)
	if err := m.Put("shared", o, text); err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 200 {
				if err := m.Put("shared", o, text); err != nil {
					t.Error(err)
				}
				var have string
				if known, err := m.Get("shared", o, &have); err != nil || !known || have != text {
					t.Errorf("recall of %d bytes: %v, %v", len(have), known, err)
				}
			}
		})
	}
	wait.Wait()
	// One that forgets it meanwhile does not make the others fail.
	for range 4 {
		wait.Go(func() {
			for range 200 {
				if err := errors.Join(m.Put("shared", o, text), m.Delete("shared", o)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	if left, err := os.ReadDir(m.Dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// clause: P21
func TestMemoryWritable(t *testing.T) {
	dir := t.TempDir()
	if err := (Store{Dir: dir + "/a/b"}).Writable(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (Store{Dir: dir + "/file/b"}).Writable(); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
	if _, err := os.ReadDir(dir + "/a"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was made: %v", err)
	}
}

// TestMemorySweepRace sweeps while others forget: what is gone already is swept.
//
// clause: P20
func TestMemorySweepRace(t *testing.T) {
	m := Store{Dir: filepath.Join(t.TempDir(), "m")}
	for range 5 {
		var owners []spec.Owner
		for i := range 50 {
			o := spec.Owner{Network: "net", ContainerID: fmt.Sprint("c", i), IfName: "eth0"}
			if err := m.Put("x", o, i); err != nil {
				t.Fatal(err)
			}
			owners = append(owners, o)
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := m.Sweep("net", func(string, [8]byte) bool { return false }); err != nil {
					t.Error("sweep:", err)
				}
			})
		}
		wg.Go(func() {
			for _, o := range owners {
				if err := m.Delete("x", o); err != nil {
					t.Error("forget:", err)
				}
			}
		})
		wg.Wait()
	}
}
