package attach_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// crowd attaches containers a, b and c to network lan, and a to network lan-2.
func crowd(t *testing.T, l *spec.List) *world {
	t.Helper()
	w := newWorld(t)
	ns := nstest.NewNS(t)
	other := *l
	other.Name = "lan-2"
	for _, id := range []string{"a", "b", "c"} {
		a := attach.Attachment{ContainerID: id, Netns: ns, IfName: "eth0", Args: [][2]string{{"ID", id}},
			Capabilities: map[string]any{"mac": "02:00:00:00:00:0" + id}}
		if _, err := w.Add(bounded(t), l, a); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Add(bounded(t), &other, attach.Attachment{ContainerID: "a", Netns: ns, IfName: "eth1"}); err != nil {
		t.Fatal(err)
	}
	w.told()
	return w
}

// `ctr run --cni` attaches /proc/PID/ns/net and sends no DEL. When the collector comes by, the process may
// be another container's, and only what fairlead attached tells one from the other.
//
// clause: P12
func TestGCProcessNamespace(t *testing.T) {
	l := list(t, `{"cniVersion":"1.0.0","name":"lan","plugins":[{"type":"first"}]}`)
	p := exec.Command("cat")
	p.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	stdin, err := p.StdinPipe()
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		p.Wait()
	})
	path := fmt.Sprintf("/proc/%d/ns/net", p.Process.Pid)
	for _, tc := range []struct{ name, result, want string }{
		{"the library's", fmt.Sprintf(`{"kind":"cniCacheV1","containerId":"web","ifName":"eth0","networkName":"lan",
			"result":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":%q}]}}`, path), ""},
		{"fairlead's", "", path},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			if tc.result == "" {
				if _, err := w.Add(bounded(t), l, attach.Attachment{ContainerID: "web", Netns: path, IfName: "eth0"}); err != nil {
					t.Fatal(err)
				}
				w.told()
			} else {
				dir := filepath.Join(w.CacheDir, "results")
				if err := errors.Join(os.MkdirAll(dir, 0o700),
					os.WriteFile(filepath.Join(dir, "lan-web-eth0"), []byte(tc.result), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			if c, problems := w.List("lan"); len(c) != 1 || c[0].Netns != path || len(problems) > 0 {
				t.Errorf("listed %+v, %v", c, problems)
			}
			if err := w.GC(bounded(t), l, []spec.Attachment{}); err != nil {
				t.Fatal(err)
			}
			if calls := w.told(); len(calls) != 1 || calls[0].Env["CNI_NETNS"] != tc.want {
				t.Errorf("told %v, want DEL with namespace %q", calls, tc.want)
			}
		})
	}
}

// clause: R4 R9 V9
func TestGC(t *testing.T) {
	l := list(t, `{"cniVersion":"1.1.0","name":"lan","plugins":[{"type":"first","capabilities":{"mac":true}},{"type":"second"}]}`)
	w := crowd(t, l)
	valid := []spec.Attachment{{ContainerID: "a", IfName: "eth0"}, {ContainerID: "b", IfName: "eth1"}} // b's eth0 is not
	if err := w.GC(bounded(t), l, valid); err != nil {
		t.Fatal(err)
	}
	calls := w.told() // of containers side by side
	slices.SortStableFunc(calls, func(a, b told) int {
		return strings.Compare(a.Command+a.Env["CNI_CONTAINERID"], b.Command+b.Env["CNI_CONTAINERID"])
	})
	var names []string
	for _, c := range calls {
		names = append(names, c.String()+" "+c.Env["CNI_CONTAINERID"])
	}
	if got := strings.Join(names,
		", "); got != "DEL second b, DEL first b, DEL second c, DEL first c, GC first , GC second " {
		t.Fatalf("plugins: %s", got)
	}
	del := calls[1]
	if del.Env["CNI_ARGS"] != "ID=b" || !strings.HasPrefix(del.Env["CNI_NETNS"], "/run/netns/") ||
		!strings.Contains(string(del.Stdin), `"runtimeConfig":{"mac":"02:00:00:00:00:0b"}`) || prevResult(t, del) != "first second" {
		t.Errorf("DEL was not told what ADD was: %v %s", del.Env, del.Stdin)
	}
	for _, c := range calls[4:] {
		var conf map[string]json.RawMessage
		if err := json.Unmarshal(c.Stdin, &conf); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"cni.dev/valid-attachments", "cni.dev/attachments"} {
			if got, want := string(conf[key]), `[{"containerID":"a","ifname":"eth0"},{"containerID":"b","ifname":"eth1"}]`; got != want {
				t.Errorf("%v: %s is %s, want %s", c, key, got, want)
			}
		}
		for _, key := range []string{"runtimeConfig", "prevResult", "capabilities"} {
			if conf[key] != nil {
				t.Errorf("%v: %s is %s", c, key, conf[key])
			}
		}
		for _, key := range []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"} {
			if value, set := c.Env[key]; value != "" || !set {
				t.Errorf("%v: %s=%q", c, key, value)
			}
		}
	}
	if got, want := w.results(), []string{"lan-2-a-eth1", "lan-a-eth0"}; !slices.Equal(got, want) {
		t.Errorf("the cache has %q, want %q", got, want)
	}
}

