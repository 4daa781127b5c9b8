package names

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// newWorld is a host with the address 10.1.0.1, and a server that answers with what it is told.
func newWorld(t *testing.T) (w *kernel.World, wrong *atomic.Value) {
	t.Helper()
	dir := nstest.NewNS(t)
	nstest.RunIn(t, dir, "sh", "-ec", "ip link set lo up; ip addr add 10.1.0.1/24 dev lo")
	host, err := kernel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(host.Close)
	w = &kernel.World{Host: host, Store: record.Store{Dir: filepath.Join(t.TempDir(), "memory")}}
	if err := os.MkdirAll(w.Store.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", Socket(w.Store))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	wrong = new(atomic.Value)
	wrong.Store("")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			var q Question
			if json.NewDecoder(c).Decode(&q) == nil {
				json.NewEncoder(c).Encode(Answer{Error: wrong.Load().(string)})
			}
			c.Close()
		}
	}()
	return w, wrong
}

func files(t *testing.T, w *kernel.World) string {
	t.Helper()
	all, err := filepath.Glob(w.Store.Dir + "/*")
	if err != nil {
		t.Fatal(err)
	}
	var s string
	for _, f := range all {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		s += filepath.Base(f) + " " + string(b) + "\n"
	}
	return s
}

func example(id string) Names {
	return Names{Owner: spec.Owner{Network: "net", ContainerID: id, IfName: "eth0"}, Names: []string{id}, Aliases: []string{"db"},
		Domain: "test",
		Addrs:  []netip.Prefix{netip.MustParsePrefix("10.1.0.2/24"), netip.MustParsePrefix("fd00::2/64")},
		Link:   "lo", Gateways: []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00::1")},
		Upstream: []netip.Addr{netip.MustParseAddr("192.0.2.53")}}
}

// The law of resources: ensure, verify, ensure again changes nothing, break each field and verify names it, remove.
func TestNames(t *testing.T) {
	w, wrong := newWorld(t)
	ctx, n := t.Context(), example("c1")
	if err := n.Verify(ctx, w); err == nil || err.Error() != "its record is missing" {
		t.Errorf("verify of nothing: %v", err)
	}
	if changed, err := n.Ensure(ctx, w); err != nil || !changed {
		t.Fatal(changed, err)
	}
	made := files(t, w)
	if changed, err := n.Ensure(ctx, w); err != nil || changed || files(t, w) != made {
		t.Errorf("ensured again: %v, %v", changed, err)
	}
	if err := n.Verify(ctx, w); err != nil {
		t.Error(err)
	}
	silent := n
	silent.Upstream = nil // no opinion, as in CHECK and repair
	if err := silent.Verify(ctx, w); err != nil {
		t.Error(err)
	}
	if changed, err := silent.Ensure(ctx, w); err != nil || changed || files(t, w) != made {
		t.Errorf("without an opinion: %v, %v", changed, err)
	}
	for name, change := range map[string]func(*Record){
		"names":     func(r *Record) { r.Names = append(r.Names, "x") },
		"aliases":   func(r *Record) { r.Aliases = nil },
		"domain":    func(r *Record) { r.Domain = "" },
		"addresses": func(r *Record) { r.Addrs = r.Addrs[:1] },
		"servers":   func(r *Record) { r.Gateways = nil },
		"upstream":  func(r *Record) { r.Upstream = append(r.Upstream, r.Gateways...) },
	} {
		var r Record
		if _, err := w.Store.Get(Kept, n.Owner, &r); err != nil {
			t.Fatal(err)
		}
		change(&r)
		if err := w.Store.Put(Kept, n.Owner, r); err != nil {
			t.Fatal(err)
		}
		if err := n.Verify(ctx, w); err == nil || !strings.HasPrefix(err.Error(), name+" is ") {
			t.Errorf("%s: %v", name, err)
		}
		if changed, err := n.Ensure(ctx, w); err != nil || !changed || files(t, w) != made {
			t.Errorf("%s: fixed: %v, %v", name, changed, err)
		}
	}
	res := &spec.Result{DNS: spec.DNS{Search: []string{"other"}, Nameservers: []string{"192.0.2.53"}}}
	// the host has one of the two
	if err := n.Traits().Tell(w, res); err != nil || fmt.Sprint(res.DNS) != "{[10.1.0.1]  [test other] []}" {
		t.Errorf("%v, %v", res.DNS, err)
	}

	wrong.Store("port taken")
	if err := n.Verify(ctx, w); code(err) != spec.CodeUnavailable || !strings.Contains(err.Error(), "port taken") {
		t.Errorf("verify where the server cannot listen: %v", err)
	}
	other := n
	other.Names = []string{"x"}
	for _, fails := range []Names{other, example("c2")} {
		if _, err := fails.Ensure(ctx, w); code(err) != spec.CodeTryAgain || files(t, w) != made {
			t.Errorf("a failed ensure: %v, and left\n%s", err, files(t, w))
		}
	}
	for range 2 {
		if err := n.Remove(ctx, w); err != nil || files(t, w) != "" {
			t.Errorf("removed: %v, left\n%s", err, files(t, w))
		}
	}
	far := n
	far.Gateways = far.Gateways[1:]
	if _, err := far.Ensure(ctx, w); code(err) != spec.CodeConfig ||
		!strings.Contains(err.Error(), "no gateway on this host (fd00::1)") || files(t, w) != "" {
		t.Error(err)
	}
}

func code(err error) spec.Code {
	var e *spec.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code
}

// The law of kinds: Owners finds what Ensure made, Remove leaves nothing of it, and nobody else's goes.
func TestKind(t *testing.T) {
	w, _ := newWorld(t)
	ctx, k := t.Context(), Kind()
	elsewhere := example("c1")
	elsewhere.Owner.Network = "another"
	for _, n := range []Names{example("c1"), example("c2"), elsewhere} {
		if _, err := n.Ensure(ctx, w); err != nil {
			t.Fatal(err)
		}
	}
	all := files(t, w)
	if tags, err := k.Owners(ctx, w, "net"); err != nil || len(tags) != 2 {
		t.Errorf("%v, %v", tags, err)
	}
	valid := []spec.Owner{example("c1").Owner, example("c2").Owner}
	if err := engine.Collect(ctx, w, []plan.Kind{k}, "net", valid); err != nil || files(t, w) != all {
		t.Errorf("a GC of valid ones: %v, left\n%s", err, files(t, w))
	}
	if err := k.Remove(ctx, w, plan.TagOf(spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth1"})); err != nil ||
		files(t, w) != all {
		t.Errorf("removed another's: %v", err)
	}
	if err := engine.Collect(ctx, w, []plan.Kind{k}, "net", valid[:1]); err != nil || strings.Count(files(t, w), "\n") != 2 {
		t.Errorf("a GC of one: %v, left\n%s", err, files(t, w))
	}
	for range 2 {
		if err := k.Remove(ctx, w, plan.TagOf(valid[0])); err != nil || strings.Count(files(t, w), "\n") != 1 ||
			!strings.Contains(files(t, w), "another") {
			t.Errorf("removed: %v, left\n%s", err, files(t, w))
		}
	}
}

// What is wrong with the server is said, and with it what to do.
func TestAsk(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "dns.sock")
	wants := func(when, say string) {
		t.Helper()
		if err := Ask(t.Context(), socket, Question{}); code(err) != spec.CodeTryAgain ||
			!strings.Contains(err.Error(), say) {
			t.Errorf("%s: %v", when, err)
		}
	}
	wants("without a socket", "start `fairlead dns`")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	wants("a server that hangs up", "ask the name server")
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	wants("a killed server", "connection refused")
}
