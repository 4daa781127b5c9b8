package contract

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Breakage changes one thing behind a resource's back. Verify has to name it in the words of want, and
// must leave it as it is. Then it is put right, see Terms.Repair, and Remove has to leave what was there before the
// first Ensure: where it spares what another program has set since, Repair has to take that away.
type Breakage struct {
	name string
	do   func(t *testing.T)
	want string
}

// Break is the breaker of that name.
func Break(name string, do func(t *testing.T), want string) Breakage { return Breakage{name, do, want} }

// Terms are what the contract needs to know of a kind beside the resource.
type Terms struct {
	Once    bool                      // a second Ensure is an error that changes nothing, rather than nothing to do
	Present bool                      // it is there before the first Ensure, which has nothing to do
	Repair  func(t *testing.T)        // what puts a broken one right; nil: Ensure, after Remove where there is one
	State   func(t testing.TB) string // everything that the kind could touch; nil: that of State

	Kind  plan.Kind  // of the resource; nil: as KindOf says
	Owner spec.Owner // whose the resource is, where Kind is set
}

// Test holds r to the contract of plan.Resource and plan.Remover.
func Test(t *testing.T, w *kernel.World, r plan.Resource, breakers ...Breakage) {
	t.Helper()
	Terms{}.Test(t, w, r, breakers...)
}

func (l Terms) Test(t *testing.T, w *kernel.World, r plan.Resource, breakers ...Breakage) {
	t.Helper()
	ctx := context.Background()
	state := l.stateOf(w)
	ensure := func(want bool) {
		t.Helper()
		if changed, err := r.Ensure(ctx, w); err != nil || changed != want {
			t.Fatalf("%v: ensure: changed %v, error %v", r, changed, err)
		}
		if err := r.Verify(ctx, w); err != nil {
			t.Fatalf("%v: verify after ensure: %v", r, err)
		}
	}
	same := func(when, want string) {
		t.Helper()
		if got := state(t); got != want {
			t.Fatalf("%v: %s: %s", r, when, Difference(want, got))
		}
	}

	before := state(t)
	if !l.Present {
		if err := r.Verify(ctx, w); err == nil {
			t.Errorf("%v: verify before ensure: no error", r)
		}
		same("verify before ensure changed something", before)
	}
	ensure(!l.Present)
	made := state(t)
	if l.Once {
		testOnce(t, w, r)
	} else {
		ensure(false)
	}
	same("a second ensure changed something", made)

	remover, removable := r.(plan.Remover)
	for _, b := range breakers {
		t.Run(b.name, func(t *testing.T) {
			b.do(t)
			l.fixBroken(t, w, r, b.want, state)
		})
	}
	if !removable {
		return
	}
	for _, when := range []string{"remove", "second remove"} {
		if err := remover.Remove(ctx, w); err != nil {
			t.Fatalf("%v: %s: %v", r, when, err)
		}
		same("state after "+when, before)
	}
	l.testKind(t, w, r, state)
}

// testKind holds the Kind of a resource to its law, which a resource with an owner has.
func (l Terms) testKind(t *testing.T, w *kernel.World, r plan.Resource, state func(testing.TB) string) {
	t.Helper()
	k, of := l.Kind, l.Owner
	if k == nil {
		k, of = KindOf(r)
	}
	switch {
	case k != nil:
		testKind(t, w, r, k, of, state)
	case of == spec.Owner{} && hasOwner(r):
		t.Errorf("%v belongs to an attachment: say of which Kind it is, in KindOf or in Terms", r)
	}
}

// hasOwner reports whether a resource has a field with the attachment that it belongs to.
func hasOwner(r plan.Resource) bool {
	of := reflect.Indirect(reflect.ValueOf(plan.Unwrap(r))).FieldByName("Owner")
	return of.IsValid() && !of.IsZero()
}

// stateOf is what reads everything that the kind could touch.
func (l Terms) stateOf(w *kernel.World) func(testing.TB) string {
	if l.State != nil {
		return l.State
	}
	return func(t testing.TB) string { return State(t, w) }
}

