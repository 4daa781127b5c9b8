package attach_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// clause: R2 R3 R7 C3 C4 C9 K11
func TestAdd(t *testing.T) {
	w := newWorld(t)
	a := web(t)
	a.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "web-0"}}
	a.Capabilities = map[string]any{
		"portMappings": json.RawMessage(`[{"hostPort":8080,"containerPort":9007199254740993}]`),
		"mac":          "02:00:00:00:00:01",
		"ips":          []string{"10.1.2.3"},
	}
	a.CNI = map[string]any{"labels": []any{map[string]string{"key": "app", "value": "web"}}}
	l := list(t, `{"cniVersion":"1.0.0","name":"lan","plugins":[
		{"type":"first","name":"ignored","cniVersion":"0.3.1","big":18446744073709551615,"odd":"<&>",
		 "capabilities":{"portMappings":true,"mac":false,"bandwidth":true},"prevResult":{"stale":true}},
		{"type":"second","runtimeConfig":{"mac":"from the file"},"args":{"cni":{"ips":["10.9.9.9"]}}}]}`)
	result, err := w.Add(bounded(t), l, a)
	if err != nil {
		t.Fatal(err)
	}
	var links []string
	for _, link := range result.Interfaces {
		links = append(links, link.Name+" "+link.Sandbox)
	}
	if want := []string{"first " + a.Netns, "second " + a.Netns}; !slices.Equal(links, want) {
		t.Errorf("interfaces %q, want %q", links, want)
	}
	if result.CNIVersion != spec.V100 || len(result.IPs) != 1 || result.IPs[0].Address.String() != "10.1.2.3/24" {
		t.Errorf("result %+v", result)
	}
	args := `"args":{"cni":{"labels":[{"key":"app","value":"web"}]}}`
	want := []string{
		`{"type":"first","big":18446744073709551615,"odd":"<&>","cniVersion":"1.0.0","name":"lan",` +
			`"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":9007199254740993}]},` + args + `}`,
		`{"type":"second","cniVersion":"1.0.0","name":"lan",` + args + `,"prevResult":{"cniVersion":"1.0.0",` +
			`"interfaces":[{"name":"first","sandbox":"` + a.Netns + `"}],"ips":[{"address":"10.1.2.3/24"}]}}`,
	}
	calls := w.told()
	if len(calls) != 2 {
		t.Fatalf("plugins: %v", calls)
	}
	for i, c := range calls {
		if got := canonical(t, c.Stdin); got != canonical(t, []byte(want[i])) {
			t.Errorf("%v: stdin\n%s, want\n%s", c, got, canonical(t, []byte(want[i])))
		}
		for k, v := range map[string]string{
			"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "web", "CNI_NETNS": a.Netns, "CNI_IFNAME": "eth0",
			"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=web-0", "CNI_PATH": strings.Join(w.PluginDirs, ":"),
		} {
			if c.Env[k] != v {
				t.Errorf("%v: %s=%s, want %s", c, k, c.Env[k], v)
			}
		}
	}
}

