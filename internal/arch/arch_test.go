package arch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestTree holds the tree against the rules.
func TestTree(t *testing.T) {
	pkgs, err := List()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(pkgs, func(p Package) bool { return p.ImportPath == Module+"/spec" }) {
		t.Fatalf("%d packages, and spec is not among them", len(pkgs))
	}
	for _, p := range pkgs {
		name, _ := rel(p.ImportPath)
		t.Run(name, func(t *testing.T) {
			report(t, Imports(p), Closure(p), Clusters(p), Named(p))
			source := func(file string) []byte {
				src, err := os.ReadFile(filepath.Join(p.Dir, file))
				if err != nil {
					t.Fatal(err)
				}
				return src
			}
			for _, file := range p.GoFiles {
				report(t, Code(name, file, source(file)))
			}
			for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
				report(t, Length(name, file, source(file)))
			}
		})
	}
}

func report(t *testing.T, lists ...[]string) {
	t.Helper()
	for _, bad := range slices.Concat(lists...) {
		t.Error(bad)
	}
}

// The reference implementation is a peer to be compared with, and no dependency. Users of the packages get no tool of ours.
func TestModules(t *testing.T) {
	for _, file := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "containernetworking") {
			t.Errorf("%s names the reference implementation: it is not a dependency of ours", file)
		}
	}
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"honnef.co", "jsonschema", "go-internal", "md2man", "golang.org/x/tools", "replace "} {
		if strings.Contains(string(mod), tool) {
			t.Errorf("go.mod names %s: what only tests and tools need is for internal/tools/go.mod", tool)
		}
	}
	agent, err := os.ReadFile("../../cluster/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []string{"go.etcd.io/etcd/server", "go.etcd.io/bbolt", "go.etcd.io/raft"} {
		if strings.Contains(string(agent), server) {
			t.Errorf("cluster/go.mod names %s: an etcd is for cluster/store/go.mod, because fairlead-agent runs on every node", server)
		}
	}
}

// TestReasons holds the table against itself: each row says why.
func TestReasons(t *testing.T) {
	for _, r := range rows() {
		if r.why["*"] == "" {
			t.Errorf("%s: no reason for what it may not import", r.pkg)
		}
		for target := range r.why {
			if target != "*" && matchAny(r.may, target) {
				t.Errorf("%s: %s is allowed, and has a reason against it", r.pkg, target)
			}
		}
	}
	for _, r := range outside() {
		if r.why == "" || len(r.by) == 0 {
			t.Errorf("%s: who may import it, and why nobody else?", r.imp)
		}
	}
}