// testOnce has a second Ensure be an error that changes nothing.
func testOnce(t *testing.T, w *kernel.World, r plan.Resource) {
	t.Helper()
	ctx := context.Background()
	if changed, err := r.Ensure(ctx, w); err == nil || changed {
		t.Errorf("%v: second ensure: changed %v, error %v", r, changed, err)
	}
	if err := r.Verify(ctx, w); err != nil {
		t.Errorf("%v: verify after the second ensure: %v", r, err)
	}
}

// fixBroken has Verify find a resource that was broken, with want in what it says, and has it fixed.
func (l Terms) fixBroken(t *testing.T, w *kernel.World, r plan.Resource, want string, state func(testing.TB) string) {
	t.Helper()
	ctx := context.Background()
	broken := state(t)
	if err := r.Verify(ctx, w); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v: verify says %v, want %q", r, err, want)
	}
	if got := state(t); got != broken {
		t.Fatalf("%v: verify changed something: %s", r, Difference(broken, got))
	}
	if l.Repair != nil {
		l.Repair(t)
	} else {
		if remover, removable := r.(plan.Remover); removable {
			if err := remover.Remove(ctx, w); err != nil {
				t.Fatalf("%v: remove a broken one: %v", r, err)
			}
		}
		if _, err := r.Ensure(ctx, w); err != nil {
			t.Fatalf("%v: ensure a broken one: %v", r, err)
		}
	}
	if err := r.Verify(ctx, w); err != nil {
		t.Fatalf("%v: verify after the repair: %v", r, err)
	}
}

// Difference is the lines that only one of two states has.
func Difference(before, after string) string {
	var b strings.Builder
	was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
	for _, l := range was {
		if !slices.Contains(is, l) {
			b.WriteString("\n- " + l)
		}
	}
	for _, l := range is {
		if !slices.Contains(was, l) {
			b.WriteString("\n+ " + l)
		}
	}
	return b.String()
}

// State is what ip(8) shows of the links, addresses and routes of both namespaces, without what
// settles by itself: operational states, and the addresses that the kernel makes.
func State(t testing.TB, w *kernel.World) string {
	t.Helper()
	var b strings.Builder
	for _, ns := range []*kernel.NS{w.Host, w.Container} {
		batch := exec.Command("ip", "-j", "-batch", "-")
		batch.Stdin = strings.NewReader("link show\naddr show\nroute show table all\n")
		out, err := nstest.Output(ns.Path, batch)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		lists := json.NewDecoder(bytes.NewReader(out))
		for _, what := range []string{"link", "addr", "route"} {
			var list []map[string]any
			if err := lists.Decode(&list); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for _, m := range list {
				dst, _ := m["dst"].(string)
				// made and deleted by a worker of the kernel
				own := what == "route" && strings.Contains(dst, ":") && m["table"] == "local"
				if len(m) == 0 || own || strings.HasPrefix(dst, "fe80") || strings.HasPrefix(dst, "multicast") {
					continue
				}
				if info, ok := m["addr_info"].([]any); ok {
					var global []any
					for _, a := range info {
						a := a.(map[string]any)
						for _, k := range []string{"tentative", "valid_life_time", "preferred_life_time"} {
							delete(a, k)
						}
						if a["scope"] != "link" {
							global = append(global, a)
						}
					}
					m["addr_info"] = global
				}
				if flags, ok := m["flags"].([]any); ok && what == "link" {
					m["flags"] = slices.DeleteFunc(flags, func(f any) bool { return f != "UP" && f != "PROMISC" })
				} else {
					delete(m, "flags")
				}
				for _, k := range []string{"operstate", "linkinfo", "qdisc", "expires"} {
					delete(m, k)
				}
				line, _ := json.Marshal(m)
				fmt.Fprintf(&b, "%s %s\n", what, line)
			}
		}
	}
	return b.String()
}
