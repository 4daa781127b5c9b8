package directory

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
)

// The older of two nodes keeps a prefix, and both are named.
func TestSettle(t *testing.T) {
	n := func(name string, joined int64, prefixes ...string) Node {
		out := Node{Name: name, Joined: joined}
		for _, p := range prefixes {
			out.Prefixes = append(out.Prefixes, netip.MustParsePrefix(p))
		}
		return out
	}
	for name, tc := range map[string]struct {
		nodes     []Node
		want      string
		conflicts []string
	}{
		"none":              {[]Node{n("b", 1, "10.2.0.0/24"), n("a", 2, "10.1.0.0/24")}, "a[10.1.0.0/24] b[10.2.0.0/24]", nil},
		"equal":             {[]Node{n("a", 2, "10.1.0.0/24", "fd00::/64"), n("b", 1, "10.1.0.0/24")}, "a[fd00::/64] b[10.1.0.0/24]", []string{"node a has 10.1.0.0/24, which overlaps 10.1.0.0/24 of node b"}},
		"wider":             {[]Node{n("a", 2, "10.1.7.0/24"), n("b", 1, "10.1.0.0/16")}, "a[] b[10.1.0.0/16]", []string{"node a has 10.1.7.0/24, which overlaps 10.1.0.0/16 of node b"}},
		"within":            {[]Node{n("a", 1, "10.1.7.0/24"), n("b", 2, "10.1.0.0/16")}, "a[10.1.7.0/24] b[]", []string{"node b has 10.1.0.0/16, which overlaps 10.1.7.0/24 of node a"}},
		"same age, by name": {[]Node{n("b", 1, "10.1.0.0/24"), n("a", 1, "10.1.0.0/24")}, "a[10.1.0.0/24] b[]", []string{"node b"}},
	} {
		settled, conflicts := ResolveConflicts(tc.nodes)
		var got []string
		for _, s := range settled {
			got = append(got, fmt.Sprint(s.Name, s.Prefixes))
		}
		if strings.Join(got, " ") != tc.want || len(conflicts) != len(tc.conflicts) {
			t.Errorf("%s: %q, %v", name, got, conflicts)
			continue
		}
		for i, c := range conflicts {
			if !strings.Contains(c.Error(), tc.conflicts[i]) {
				t.Errorf("%s: %v, want %q", name, c, tc.conflicts[i])
			}
		}
	}
}

// What was saved is loaded, and what was not is no node.
func TestFile(t *testing.T) {
	f := File{filepath.Join(t.TempDir(), "cluster", "pods.json")}
	if nodes, err := f.Load("c"); nodes != nil || err != nil {
		t.Error(nodes, err)
	}
	want := []Node{{Name: "a", Joined: 1, MAC: "02:00:00:00:00:01", Endpoints: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, Tunnel: Tunnel{Key: "k", Port: 7}}}
	if err := f.Save("c", want); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Load("c"); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Error(got, err)
	}
	if got, err := f.Load("d"); err == nil || len(got) > 0 || !strings.Contains(err.Error(), `is of the cluster "c"`) {
		t.Error(got, err)
	}
	if err := os.WriteFile(f.Path, []byte(`{"cluster":"c","nod`), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Load("c"); err == nil || len(got) > 0 {
		t.Error(got, err)
	}

	// A pipe is not waited for, and what a symbolic link at the temporary name leads to is not written.
	other := filepath.Join(t.TempDir(), "other")
	err := errors.Join(os.Remove(f.Path), syscall.Mkfifo(f.Path, 0o600), os.WriteFile(other, []byte("keep"), 0o600),
		os.Symlink(other, f.Path+".new"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := f.Load("c"); !errors.Is(err, plainfile.ErrNotPlain) {
		t.Error(got, err)
	}
	if err := f.Save("c", want); err != nil {
		t.Error(err)
	}
	if got, err := f.Load("c"); err != nil || len(got) != 1 {
		t.Error(got, err)
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "keep" {
		t.Errorf("%s, %v", text, err)
	}
}
