package daemon

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// What no server can have given is put aside, and so is what is no plain file, which opening alone might hang on.
func TestImpossibleFiles(t *testing.T) {
	for name, change := range map[string]func(lease map[string]any, path string) error{
		"good": nil,
		"no prefix": func(l map[string]any, _ string) error {
			l["addresses"] = []any{map[string]any{"prefix": ""}}
			return nil
		},
		"a prefix of IPv6": func(l map[string]any, _ string) error {
			l["addresses"] = []any{map[string]any{"prefix": "fe80::1/64"}}
			return nil
		},
		"a prefix of all": func(l map[string]any, _ string) error {
			l["addresses"] = []any{map[string]any{"prefix": "10.9.0.50/0"}}
			return nil
		},
		"two addresses": func(l map[string]any, _ string) error {
			l["addresses"] = append(l["addresses"].([]any), l["addresses"].([]any)...)
			return nil
		},
		"a delegated one": func(l map[string]any, _ string) error {
			l["delegated"] = []any{map[string]any{"prefix": ""}}
			return nil
		},
		"a server of IPv6": func(l map[string]any,
			_ string) error {
			l["server"] = map[string]any{"addr": "fe80::1"}
			return nil
		},
		"a gateway of IPv6": func(l map[string]any, _ string) error { l["gateway"] = "fe80::1"; return nil },
		"a time server's":   func(l map[string]any, _ string) error { l["ntp"] = []any{"fe80::1"}; return nil },
		"a route of IPv6": func(l map[string]any,
			_ string) error {
			l["routes"] = []any{map[string]any{"dst": "::/0"}}
			return nil
		},
		"a route by IPv6": func(l map[string]any, _ string) error {
			l["routes"] = []any{map[string]any{"dst": "0.0.0.0/0", "gw": "fe80::1"}}
			return nil
		},
		"no time":             func(l map[string]any, _ string) error { l["valid"] = 0; return nil },
		"a time that is past": func(l map[string]any, _ string) error { l["t1"] = -5; return nil },
		"a pipe":              func(_ map[string]any, path string) error { os.Remove(path); return unix.Mkfifo(path, 0o600) },
		"a symbolic link": func(_ map[string]any, path string) error {
			os.Rename(path, path+".else")
			return os.Symlink(path+".else", path)
		},
		"too much": func(_ map[string]any, path string) error {
			return os.WriteFile(path, []byte(strings.Repeat(" ", 2<<20)), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newTestKeeper(t, leaseOf("10.9.0.50/24", "10.9.0.1"))
			if err := k.d.store.save(k.rec); err != nil {
				t.Fatal(err)
			}
			path := k.d.store.path(k.rec.Ask.Owner, k.rec.Protocol)
			if change != nil {
				b, _ := os.ReadFile(path)
				var m map[string]any
				if err := json.Unmarshal(b, &m); err != nil {
					t.Fatal(err)
				}
				before, _ := os.Lstat(path)
				if err := change(m["lease"].(map[string]any), path); err != nil {
					t.Fatal(err)
				}
				if st, _ := os.Lstat(path); os.SameFile(before, st) && st.Size() == before.Size() {
					b, _ = json.Marshal(m)
					if err := os.WriteFile(path, b, 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			records, err := k.d.store.load()
			if err != nil {
				t.Fatal(err)
			}
			_, aside := os.Lstat(filepath.Join(k.d.store.dir, broken, filepath.Base(path)))
			if change == nil && (len(records) != 1 || aside == nil) || change != nil && (len(records) != 0 || aside != nil) {
				t.Errorf("%d records; put aside: %v", len(records), aside)
			}
		})
	}
}

// A note of an owner without a lease goes, also a pipe.
func TestPipeForNote(t *testing.T) {
	dir := t.TempDir()
	note := filepath.Join(dir, "x"+dhcp.NoteSuffix)
	if err := unix.Mkfifo(note, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dhcp.TakeNotes(dir, nil, nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(note); !os.IsNotExist(err) {
		t.Errorf("it stays: %v", err)
	}
}

// A mistake costs the call that it is made in.
func TestPanic(t *testing.T) {
	var d *Daemon
	_, err := d.handle(context.Background(), rpc.Ask, rpc.Question{Verb: "LS"})
	if e := spec.AsError(err, 0); e == nil || e.Code != spec.CodeInternal || !strings.Contains(err.Error(), "nil pointer") {
		t.Errorf("the call says %v", err)
	}
	k := newTestKeeper(t, leaseOf("10.9.0.50/24", "10.9.0.1"))
	if err := k.d.giveBack(nil, reached{up: true}, k.rec); err == nil {
		t.Error("no protocol gave a lease back")
	}
}