// TestBites shows that each rule fails where it should: a rule that cannot fail holds nothing.
func TestBites(t *testing.T) {
	pkg := func(name string, imports ...string) Package {
		for i, imp := range imports {
			if strings.HasPrefix(imp, "./") {
				imports[i] = Module + imp[1:]
			}
		}
		return Package{ImportPath: Module + "/" + name, Name: filepath.Base(name), Doc: "Package x.",
			GoFiles: []string{"x.go"}, Imports: imports, Deps: imports}
	}
	for _, tc := range []struct {
		name string
		bad  []string
		want string // part of the one complaint; empty: none
	}{
		{"a plugin and the kernel", Imports(pkg("plugin/macvlan", "./kernel")), "never how"},
		{"a plugin and the kernel's tables", Imports(pkg("plugin/macvlan", "./kernel/nft")), "never how"},
		{"links and filters", Imports(pkg("kernel/rtnl", "./kernel/nft")), "downwards"},
		{"a plugin and a plugin", Imports(pkg("plugin/macvlan", "./plugin/bridge")), "delegates"},
		{"a plugin and its sdk", Imports(pkg("plugin/macvlan", "./sdk", "./plan", "fmt")), ""},
		{"spec and anything", Imports(pkg("spec", "./invoke")), "CNI as data"},
		{"spec and a leaf", Imports(pkg("spec", "./internal/spelling")), ""},
		{"a leaf and spec", Imports(pkg("internal/spelling", "./spec")), "spec too"},
		{"the engine and a kind", Imports(pkg("internal/engine", "./resource")), "knows no kind"},
		{"D-Bus outside", Imports(pkg("sdk", "github.com/godbus/dbus/v5")), "the one service"},
		{"system calls outside", Imports(pkg("plugin/tap", "golang.org/x/sys/unix")), "belong to kernel"},
		{"a new module", Imports(pkg("cli", "example.com/colour")), "row and a reason"},
		{"a new package", Imports(pkg("misc")), "no row"},
		{"templates in a plugin", Closure(pkg("plugin/macvlan", "text/template")), "keeps the linker"},
		{"the evaluator in a plugin", Closure(pkg("cmd/cni", "./packetfilter")), "does not foresee"},
		{"the evaluator in the command", Imports(pkg("cli/doctor", "./packetfilter")), ""},
		{"the evaluator and a kind", Imports(pkg("resource", "./packetfilter")), "compares fields"},
		{"Kubernetes in a plugin", Clusters(pkg("plugin/cluster", "k8s.io/client-go/rest")), "a module of its own"},
		{"the agent in the sdk", Clusters(pkg("sdk", "./cluster/directory")), "a module of its own"},
		{"a package of a similar name", Clusters(pkg("cmd/cni", "./plugin/cluster")), ""},
		{"templates in the command", Closure(pkg("cli", "text/template")), ""},
		{"a name that says nothing", Named(pkg("cli/helper")), "says nothing"},
		{"a second program", Named(Package{ImportPath: Module + "/tool", Name: "main", Doc: "x"}), "one program"},
		{"no comment", Named(Package{ImportPath: Module + "/spec", Name: "spec", GoFiles: []string{"x.go"}}),
			"no package comment"},
		{"init", Code("spec", "x.go", []byte("package p\nfunc init() {}\n")), "x.go:2: init"},
		{"a method called init", Code("spec", "x.go", []byte("package p\nfunc (t T) init() {}\n")), ""},
		{"a map", Code("spec", "x.go", []byte("package p\nvar m = map[string]int{}\n")), "var m"},
		{"a sentinel", Code("spec", "x.go", []byte("package p\nvar E = errors.New(\"e\")\nvar _ I = T{}\n")), ""},
		{"a declaration", Code("plugin/x", "x.go",
			[]byte("package p\nvar Plugin = sdk.Interface[conf](\"x\", \"\", want).KnowsArgs(\"MAC\")\n")), ""},
		{"a declaration elsewhere", Code("cli", "x.go", []byte("package p\nvar Plugin = sdk.Interface(\"x\", \"\", want)\n")),
			"var Plugin"},
		{"sleep", Code("resource", "x.go", []byte("package p\nfunc f() { time.Sleep(1) }\n")), "nothing sleeps"},
		{"exec", Code("resource", "x.go", []byte("package p\nfunc f() { exec.Command(\"ip\") }\n")), "no program"},
		{"exec elsewhere in kernel", Code("kernel/rtnl", "link.go", []byte("package p\nfunc f() { exec.Command(\"ip\") }\n")),
			"no program"},
		{"exec of iptables", Code("kernel/xtables", "exec.go", []byte("package p\nfunc f() { exec.Command(path) }\n")), ""},
		{"a long file", Code("spec", "x.go", []byte("package p\n"+strings.Repeat("// x\n", longest))), "lines"},
		{"a long line", Code("spec", "x.go", []byte("package p\n\n// "+strings.Repeat("x", 118)+"\n")), "columns"},
		{"a long test", Length("spec", "x_test.go", []byte(strings.Repeat("// x\n", longestTest+1))), "lines"},
		{"a long function", Code("spec", "x.go", []byte("package p\nfunc f() {\n"+
			strings.Repeat("g()\n", longestFunc+1)+"}\n")), "a function has"},
	} {
		switch {
		case tc.want == "" && len(tc.bad) > 0:
			t.Errorf("%s: %q, want nothing", tc.name, tc.bad)
		case tc.want != "" && (len(tc.bad) != 1 || !strings.Contains(tc.bad[0], tc.want)):
			t.Errorf("%s: %q, want one complaint with %q", tc.name, tc.bad, tc.want)
		}
	}
}

// TestCalls follows the uses of functions through the tree.
func TestCalls(t *testing.T) {
	g, err := loadCalls(Module+"/cmd/...", Module+"/sdk/sdktest")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("plans are pure", func(t *testing.T) { pure(t, g) })
	t.Run("sdk has nothing for a repair alone", func(t *testing.T) { surface(t, g) })
	t.Run("nothing reads prose", func(t *testing.T) {
		report(t, g.readProse())
		report(t, g.unknownFields())
	})
}

// pure holds the plan functions of all plugins to read nothing of the machine: neither files, as of sysfs, nor its
// identity, nor the clock.
func pure(t *testing.T, g *callGraph) {
	if len(g.plans) < 15 {
		t.Fatalf("%d plan functions: not all are found", len(g.plans))
	}
	report(t, g.impure())
	for f := range g.mentions { // what reads sysfs is found
		if f.Name() == "ReadHost" && len(g.way(g.mentions[f])) == 0 {
			t.Errorf("%s reads nothing", f.FullName())
		}
	}
}

// surface holds package sdk to export nothing that only a repair needs.
func surface(t *testing.T, g *callGraph) {
	if len(g.users) < 50 {
		t.Fatalf("%d exported names of sdk are used: not all are found", len(g.users))
	}
	report(t, g.forRepair())
	for o := range g.users { // what a repair uses, too, bites where nothing else uses it
		if o.Name() == "Attached" {
			g.users[o] = []string{"repair", "cli/repair"}
		}
	}
	if bad := g.forRepair(); len(bad) != 1 || !strings.Contains(bad[0], "only a repair uses Attached") {
		t.Errorf("%q, want Attached", bad)
	}
}