// Without a list nothing goes; with an empty one everything of this network does.
//
// clause: P22
func TestGCWithoutList(t *testing.T) {
	l := chain(t, "1.1.0", three[:1], nil)
	w := crowd(t, l)
	err := w.GC(bounded(t), l, nil)
	var doc *spec.Error
	if !errors.As(err, &doc) || doc.Code != spec.CodeConfig {
		t.Errorf("%v: want code 7", err)
	}
	w.expect("")
	if err := w.GC(bounded(t), l, []spec.Attachment{}); err != nil {
		t.Fatal(err)
	}
	calls := w.told()
	if last := calls[len(calls)-1]; len(calls) != 4 || !strings.Contains(string(last.Stdin), `"cni.dev/valid-attachments":[]`) {
		t.Errorf("plugins %v, the last was told %s", calls, last.Stdin)
	}
	if got := w.results(); !slices.Equal(got, []string{"lan-2-a-eth1"}) {
		t.Errorf("the cache has %q", got)
	}
}

// clause: R4
func TestGCGoesOn(t *testing.T) {
	do := map[string]map[string]order{
		"second": {"DEL": {Stdout: `{"code":100,"msg":"no such rule"}`, Exit: 1}},
		"first":  {"GC": {Stdout: `{"code":101,"msg":"sweep failed"}`, Exit: 1}},
		"third":  {"GC": {Exit: 7}},
	}
	l := chain(t, "1.1.0", three, do)
	w := crowd(t, l)
	err := w.GC(bounded(t), l, []spec.Attachment{{ContainerID: "a", IfName: "eth0"}})
	for _, s := range []string{"container b", "container c", "no such rule", "sweep failed", "exit status 7"} {
		if err == nil || !strings.Contains(err.Error(), s) {
			t.Errorf("%v: says no %s", err, s)
		}
	}
	dels, gcs := map[string]string{}, "" // containers side by side, the plugins of each in their order
	for _, c := range w.told() {
		if c.Command == "GC" {
			gcs += c.Type + " "
		} else {
			dels[c.Env["CNI_CONTAINERID"]] += c.Type + " "
		}
	}
	if want := map[string]string{"b": "third second first ", "c": "third second first "}; !maps.Equal(dels, want) ||
		gcs != "first second third " {
		t.Errorf("DEL %v, GC %q", dels, gcs)
	}
	if got := len(w.results()); got != 4 {
		t.Errorf("%d files in the cache, want all 4: their DEL failed", got)
	}
}

