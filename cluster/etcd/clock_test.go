package etcd

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/directory"
)

// wallClocks are where the programs of a fleet and the plugin cluster read the date, or have one from elsewhere, and why no jump
// of a clock changes what they decide. All other times are differences within one process, which the monotonic clock measures.
var wallClocks = []string{
	"agent/metrics.go: UnixMilli: for people",
	"etcd/need.go: Unix: when addresses were counted, for people",
	"fleet/change.go: time.Unix: the same",
	"nodes/nodes.go: Unix: the order in which the API server made Node objects",
	"fleet/authority.go: UnixNano: a serial number. The dates of certificates are checked by TLS, and have a day of skew",
	"nodes/meter.go: UnixNano: of the last bytes of the API server. It decides what status says, and nothing else",
	"nodes/meter.go: time.Unix: the same",
}

// No decision goes by the date: a date that leaves a process, or comes from elsewhere, is in the list.
func TestNoDates(t *testing.T) {
	var found []string
	dirs := []string{"..", "../../plugin/cluster", "../../internal/ipam/grant"}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			isProduct := strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go")
			if err != nil || !isProduct {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			name, _ := filepath.Rel("..", path)
			ast.Inspect(file, func(n ast.Node) bool {
				if what := dateIn(n); what != "" {
					found = append(found, fmt.Sprintf("%s: %s", name, what))
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	isListed := func(what string) bool {
		return slices.ContainsFunc(wallClocks, func(listed string) bool { return strings.HasPrefix(listed, what) })
	}
	for _, what := range found {
		if !isListed(what) {
			t.Errorf("%s: a date, which may jump, or is of another clock", what)
		}
	}
	for _, listed := range wallClocks {
		if !slices.ContainsFunc(found, func(what string) bool { return strings.HasPrefix(listed, what) }) {
			t.Errorf("%s: is not there any more", listed)
		}
	}
}

// dateIn says which date a piece of source has: one that is made from a number or a text or made one, or one in a document.
func dateIn(n ast.Node) string {
	switch n := n.(type) {
	case *ast.SelectorExpr:
		if of, is := n.X.(*ast.Ident); is && of.Name == "time" && (n.Sel.Name == "Unix" || n.Sel.Name == "Parse" || n.Sel.Name == "Date") {
			return "time." + n.Sel.Name
		}
		if slices.Contains([]string{"Unix", "UnixNano", "UnixMilli", "CLOCK_REALTIME"}, n.Sel.Name) {
			return n.Sel.Name
		}
	case *ast.TypeSpec:
		s, is := n.Type.(*ast.StructType)
		if !is {
			return ""
		}
		for _, f := range s.Fields.List {
			t, isSelector := f.Type.(*ast.SelectorExpr)
			if isSelector && t.Sel.Name == "Time" && f.Tag != nil && len(f.Names) > 0 {
				return n.Name.Name + "." + f.Names[0].Name
			}
		}
	}
	return ""
}

// Which of two nodes joined first is what etcd says, and not their clocks.
func TestJoinedOrder(t *testing.T) {
	s := startEtcd(t)
	member(t.Output(), s, "z", 1).rest(t)
	member(t.Output(), s, "a", 1).rest(t)
	again := member(t.Output(), s, "z", 1)
	again.Host.Version = "later"
	again.rest(t)
	v, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nodes := v.Nodes()
	slices.SortFunc(nodes, func(a, b directory.Node) int { return cmp.Compare(a.Joined, b.Joined) })
	if len(nodes) != 2 || nodes[0].Name != "z" || nodes[0].Joined >= nodes[1].Joined {
		t.Errorf("%+v: want z, which joined before", nodes)
	}
}