// canonical is JSON with sorted keys and its numbers as they were.
func canonical(t testing.TB, b []byte) string {
	t.Helper()
	var v any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	out, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestCapabilitiesOfOthers hands on what hardly a plugin of ours acts on to each plugin that declares it, as it is
// offered.
//
// clause: K4 K9 K10 R7
func TestCapabilitiesOfOthers(t *testing.T) {
	offers := map[string]string{
		"dns":        `{"searches":["internal.yoyodyne.net","corp.tyrell.net"],"servers":["8.8.8.8"]}`,
		"aliases":    `["my-container","primary-db"]`,
		"cgroupPath": `"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod6b1c.slice"`,
	}
	w, a := newWorld(t), web(t)
	a.Capabilities = map[string]any{}
	for name, value := range offers {
		a.Capabilities[name] = json.RawMessage(value)
	}
	l := list(t, `{"cniVersion":"1.0.0","name":"lan","plugins":[
		{"type":"first","capabilities":{"dns":true,"cgroupPath":true}}, {"type":"second","capabilities":{"aliases":true}},{"type":"third"}]}`)
	if _, err := w.Add(bounded(t), l, a); err != nil {
		t.Fatal(err)
	}
	if err := w.Del(bounded(t), l, a); err != nil { // the cache remembers what ADD got
		t.Fatal(err)
	}
	calls := w.told()
	if len(calls) != 6 {
		t.Fatalf("plugins: %v", calls)
	}
	for _, c := range calls {
		var conf struct{ RuntimeConfig json.RawMessage }
		if err := json.Unmarshal(c.Stdin, &conf); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{
			"first":  `{"dns":` + offers["dns"] + `,"cgroupPath":` + offers["cgroupPath"] + `}`,
			"second": `{"aliases":` + offers["aliases"] + `}`,
			"third":  "null",
		}[c.Type]
		if conf.RuntimeConfig == nil {
			conf.RuntimeConfig = json.RawMessage("null")
		}
		if got := canonical(t, conf.RuntimeConfig); got != canonical(t, []byte(want)) {
			t.Errorf("%s %s: runtimeConfig %s, want %s", c.Command, c.Type, got, want)
		}
	}
}

// Nothing that the file says is runtimeConfig reaches a plugin, in any spelling.
//
// clause: R7 C9
func TestRuntimeConfigOfTheFile(t *testing.T) {
	w := newWorld(t)
	l := list(t, `{"cniVersion":"1.1.0","name":"lan","plugins":[{"type":"first","capabilities":{"mac":true},
		"RuntimeConfig":{"mac":"1"},"runtimeConfig":{"mac":"2"},"cni.dev/valid-attachments":[],"args":{"cni":{"ips":["10.9.9.9"]}}}]}`)
	if _, err := w.Add(bounded(t), l, web(t)); err != nil {
		t.Fatal(err)
	}
	want := `{"type":"first","cniVersion":"1.1.0","name":"lan","args":{"cni":{"ips":["10.9.9.9"]}}}`
	if got := canonical(t, w.told()[0].Stdin); got != canonical(t, []byte(want)) {
		t.Errorf("stdin %s, want %s", got, want)
	}
}

// clause: C5
func TestAddSingleConfiguration(t *testing.T) {
	w := newWorld(t)
	a := web(t)
	l := list(t, `{"cniVersion":"0.4.0","name":"lan","type":"first"}`)
	if _, err := w.Add(bounded(t), l, a); err != nil {
		t.Fatal(err)
	}
	if err := w.Del(bounded(t), l, a); err != nil {
		t.Fatal(err)
	}
	w.expect("ADD first, DEL first")
}

// clause: R4 R5 R12 I2
func TestAddFails(t *testing.T) {
	refuse := order{Stdout: `{"code":11,"msg":"no address left","details":"10.1.2.0/24"}`, Stderr: "looked everywhere", Exit: 1}
	for _, tc := range []struct {
		name  string
		do    map[string]map[string]order
		calls string
		code  spec.Code
		says  []string
	}{
		{"first", map[string]map[string]order{"first": {"ADD": refuse}},
			"ADD first, DEL third, DEL second, DEL first", 11, []string{"no address left", "looked everywhere", "10.1.2.0/24"}},
		{"second", map[string]map[string]order{"second": {"ADD": refuse}},
			"ADD first, ADD second, DEL third, DEL second, DEL first", 11, nil},
		{"no JSON", map[string]map[string]order{"third": {"ADD": {Stdout: "done!"}}},
			"ADD first, ADD second, ADD third, DEL third, DEL second, DEL first", 0, []string{"plugin third", "done!"}},
		{"not a result", map[string]map[string]order{"third": {"ADD": {Stdout: `{"cniVersion":"1.0.0","ips":"none"}`}}},
			"ADD first, ADD second, ADD third, DEL third, DEL second, DEL first", 6, []string{"plugin third", "result"}},
		{"a result and exit status 1", map[string]map[string]order{"second": {"ADD": {Stdout: `{"cniVersion":"1.0.0"}`, Exit: 1}}},
			"ADD first, ADD second, DEL third, DEL second, DEL first", 0, []string{"plugin second", "exit status 1"}},
		{"and so does the roll-back", map[string]map[string]order{
			"second": {"ADD": refuse}, "third": {"DEL": {Exit: 3}}, "first": {"DEL": {Stdout: `{"code":5,"msg":"disk on fire"}`, Exit: 1}}},
			"ADD first, ADD second, DEL third, DEL second, DEL first", 11,
			[]string{"no address left", "plugin third", "exit status 3", "plugin first", "disk on fire"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			a := web(t)
			_, err := w.Add(bounded(t), chain(t, "1.0.0", three, tc.do), a)
			if err == nil {
				t.Fatal("no error")
			}
			w.expect(tc.calls)
			var doc *spec.Error
			if code := spec.Code(0); errors.As(err, &doc) {
				if code = doc.Code; code != tc.code {
					t.Errorf("code %d, want %d: %v", code, tc.code, err)
				}
			} else if tc.code != 0 {
				t.Errorf("%v: no code %d", err, tc.code)
			}
			for _, s := range append(tc.says, "lan", "web", "eth0") {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%v: says no %s", err, s)
				}
			}
			var partial interface{ Left() bool }
			left := errors.As(err, &partial) && partial.Left()
			if want := tc.name == "and so does the roll-back"; left != want {
				t.Errorf("%v: left %v, want %v", err, left, want)
			}
			if files := w.results(); len(files) > 0 {
				t.Errorf("the cache has %q", files)
			}
			// And so the next ADD is a first one.
			if _, err := w.Add(bounded(t), chain(t, "1.0.0", three, nil), a); err != nil {
				t.Error(err)
			}
		})
	}
}

