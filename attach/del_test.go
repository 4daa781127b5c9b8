package attach_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// added is a world with one attachment, whose ADD is forgotten.
func added(t *testing.T, l *spec.List, a attach.Attachment) *world {
	t.Helper()
	w := newWorld(t)
	if _, err := w.Add(bounded(t), l, a); err != nil {
		t.Fatal(err)
	}
	w.told()
	return w
}

// prevResult is what a plugin was told: the names of its interfaces, or "none".
func prevResult(t *testing.T, c told) string {
	t.Helper()
	var conf struct {
		PrevResult *struct{ Interfaces []struct{ Name string } }
	}
	if err := json.Unmarshal(c.Stdin, &conf); err != nil {
		t.Fatal(err)
	}
	if conf.PrevResult == nil {
		return "none"
	}
	var names []string
	for _, link := range conf.PrevResult.Interfaces {
		names = append(names, link.Name)
	}
	return strings.Join(names, " ")
}

// clause: R2 R3 R6
func TestDel(t *testing.T) {
	for version, want := range map[string]string{"0.3.1": "none", "0.4.0": "first second third",
		"1.1.0": "first second third"} {
		t.Run(version, func(t *testing.T) {
			l := chain(t, version, three, nil)
			a := web(t)
			w := added(t, l, a)
			if err := w.Del(bounded(t), l, a); err != nil {
				t.Fatal(err)
			}
			calls := w.told()
			if got := len(calls); got != 3 || calls[0].Type != "third" || calls[1].Type != "second" || calls[2].Type != "first" {
				t.Fatalf("plugins: %v, want them in reverse", calls)
			}
			for _, c := range calls {
				if got := prevResult(t, c); got != want {
					t.Errorf("%v: prevResult %s, want %s", c, got, want)
				}
				if c.Env["CNI_NETNS"] != a.Netns {
					t.Errorf("%v: CNI_NETNS=%s", c, c.Env["CNI_NETNS"])
				}
			}
			if files := w.results(); len(files) > 0 {
				t.Errorf("left in the cache: %q", files)
			}
		})
	}
}

// DEL of what is not attached, or not any more, runs all the same, and without prevResult.
//
// clause: R6 P12
func TestDelWithoutAdd(t *testing.T) {
	w := newWorld(t)
	l := chain(t, "1.0.0", three[:2], nil)
	for range 2 {
		if err := w.Del(bounded(t), l, attach.Attachment{ContainerID: "web", IfName: "eth0"}); err != nil {
			t.Fatal(err)
		}
	}
	calls := w.told()
	if len(calls) != 4 {
		t.Fatalf("plugins: %v", calls)
	}
	for _, c := range calls {
		if c.Command != "DEL" || prevResult(t, c) != "none" || c.Env["CNI_NETNS"] != "" {
			t.Errorf("%v: prevResult %s, namespace %q", c, prevResult(t, c), c.Env["CNI_NETNS"])
		}
	}
}

// What the caller does not say is what ADD was told, so that a plugin such as portmap finds its work.
func TestDelInherits(t *testing.T) {
	l := list(t, `{"cniVersion":"1.0.0","name":"lan","plugins":[{"type":"first","capabilities":{"portMappings":true}}]}`)
	a := web(t)
	a.Args = [][2]string{{"A", "1"}}
	a.Capabilities = map[string]any{"portMappings": []any{map[string]any{"hostPort": 8080}}}
	w := added(t, l, a)
	bare := attach.Attachment{ContainerID: "web", IfName: "eth0"}
	if err := w.Del(bounded(t), l, bare); err != nil {
		t.Fatal(err)
	}
	c := w.told()[0]
	if !strings.Contains(string(c.Stdin), `"runtimeConfig":{"portMappings":[{"hostPort":8080}]}`) || c.Env["CNI_ARGS"] != "A=1" {
		t.Errorf("stdin %s, CNI_ARGS=%s", c.Stdin, c.Env["CNI_ARGS"])
	}
}

