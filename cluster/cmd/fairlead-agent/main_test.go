package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/etcd"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// Wrong flags and files are refused before the agent looks for a cluster.
func TestWrongFlags(t *testing.T) {
	long := strings.Repeat("a", 300)
	for _, c := range []struct{ flag, value, want string }{
		{"--node", "a\x1b[31mb", `--node: name "a\x1b[31mb" has the character '\x1b'`},
		{"--node", "../x", `--node: name "../x" begins with '.'`},
		{"--node", "a/b", `--node: name "a/b" has the character '/'`},
		{"--node", ".", `--node: name "." begins with '.'`},
		{"--node", "a..b", `--node: name "a..b" has a dot with nothing behind it`},
		{"--node", "a.", `--node: name "a." has a dot with nothing behind it`},
		{"--node", "", "--node: name is empty"},
		{"--node", long, "--node: name \"aaaaaaaaaaaaaaaaaaaa\"… has 300 characters: want at most 253"},
		{"--network", long, "has 300 characters: want at most 80"},
		{"--etcd", "", "want the URL of at least one member of etcd"},
	} {
		err := run(t.Context(), []string{c.flag, c.value})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q: %v, want %q", c.flag, c.value, err, c.want)
		}
	}
	nstest.Run(t, "mount", "-t", "tmpfs", "none", "/etc") // of this test alone
	if err := os.MkdirAll(filepath.Dir(etcd.JoinedFile), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("gone", etcd.JoinedFile); err != nil {
		t.Fatal(err)
	}
	err := run(t.Context(), []string{"--node", "a.b-c_D.9"})
	if want := etcd.JoinedFile + ": it is no plain file but a symbolic link"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}
