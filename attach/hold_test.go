package attach_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// one is the only attachment that List returns.
func (w *world) one(t *testing.T) *attach.Cached {
	t.Helper()
	all, problems := w.List("")
	if len(all) != 1 || len(problems) > 0 {
		t.Fatal(all, problems)
	}
	return &all[0]
}

// Who holds an attachment keeps its DEL waiting. One that was deleted, or made again, is not held, and neither is one
// that another holds.
func TestHold(t *testing.T) {
	l, a := chain(t, "1.1.0", three[:1], nil), web(t)
	w := added(t, l, a)
	c := w.one(t)
	other := &attach.Runtime{PluginDirs: w.PluginDirs, CacheDir: w.CacheDir, LockDir: w.LockDir, Env: w.Env}
	release, still, err := w.Hold(bounded(t), c)
	if err != nil || !still {
		t.Fatal(still, err)
	}
	blocked(t, "DEL", other.Del(soon(t), l, a))
	none, still, err := other.Hold(soon(t), c)
	if blocked(t, "a second one", err); none != nil || still {
		t.Error("it is held twice")
	}
	release()
	if release, err := w.HoldNetwork(bounded(t), "lan"); err != nil { // the second one keeps nothing
		t.Error(err)
	} else {
		release()
	}

	gone := func(when string) {
		t.Helper()
		if release, still, err := w.Hold(bounded(t), c); release != nil || still || err != nil {
			t.Errorf("%s: held %v, %v", when, still, err)
		}
	}
	if err := other.Del(bounded(t), l, a); err != nil {
		t.Fatal(err)
	}
	gone("deleted")
	if _, err := other.Add(bounded(t), l, a); err != nil {
		t.Fatal(err)
	}
	gone("made again")

	results := filepath.Join(w.CacheDir, "results")
	if err := errors.Join(os.Rename(results, results+".old"), os.WriteFile(results, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, still, err := w.Hold(bounded(t), c); still || err == nil {
		t.Errorf("in a cache that cannot be read: held %v, %v", still, err)
	}
}

// Who holds a network keeps all its calls waiting, and who shares it keeps only GC waiting.
func TestHoldNetwork(t *testing.T) {
	w := newWorld(t)
	l, a := chain(t, "1.1.0", three[:1], nil), web(t)
	other := &attach.Runtime{PluginDirs: w.PluginDirs, CacheDir: w.CacheDir, LockDir: w.LockDir, Env: w.Env}
	release, err := w.HoldNetwork(bounded(t), "lan")
	if err != nil {
		t.Fatal(err)
	}
	_, err = other.Add(soon(t), l, a)
	blocked(t, "ADD", err)
	_, err = other.ShareNetwork(soon(t), "lan")
	blocked(t, "sharing", err)
	release()

	if release, err = w.ShareNetwork(bounded(t), "lan"); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Add(bounded(t), l, a); err != nil {
		t.Error(err)
	}
	blocked(t, "GC", other.GC(soon(t), l, []spec.Attachment{}))
	_, err = other.HoldNetwork(soon(t), "lan")
	blocked(t, "holding", err)
	release()
}

// What CHECK sends to each plugin has its configuration and the result of ADD. Without a result there is nothing to send.
func TestInputs(t *testing.T) {
	l := list(t, `{"cniVersion":"1.1.0","name":"lan","plugins":[{"type":"first","x":1},{"type":"chain","capabilities":{"mac":true},"plugins":[{"type":"second","capabilities":{"mac":true}}]}]}`)
	a := web(t)
	a.Args, a.Capabilities = [][2]string{{"A", "1"}}, map[string]any{"mac": "02:00:00:00:00:01"}
	w := newWorld(t, "chain")
	if _, err := w.Add(bounded(t), l, a); err != nil {
		t.Fatal(err)
	}
	c := w.one(t)
	inputs, args, err := w.Inputs(l, c)
	if err != nil || len(inputs) != 2 || len(args) != 1 || args[0] != a.Args[0] {
		t.Fatal(inputs, args, err)
	}
	for i, want := range [][]string{{`"type":"first"`, `"x":1`, `"prevResult":{`}, {`"type":"second"`, `"runtimeConfig":{"mac":"02:00:00:00:00:01"}`, `"prevResult":{`}} {
		for _, part := range want {
			if !strings.Contains(string(inputs[i].Stdin), part) {
				t.Errorf("input %d is %s, and lacks %s", i, inputs[i].Stdin, part)
			}
		}
		if want := []string{"first", "second"}[i]; inputs[i].Conf.Type != want {
			t.Errorf("input %d is of %s", i, inputs[i].Conf.Type)
		}
	}

	path := filepath.Join(w.CacheDir, "results", "lan-web-eth0")
	for result, want := range map[string]string{`{"cniVersion":"1.1.0","ips":5}`: "result: ", ``: "has no result"} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		at := strings.Index(string(b), `,"result":`)
		odd := string(b[:at]) + `,"result":` + result + "}"
		if result == "" {
			odd = string(b[:at]) + "}"
		}
		if err := os.WriteFile(path, []byte(odd), 0o600); err != nil {
			t.Fatal(err)
		}
		all, _ := w.List("lan")
		if len(all) != 1 {
			t.Fatalf("%s: it is not listed", odd)
		}
		if _, _, err := w.Inputs(l, &all[0]); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", odd, err)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.ContainerID = "-"
	if _, _, err := w.Inputs(l, c); err == nil {
		t.Error("an ID that no call can have")
	}
}

// A namespace that was removed, or in whose place another one is, is gone. A file that is no namespace proves nothing.
func TestGone(t *testing.T) {
	a := attach.Attachment{ContainerID: "web", Netns: "/run/netns/hold", IfName: "eth0"}
	if err := nstest.MakeNS(a.Netns); err != nil {
		t.Fatal(err)
	}
	w := added(t, chain(t, "1.1.0", three[:1], nil), a)
	is := func(when string, gone, hidden bool) {
		t.Helper()
		c := w.one(t)
		if c.Gone() != gone || w.Gone(c) != gone || c.Hidden() != hidden {
			t.Errorf("%s: gone %v and %v, hidden %v", when, c.Gone(), w.Gone(c), c.Hidden())
		}
	}
	is("attached", false, false)
	w.Vanished = func(c *attach.Cached) bool { return c.Netns == a.Netns }
	if c := w.one(t); c.Gone() || !w.Gone(c) || w.Gone(&attach.Cached{}) {
		t.Error("what another program knows is not asked")
	}
	w.Vanished = nil
	if err := nstest.RemoveNS(a.Netns); err != nil {
		t.Fatal(err)
	}
	is("removed", true, false)
	if err := os.WriteFile(a.Netns, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	is("no namespace", false, true)
	if err := errors.Join(os.Remove(a.Netns), nstest.MakeNS(a.Netns)); err != nil {
		t.Fatal(err)
	}
	is("another namespace", true, false)
	if c := w.one(t); (&attach.Cached{}).Gone() || c.Netns != a.Netns {
		t.Error("of no namespace nothing is known")
	}
}

// DEL of a container whose namespace another program calls gone is not sent into the one that has its path.
func TestDelOfVanished(t *testing.T) {
	for _, vanished := range []bool{false, true} {
		l, a := chain(t, "1.1.0", three[:1], nil), web(t)
		w := added(t, l, a)
		w.Vanished = func(*attach.Cached) bool { return vanished }
		if err := w.Del(bounded(t), l, a); err != nil {
			t.Fatal(err)
		}
		want := a.Netns
		if vanished {
			want = ""
		}
		if all := w.told(); len(all) != 1 || all[0].Env["CNI_NETNS"] != want {
			t.Errorf("vanished %v: the plugins were told %v", vanished, all)
		}
	}
}

// A file of the cache may be an attachment of the network with whose name its own begins, unless a DEL has set it aside.
func TestUnreadOf(t *testing.T) {
	cause := errors.New("is torn")
	u := &attach.Unread{File: "/cache/lan-web-eth0", Err: cause}
	if !u.Of("lan") || !u.Of("") || u.Of("wan") || u.Of("la") || u.Error() != "is torn" || !errors.Is(u, cause) {
		t.Errorf("%+v", u)
	}
	if u.Aside = true; u.Of("lan") || u.Of("") {
		t.Error("what was set aside is no attachment")
	}
}

// An entry that does not say whose it is, is no attachment. Where none can be written, there is no ADD.
func TestOddCache(t *testing.T) {
	w := newWorld(t)
	results := filepath.Join(w.CacheDir, "results")
	if err := os.MkdirAll(results, 0o700); err != nil {
		t.Fatal(err)
	}
	whole := `{"kind":"cniCacheV1","containerId":"web","ifName":"eth0","networkName":"lan"}`
	for _, name := range []string{"containerId", "ifName", "networkName"} {
		odd := strings.Replace(whole, `"`+name+`"`, `"x"`, 1)
		if err := os.WriteFile(filepath.Join(results, "lan-web-eth0"), []byte(odd), 0o600); err != nil {
			t.Fatal(err)
		}
		all, problems := w.List("")
		if len(all) > 0 || len(problems) != 1 || !errors.Is(problems[0], attach.ErrCorrupt) {
			t.Errorf("%s: %v, %v", odd, all, problems)
		}
	}

	w = newWorld(t)
	if err := os.WriteFile(w.CacheDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := w.Add(bounded(t), chain(t, "1.1.0", three[:1], nil), web(t))
	if err == nil || !strings.Contains(err.Error(), w.CacheDir) {
		t.Errorf("without a cache: %v", err)
	}
	if _, problems := w.List(""); len(problems) != 1 || !errors.Is(problems[0], attach.ErrUnseen) {
		t.Errorf("without a cache: %v", problems)
	}
}