// clause: R4
func TestDelFails(t *testing.T) {
	full := order{Stdout: `{"code":11,"msg":"try again"}`, Exit: 1}
	do := map[string]map[string]order{"second": {"DEL": full}, "third": {"DEL": {Exit: 9}}}
	for name, tc := range map[string]struct {
		options []attach.Option
		calls   string
		says    []string
		left    []string
	}{
		"stop": {nil, "DEL third", []string{"plugin third", "exit status 9"}, nil},
		"continue": {[]attach.Option{attach.Continue()}, "DEL third, DEL second, DEL first",
			[]string{"exit status 9", "try again"}, []string{"third", "second"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := web(t)
			w := added(t, chain(t, "1.0.0", three, nil), a)
			err := w.Del(bounded(t), chain(t, "1.0.0", three, do), a, tc.options...)
			for _, s := range tc.says {
				if err == nil || !strings.Contains(err.Error(), s) {
					t.Errorf("%v: says no %s", err, s)
				}
			}
			w.expect(tc.calls)
			if files := w.results(); len(files) != 1 {
				t.Errorf("the cache has %q: it should be kept for another try", files)
			}
			if c, problems := w.List(""); len(problems) > 0 || len(c) != 1 || !slices.Equal(c[0].Left, tc.left) {
				t.Errorf("the cache has %+v, %v: want %q left", c, problems, tc.left)
			}
			if err := w.Del(bounded(t), chain(t, "1.0.0", three, nil), a); err != nil {
				t.Errorf("another try: %v", err)
			}
			if files := w.results(); len(files) > 0 {
				t.Errorf("left in the cache: %q", files)
			}
		})
	}
	t.Run("a plugin is gone", func(t *testing.T) {
		a := web(t)
		w := added(t, chain(t, "1.0.0", three[:1], nil), a)
		l := chain(t, "1.0.0", []string{"first", "uninstalled"}, nil)
		if err := w.Del(bounded(t), l, a); err == nil || !strings.Contains(err.Error(), `"uninstalled"`) {
			t.Errorf("stop: %v", err)
		}
		w.expect("")
		if err := w.Del(bounded(t), l, a, attach.Continue()); err == nil || !strings.Contains(err.Error(), `"uninstalled"`) {
			t.Errorf("continue: %v", err)
		}
		w.expect("DEL first") // the address comes back
	})
}

// A cache that cannot be read never stops a DEL, and is kept for a person to look at.
//
// clause: R6 P12
func TestDelUnreadableCache(t *testing.T) {
	l := chain(t, "1.0.0", three[:2], nil)
	a := web(t)
	for name, spoil := range map[string]func(path string) error{
		"empty":       func(p string) error { return os.Truncate(p, 0) },
		"torn":        func(p string) error { return os.Truncate(p, 100) },
		"garbage":     func(p string) error { return os.WriteFile(p, []byte("\x00\x01"), 0o600) },
		"other kind":  func(p string) error { return os.WriteFile(p, []byte(`{"kind":"somebody's"}`), 0o600) },
		"a directory": func(p string) error { return errors.Join(os.Remove(p), os.MkdirAll(p+"/x", 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			w := added(t, l, a)
			var said trigger
			w.Stderr = &said
			path := filepath.Join(w.CacheDir, "results", "lan-web-eth0")
			if err := spoil(path); err != nil {
				t.Fatal(err)
			}
			if err := w.Check(bounded(t), l, a); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("CHECK: %v", err)
			}
			if err := w.Del(bounded(t), l, a); err != nil {
				t.Errorf("DEL: %v", err)
			}
			w.expect("DEL second, DEL first")
			if files := w.results(); len(files) != 1 || files[0] != "lan-web-eth0.corrupt" {
				t.Errorf("the cache has %q", files)
			}
			if s := said.seen.String(); !strings.Contains(s, "lan-web-eth0.corrupt") {
				t.Errorf("stderr %q does not say where it is", s)
			}
			if _, problems := w.List("lan"); len(problems) != 1 || !strings.Contains(problems[0].Error(), "set the file aside") {
				t.Errorf("problems %v", problems)
			}
			if _, err := w.Add(bounded(t), l, a); err != nil {
				t.Errorf("ADD: %v", err)
			}
		})
	}
}

