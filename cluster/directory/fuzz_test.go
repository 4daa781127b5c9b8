package directory

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// FuzzFile: a file of any content holds nodes that are settled, or it is refused with its name. Nodes are read as they
// are written, and what is settled stays so.
func FuzzFile(f *testing.F) {
	for _, s := range []string{"", "{", "null", "\x00", `{"cluster":"other","nodes":[]}`,
		`{"cluster":"c","nodes":[{"name":"a","joined":1,"endpoints":["192.0.2.1"],
		"prefixes":["10.1.0.0/24","fd00:1::/64"],"mac":"02:00:00:00:00:01"},{"name":"b","prefixes":["10.1.0.0/16"]}]}`,
		`{"cluster":"c","nodes":[{"name":"a","prefixes":["",null,"10.1.0.7/24"]},{"prefixes":["10.1.0.7/24"]}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		file := File{filepath.Join(t.TempDir(), "nodes.json")}
		if err := os.WriteFile(file.Path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		nodes, err := file.Load("c")
		if err != nil {
			return
		}
		settled, _ := ResolveConflicts(nodes)
		if again, conflicts := ResolveConflicts(settled); text(t, again) != text(t, settled) || len(conflicts) > 0 {
			t.Errorf("%s is settled as %s, and that as %s, %v", content, text(t, settled), text(t, again), conflicts)
		}
		owner := map[netip.Prefix]string{}
		for _, n := range settled {
			for _, e := range n.Endpoints {
				if !e.IsValid() {
					t.Errorf("%s: an endpoint of %s is invalid", content, n.Name)
				}
			}
			for _, p := range n.Prefixes {
				if other, taken := owner[p]; taken && other != n.Name {
					t.Errorf("%s: %v is of %s and %s", content, p, other, n.Name)
				}
				owner[p] = n.Name
			}
		}

		if err := file.Save("c", nodes); err != nil {
			t.Fatal(err)
		}
		again, err := file.Load("c")
		if err != nil || text(t, again) != text(t, nodes) {
			t.Errorf("%s is written as %s, %v", text(t, nodes), text(t, again), err)
		}
	})
}

func text(t *testing.T, nodes []Node) string {
	b, err := json.Marshal(nodes)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