// clause: V9 C7
func TestGCWithoutPlugins(t *testing.T) {
	for name, tc := range map[string]struct{ list, calls string }{
		"before 1.1.0": {`{"cniVersion":"1.0.0","name":"lan","plugins":[{"type":"first"}]}`, "DEL first, DEL first, DEL first"},
		"disabled":     {`{"cniVersion":"1.1.0","disableGC":true,"name":"lan","plugins":[{"type":"first"}]}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := list(t, tc.list)
			w := crowd(t, l)
			if err := w.GC(bounded(t), l, []spec.Attachment{}); err != nil {
				t.Fatal(err)
			}
			w.expect(tc.calls)
		})
	}
}

// clause: P21 V9
func TestStatus(t *testing.T) {
	no := map[string]map[string]order{"second": {"STATUS": {Stdout: `{"code":50,"msg":"no address left"}`, Exit: 1}}}
	for name, tc := range map[string]struct {
		list  *spec.List
		calls string
		code  spec.Code
	}{
		"ready":        {chain(t, "1.1.0", three, nil), "STATUS first, STATUS second, STATUS third", 0},
		"not ready":    {chain(t, "1.1.0", three, no), "STATUS first, STATUS second", spec.CodeUnavailable},
		"before 1.1.0": {chain(t, "1.0.0", three, no), "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			err := w.Status(bounded(t), tc.list)
			var doc *spec.Error
			if errors.As(err, &doc) != (tc.code != 0) || doc != nil && doc.Code != tc.code || doc == nil && err != nil {
				t.Errorf("%v, want code %d", err, tc.code)
			}
			w.expect(tc.calls)
		})
	}
}

// A verb that one plugin does not speak in the highest version is said again in one that all speak; there,
// GC and STATUS may not exist.
//
// clause: V9 V10
func TestVersionSelectionWithoutAdd(t *testing.T) {
	ask := ", VERSION first, VERSION old"
	for versions, want := range map[string][3]string{ // the calls of DEL, STATUS, GC
		`"1.1.0","0.4.0"`: {"DEL old" + ask + ", DEL old, DEL first", "STATUS first, STATUS old" + ask, "GC first, GC old" + ask},
		`"0.4.0"`:         {"DEL old, DEL first", "", ""},
	} {
		w := newWorld(t)
		l := list(t, `{"cniVersion":"0.4.0","cniVersions":[`+versions+`],"name":"lan","plugins":[{"type":"first"},{"type":"old"}]}`)
		if err := w.Del(bounded(t), l, attach.Attachment{ContainerID: "web", IfName: "eth0"}); err != nil {
			t.Errorf("DEL: %v", err)
		}
		w.expect(want[0])
		if err := w.Status(bounded(t), l); err != nil {
			t.Errorf("STATUS: %v", err)
		}
		w.expect(want[1])
		if err := w.GC(bounded(t), l, []spec.Attachment{}); err != nil {
			t.Errorf("GC: %v", err)
		}
		w.expect(want[2])
	}
	// Of a network that cannot be, nothing is asked.
	w := newWorld(t)
	for _, l := range []*spec.List{chain(t, "9.9.9", three, nil), {Name: "../lan", CNIVersion: spec.V110}} {
		for verb, err := range map[string]error{"STATUS": w.Status(bounded(t), l),
			"GC": w.GC(bounded(t), l, []spec.Attachment{})} {
			var doc *spec.Error
			if !errors.As(err, &doc) {
				t.Errorf("%s: %v, want an error with a code", verb, err)
			}
		}
	}
	w.expect("")
}

// clause: V1 V10
func TestVersionsAndValidate(t *testing.T) {
	w := newWorld(t)
	l := list(t, `{"cniVersion":"1.0.0","name":"lan","plugins":[{"type":"first","capabilities":{"mac":true,"ips":false}},
		{"type":"first"},{"type":"second","capabilities":{"bandwidth":true}}]}`)
	speaks, err := w.Versions(bounded(t), l)
	if err != nil || len(speaks) != 2 || !slices.Equal(speaks["first"], []spec.Version{"0.4.0", "1.0.0", "1.1.0"}) {
		t.Errorf("%v, %v", speaks, err)
	}
	capabilities, err := w.Validate(bounded(t), l)
	if err != nil || !slices.Equal(capabilities, []string{"bandwidth", "mac"}) {
		t.Errorf("%v, %v", capabilities, err)
	}
	for text, says := range map[string][]string{
		`{"cniVersion":"1.0.0","name":"lan","plugins":[{"type":"frist"},{"type":"old"}]}`:                         {`did you mean "first"?`, "plugin old"},
		`{"cniVersion":"0.3.1","name":"lan","plugins":[{"type":"first"},{"type":"old"}]}`:                         {"plugin first"},
		`{"cniVersion":"0.3.1","cniVersions":["1.0.0"],"name":"lan","plugins":[{"type":"first"},{"type":"old"}]}`: {"lan"},
	} {
		_, err := w.Validate(bounded(t), list(t, text))
		for _, s := range says {
			if err == nil || !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v: says no %s", text, err, s)
			}
		}
	}
	for _, c := range w.told() {
		if c.Command != "VERSION" {
			t.Errorf("%v: asking changes something", c)
		}
	}
}
