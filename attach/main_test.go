package attach_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestMain lets this binary be a plugin of any type: whatever CNI_COMMAND is set for.
func TestMain(m *testing.M) {
	if os.Getenv("CNI_COMMAND") != "" {
		os.Exit(plugin())
	}
	nstest.Main(m)
}

// plugin does as its configuration says, and writes down what it was told. Its type is its file's name.
func plugin() int {
	stdin, _ := io.ReadAll(os.Stdin)
	c := told{Type: filepath.Base(os.Args[0]), Env: map[string]string{}, Stdin: stdin}
	for _, e := range os.Environ() {
		if k, v, _ := strings.Cut(e, "="); strings.HasPrefix(k, "CNI_") || strings.HasPrefix(k, "TRACE") {
			c.Env[k] = v
		}
	}
	c.Command = c.Env["CNI_COMMAND"]
	c.Host, _ = os.Readlink("/proc/self/ns/net")
	var conf struct {
		CNIVersion string           `json:"cniVersion"`
		Do         map[string]order `json:"do"`
		PrevResult map[string]any   `json:"prevResult"`
	}
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return fail(6, err.Error())
	}
	log := os.Getenv("LOG")
	if f, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600); err == nil {
		b, _ := json.Marshal(c)
		f.Write(append(b, '\n'))
		f.Close()
	}
	speaks := []string{"0.4.0", "1.0.0", "1.1.0"}
	if c.Type == "old" {
		speaks = []string{"0.3.1", "0.4.0"}
	}
	if c.Command == "VERSION" {
		b, _ := json.Marshal(map[string]any{"cniVersion": "1.1.0", "supportedVersions": speaks})
		os.Stdout.Write(b)
		return 0
	}
	if c.Type == "old" && c.Command != "VERSION" && c.Env["CNI_CONTAINERID"] == "" { // as the reference's before 1.1.0
		return fail(3, "missing containerID")
	}
	if c.Type == "old" && !slices.Contains(speaks, conf.CNIVersion) {
		return fail(1, "incompatible CNI versions")
	}
	if dir := os.Getenv("ALONE"); dir != "" {
		mark := filepath.Join(dir, c.Env["CNI_CONTAINERID"])
		if err := os.Mkdir(mark, 0o700); err != nil {
			return fail(102, "not alone: "+err.Error())
		}
		defer os.Remove(mark)
	}
	if do, ok := conf.Do[c.Command]; ok {
		return do.follow()
	}
	if c.Command == "ADD" {
		result := conf.PrevResult
		if result == nil {
			result = map[string]any{"ips": []any{address(conf.CNIVersion)}}
		}
		link := map[string]any{"name": c.Type, "sandbox": c.Env["CNI_NETNS"]}
		links, _ := result["interfaces"].([]any)
		result["interfaces"] = append(links, link)
		result["cniVersion"] = conf.CNIVersion
		b, _ := json.Marshal(result)
		os.Stdout.Write(b)
	}
	return 0
}

func address(version string) map[string]any {
	ip := map[string]any{"address": "10.1.2.3/24"}
	if version < "1" {
		ip["version"] = "4"
	}
	return ip
}

func fail(code int, msg string) int {
	fmt.Printf(`{"code":%d,"msg":%q}`, code, msg)
	return 1
}

// told is what a plugin was told.
type told struct {
	Type, Command string
	Env           map[string]string
	Stdin         json.RawMessage
	Host          string // the namespace that it ran in
}

func (c told) String() string { return c.Command + " " + c.Type }

// order is how a verb ends.
type order struct {
	Stdout string `json:"stdout,omitempty"`
	Stderr string `json:"stderr,omitempty"`
	Exit   int    `json:"exit,omitempty"`
	Wait   string `json:"wait,omitempty"` // a pipe: end when somebody has opened it, and closed it
	Hang   bool   `json:"hang,omitempty"` // say "hanging" and heed no SIGTERM
}

func (o order) follow() int {
	if o.Hang {
		signal.Ignore(syscall.SIGTERM)
		fmt.Fprintln(os.Stderr, "hanging")
		select {}
	}
	if o.Wait != "" {
		fmt.Fprintln(os.Stderr, "waiting")
		if _, err := os.ReadFile(o.Wait); err != nil {
			return fail(5, err.Error())
		}
	}
	fmt.Print(o.Stdout)
	fmt.Fprint(os.Stderr, o.Stderr)
	return o.Exit
}

// A world is a runtime with plugins of some types, and what they were told.
type world struct {
	*attach.Runtime
	t   testing.TB
	dir string
	log string
}

func newWorld(t testing.TB, types ...string) *world {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, typ := range append(types, "first", "second", "third", "old") {
		if err := os.Symlink(self, filepath.Join(bin, typ)); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{t: t, dir: dir, log: filepath.Join(dir, "log")}
	w.Runtime = &attach.Runtime{
		PluginDirs: []string{filepath.Join(dir, "empty"), bin},
		CacheDir:   filepath.Join(dir, "cache"),
		LockDir:    filepath.Join(dir, "locks"),
		Env:        append(os.Environ(), "LOG="+w.log),
	}
	return w
}

// told is what the plugins were told since the last time.
func (w *world) told() []told {
	w.t.Helper()
	b, err := os.ReadFile(w.log)
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	os.Remove(w.log)
	var all []told
	for d := json.NewDecoder(bytes.NewReader(b)); d.More(); {
		var c told
		if err := d.Decode(&c); err != nil {
			w.t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

// calls are their verbs and types, in order.
func (w *world) calls() string {
	w.t.Helper()
	var s []string
	for _, c := range w.told() {
		s = append(s, c.String())
	}
	return strings.Join(s, ", ")
}

func (w *world) expect(want string) {
	w.t.Helper()
	if got := w.calls(); got != want {
		w.t.Errorf("plugins: %s, want %s", got, want)
	}
}

// results are the names of the files in the cache.
func (w *world) results() []string {
	entries, _ := os.ReadDir(filepath.Join(w.CacheDir, "results"))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func list(t testing.TB, text string) *spec.List {
	t.Helper()
	l, err := spec.ParseList([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// chain is a list of plugins with what they do, such as {"first": {"ADD": {Exit: 1}}}.
func chain(t testing.TB, version string, types []string, do map[string]map[string]order) *spec.List {
	t.Helper()
	var plugins []any
	for _, typ := range types {
		p := map[string]any{"type": typ}
		if do[typ] != nil {
			p["do"] = do[typ]
		}
		plugins = append(plugins, p)
	}
	b, err := json.Marshal(map[string]any{"cniVersion": version, "name": "lan", "plugins": plugins})
	if err != nil {
		t.Fatal(err)
	}
	return list(t, string(b))
}

var three = []string{"first", "second", "third"}

func web(t testing.TB) attach.Attachment {
	return attach.Attachment{ContainerID: "web", Netns: nstest.NewNS(t), IfName: "eth0"}
}

func bounded(t testing.TB) context.Context {
	ctx := nstest.Context(t)
	return ctx
}