// The caller's time has run out, and still all is taken back; a plugin that hangs in that does not stop the
// others.
//
// clause: R5 R12
func TestAddDeadline(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	w.Stderr = &trigger{text: "hanging", f: cancel}
	w.Grace, w.Rollback = 20*time.Millisecond, 5*time.Second
	_, err := w.Add(ctx, chain(t, "1.0.0", three, map[string]map[string]order{
		"second": {"ADD": {Hang: true}}, "third": {"DEL": {Hang: true}}}), web(t))
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "plugin second") ||
		!strings.Contains(err.Error(), "plugin third") {
		t.Errorf("%v: want the context's error, and the plugins' names", err)
	}
	w.expect("ADD first, ADD second, DEL third, DEL second, DEL first")
}

// trigger calls f once text has been written to it.
type trigger struct {
	mu   sync.Mutex
	seen bytes.Buffer
	text string
	f    func()
}

func (g *trigger) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen.Write(p)
	if g.f != nil && strings.Contains(g.seen.String(), g.text) {
		g.f()
		g.f = nil
	}
	return len(p), nil
}

// A plugin that is missing is noticed before another one has changed anything.
//
// clause: R11 R12 C2
func TestAddMissingPlugin(t *testing.T) {
	w := newWorld(t, "bridge")
	_, err := w.Add(bounded(t), chain(t, "1.0.0", []string{"first", "brigde"}, nil), web(t))
	if !errors.Is(err, invoke.ErrNotFound) {
		t.Errorf("%v: not ErrNotFound", err)
	}
	for _, s := range []string{"lan/web/eth0", `"brigde"`, `did you mean "bridge"?`, w.PluginDirs[1]} {
		if err == nil || !strings.Contains(err.Error(), s) {
			t.Errorf("%v: says no %s", err, s)
		}
	}
	w.expect("")
}

// clause: R6
func TestAddCannotRemember(t *testing.T) {
	w := newWorld(t)
	if err := os.WriteFile(w.CacheDir, nil, 0o600); err != nil { // a file where the directory should be
		t.Fatal(err)
	}
	_, err := w.Add(bounded(t), chain(t, "1.0.0", three[:2], nil), web(t))
	if !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("%v: not ENOTDIR", err)
	}
	w.CacheDir = filepath.Join(w.dir, "other")
	if err := os.MkdirAll(filepath.Join(w.CacheDir, "results", "lan-web-eth0", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.told()
	if _, err = w.Add(bounded(t), chain(t, "1.0.0", three[:2], nil), web(t)); err != nil {
		t.Errorf("a directory in its place is set aside: %v", err)
	}
	w.expect("ADD first, ADD second")
}

// clause: R1
func TestAddNeedsNamespace(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(w.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"": "no path", "/run/netns/absent": "no such file", file: "not a namespace", w.dir: "not a namespace",
	} {
		_, err := w.Add(bounded(t), chain(t, "1.0.0", three, nil),
			attach.Attachment{ContainerID: "web", Netns: path, IfName: "eth0"})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "lan/web/eth0") {
			t.Errorf("%q: %v, want %s", path, err, want)
		}
	}
	w.expect("")
}