// A namespace path that has become another container's, or is the host's, is no place for DEL.
//
// clause: P12
func TestDelForeignNamespace(t *testing.T) {
	l := chain(t, "1.0.0", three[:1], nil)
	told := func(t *testing.T, w *world, a attach.Attachment) string {
		t.Helper()
		if err := w.Del(bounded(t), l, a); err != nil {
			t.Fatal(err)
		}
		return w.told()[0].Env["CNI_NETNS"]
	}
	t.Run("its own", func(t *testing.T) {
		a := web(t)
		if got := told(t, added(t, l, a), a); got != a.Netns {
			t.Errorf("CNI_NETNS=%s", got)
		}
	})
	t.Run("another container's", func(t *testing.T) {
		a := web(t)
		w := added(t, l, a)
		a.Netns = nstest.NewNS(t)
		if got := told(t, w, a); got != "" {
			t.Errorf("CNI_NETNS=%s, want none", got)
		}
	})
	t.Run("gone", func(t *testing.T) {
		a := web(t)
		w := added(t, l, a)
		a.Netns = "/run/netns/gone"
		if got := told(t, w, a); got != a.Netns {
			t.Errorf("CNI_NETNS=%s", got)
		}
	})
	t.Run("its mount is gone", func(t *testing.T) {
		a := web(t)
		w := added(t, l, a)
		a.Netns = filepath.Join(w.dir, "file")
		if err := os.WriteFile(a.Netns, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := told(t, w, a); got != "" {
			t.Errorf("CNI_NETNS=%s, want none", got)
		}
	})
	t.Run("the host's", func(t *testing.T) {
		w := newWorld(t)
		a := attach.Attachment{ContainerID: "web", Netns: "/run/netns/host", IfName: "eth0"}
		if err := os.WriteFile(a.Netns, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("/proc/thread-self/ns/net", a.Netns, "", syscall.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		defer nstest.RemoveNS(a.Netns)
		if got := told(t, w, a); got != "" {
			t.Errorf("CNI_NETNS=%s, want none", got)
		}
		w.Env = append(w.Env, "CNI_NETNS_OVERRIDE=True")
		if got := told(t, w, a); got != a.Netns {
			t.Errorf("with CNI_NETNS_OVERRIDE: CNI_NETNS=%s", got)
		}
	})
}

// clause: R2 R3 R6
func TestCheck(t *testing.T) {
	l := chain(t, "0.4.0", three, nil)
	a := web(t)
	w := added(t, l, a)
	if err := w.Check(bounded(t), l, a); err != nil {
		t.Fatal(err)
	}
	calls := w.told()
	if len(calls) != 3 || calls[0].Type != "first" || calls[2].Type != "third" {
		t.Fatalf("plugins: %v", calls)
	}
	for _, c := range calls {
		if c.Command != "CHECK" || prevResult(t, c) != "first second third" {
			t.Errorf("%v: prevResult %s", c, prevResult(t, c))
		}
	}
	bad := chain(t, "0.4.0", three, map[string]map[string]order{"second": {"CHECK": {Stdout: `{"code":100,"msg":"drifted"}`, Exit: 1}}})
	if err := w.Check(bounded(t), bad, a); err == nil || !strings.Contains(err.Error(), "drifted") {
		t.Errorf("drift: %v", err)
	}
	w.expect("CHECK first, CHECK second")
	bad = chain(t, "0.4.0", three, map[string]map[string]order{
		"first": {"CHECK": {Stdout: `{"code":100,"msg":"drifted"}`, Exit: 1}}, "third": {"CHECK": {Stdout: `{"code":100,"msg":"is gone"}`, Exit: 1}}})
	if err := w.Check(bounded(t), bad, a, attach.Continue()); err == nil || !strings.Contains(err.Error(), "drifted") ||
		!strings.Contains(err.Error(), "is gone") {
		t.Errorf("drift of two: %v", err)
	}
	w.expect("CHECK first, CHECK second, CHECK third")
	a.Netns = nstest.NewNS(t)
	if err := w.Check(bounded(t), l, a); err == nil || !strings.Contains(err.Error(), a.Netns) {
		t.Errorf("another namespace: %v", err)
	}
	w.expect("")
}

// clause: R6 V8 C6
func TestCheckWithoutCall(t *testing.T) {
	plugins := `"name":"lan","plugins":[{"type":"first"}]}`
	for name, tc := range map[string]struct {
		list string
		is   error
		code spec.Code // 0: success
	}{
		"not attached":      {`{"cniVersion":"1.0.0",` + plugins, attach.ErrNotAttached, 0},
		"before 0.4.0":      {`{"cniVersion":"0.3.1",` + plugins, nil, spec.CodeVersion},
		"disabled":          {`{"cniVersion":"1.0.0","disableCheck":true,` + plugins, nil, 0},
		"disabled, in text": {`{"cniVersion":"0.4.0","disableCheck":"true",` + plugins, nil, 0},
		"disabled, 0.3.1":   {`{"cniVersion":"0.3.1","disableCheck":true,` + plugins, nil, spec.CodeVersion},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			err := w.Check(bounded(t), list(t, tc.list), web(t))
			var doc *spec.Error
			switch {
			case tc.is != nil && !errors.Is(err, tc.is),
				tc.code != 0 && (!errors.As(err, &doc) || doc.Code != tc.code),
				tc.is == nil && tc.code == 0 && err != nil:
				t.Errorf("%v, want %v, code %d", err, tc.is, tc.code)
			}
			w.expect("")
		})
	}
}