// Names become names of files, so bad ones are refused for every verb.
//
// clause: P3 P4 C1
func TestBadNames(t *testing.T) {
	w := newWorld(t)
	good := web(t)
	l := chain(t, "1.0.0", three, nil)
	for name, change := range map[string]func(*spec.List, *attach.Attachment){
		"no container":     func(_ *spec.List, a *attach.Attachment) { a.ContainerID = "" },
		"container path":   func(_ *spec.List, a *attach.Attachment) { a.ContainerID = "../../etc" },
		"no interface":     func(_ *spec.List, a *attach.Attachment) { a.IfName = "" },
		"interface path":   func(_ *spec.List, a *attach.Attachment) { a.IfName = "a/b" },
		"long interface":   func(_ *spec.List, a *attach.Attachment) { a.IfName = "abcdefghijklmnop" },
		"network path":     func(l *spec.List, _ *attach.Attachment) { l.Name = "../lan" },
		"no network":       func(l *spec.List, _ *attach.Attachment) { l.Name = "" },
		"args like a list": func(_ *spec.List, a *attach.Attachment) { a.Args = [][2]string{{"A", "1;B=2"}} },
	} {
		t.Run(name, func(t *testing.T) {
			l, a := *l, good
			change(&l, &a)
			_, add := w.Add(bounded(t), &l, a)
			for verb, err := range map[string]error{"ADD": add, "DEL": w.Del(bounded(t), &l, a),
				"CHECK": w.Check(bounded(t), &l, a)} {
				var doc *spec.Error
				if !errors.As(err, &doc) || doc.Code != spec.CodeEnvironment && doc.Code != spec.CodeConfig {
					t.Errorf("%s: %v, want code 4 or 7", verb, err)
				}
			}
		})
	}
	w.expect("")
}

// A plugin runs in the process's own namespace, wherever the caller's thread is.
//
// clause: R11
func TestHostNamespace(t *testing.T) {
	w := newWorld(t)
	a := web(t)
	l := chain(t, "1.0.0", three[:1], nil)
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // thrown away with its namespace
		if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		_, err := w.Add(bounded(t), l, a)
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := w.told()[0].Host; got != own {
		t.Errorf("the plugin ran in %s, want %s", got, own)
	}
}

// The trace context reaches the plugins by the environment, and of one call by its context.
func TestTraceContext(t *testing.T) {
	w := newWorld(t)
	w.Env = append(w.Env, "TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if _, err := w.Add(bounded(t), chain(t, "1.0.0", three[:1], nil), web(t)); err != nil {
		t.Fatal(err)
	}
	if got := w.told()[0].Env["TRACEPARENT"]; !strings.HasPrefix(got, "00-0af7") {
		t.Errorf("TRACEPARENT=%s", got)
	}
	const own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	ctx := invoke.WithEnv(bounded(t), "TRACEPARENT="+own)
	if err := w.Del(ctx, chain(t, "1.0.0", three[:1], nil), web(t)); err != nil {
		t.Fatal(err)
	}
	if got := w.told()[0].Env["TRACEPARENT"]; got != own {
		t.Errorf("of the call: TRACEPARENT=%s, want %s", got, own)
	}
}

// 16 containers come and go at once, and one container sixteen times: there each plugin is alone.
//
// clause: R8 P20
func TestParallel(t *testing.T) {
	w := newWorld(t)
	l := chain(t, "1.0.0", three[:1], nil)
	w.Env = append(w.Env, "ALONE="+t.TempDir())
	var group sync.WaitGroup
	ns := nstest.NewNS(t)
	for i := range 16 {
		for _, id := range []string{"same", "own" + string(rune('a'+i))} {
			group.Go(func() {
				a := attach.Attachment{ContainerID: id, Netns: ns, IfName: "eth" + string(rune('a'+i))}
				if _, err := w.Add(bounded(t), l, a); err != nil {
					t.Error(err)
				}
				if err := w.Check(bounded(t), l, a); err != nil {
					t.Error(err)
				}
				if err := w.Del(bounded(t), l, a); err != nil {
					t.Error(err)
				}
			})
		}
	}
	group.Wait()
	if files := w.results(); len(files) > 0 {
		t.Errorf("left in the cache: %q", files)
	}
	locks, err := filepath.Glob(filepath.Join(w.LockDir, "container-*"))
	if err != nil || len(locks) > 0 {
		t.Errorf("left locks: %q, %v", locks, err)
	}
}

// A pipe at the path of a namespace is not waited for: nobody may ever write to it.
func TestPipeForNamespace(t *testing.T) {
	w := newWorld(t)
	l := chain(t, "1.0.0", three[:1], nil)
	a := attach.Attachment{ContainerID: "web", Netns: filepath.Join(t.TempDir(), "pipe"), IfName: "eth0"}
	if err := syscall.Mkfifo(a.Netns, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Add(bounded(t), l, a); err == nil || !strings.Contains(err.Error(), a.Netns+": not a namespace") {
		t.Errorf("ADD: %v", err)
	}
	if err := w.Del(bounded(t), l, a); err != nil {
		t.Errorf("DEL: %v", err)
	}
	w.expect("DEL first")
}
