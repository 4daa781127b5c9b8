package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// A host is what the resources of these tests are made on: the names that exist, and a diary.
type host struct {
	there map[string]bool
	log   []string
}

// A thing exists on a host or not.
type thing struct {
	h      *host
	name   string
	broken error // of Ensure and Remove
}

func (t thing) String() string { return t.name }

func (t thing) Ensure(context.Context, *kernel.World) (bool, error) {
	if t.broken != nil {
		return false, t.broken
	}
	t.h.log = append(t.h.log, "ensure "+t.name)
	was := t.h.there[t.name]
	t.h.there[t.name] = true
	return !was, nil
}

func (t thing) Verify(context.Context, *kernel.World) error {
	if !t.h.there[t.name] {
		return errors.New("is missing")
	}
	return nil
}

// A lasting thing has to be removed.
type lasting struct{ thing }

func (l lasting) Remove(context.Context, *kernel.World) error {
	l.h.log = append(l.h.log, "remove "+l.name)
	if l.broken != nil {
		return l.broken
	}
	delete(l.h.there, l.name)
	return nil
}

func newHost(there ...string) *host {
	h := &host{there: map[string]bool{}}
	for _, name := range there {
		h.there[name] = true
	}
	return h
}

func (h *host) last(name string) lasting { return lasting{thing{h, name, nil}} }

// clause: P11
func TestRollback(t *testing.T) {
	h := newHost("was-there")
	boom := errors.New("boom")
	p := plan.Plan{plan.Shared(h.last("bridge")), h.last("was-there"), h.last("link"), thing{h, "addr", nil}, h.last("rule"),
		thing{h, "bad", boom}, h.last("never")}
	ctx, cancel := context.WithCancel(context.Background())
	tx := Begin(nil)
	if err := tx.Apply(ctx, p[:3]); err != nil {
		t.Fatal(err)
	}
	// The longer plan that the addresses bring: what is ensured is skipped.
	if err := tx.Apply(ctx, p); !errors.Is(err, boom) || err.Error() != "bad: boom" {
		t.Errorf("apply: %v", err)
	}
	cancel() // the caller's time is out, and yet
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	want := []string{"ensure bridge", "ensure was-there", "ensure link", "ensure addr", "ensure rule", "remove rule",
		"remove link"}
	if !slices.Equal(h.log, want) {
		t.Errorf("did %q, want %q", h.log, want)
	}
}

// An ADD whose caller has gone away makes nothing more.
func TestApplyStopsWithItsCaller(t *testing.T) {
	h := newHost()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Begin(nil).Apply(ctx, plan.Plan{h.last("link")}); !errors.Is(err, context.Canceled) || len(h.log) != 0 {
		t.Errorf("apply: %v, did %q", err, h.log)
	}
}

// clause: P12
func TestUndo(t *testing.T) {
	h := newHost("a", "c")
	boom := errors.New("boom")
	p := plan.Plan{h.last("a"), plan.Shared(h.last("bridge")), lasting{thing{h, "b", boom}},
		lasting{thing{h, "gone", fmt.Errorf("open: %w", kernel.ErrNoNamespace)}}, h.last("c")}
	err := Undo(context.Background(), nil, p)
	if !errors.Is(err, boom) || errors.Is(err, kernel.ErrNoNamespace) || err.Error() != "remove b: boom" {
		t.Errorf("remove: %v", err)
	}
	if want := []string{"remove c", "remove gone", "remove b", "remove a"}; !slices.Equal(h.log, want) {
		t.Errorf("did %q, want %q", h.log, want)
	}
}

// clause: P14 P15
func TestVerify(t *testing.T) {
	h := newHost("a")
	p := plan.Plan{plan.Required(h.last("master")), plan.Shared(h.last("bridge")), h.last("a")}
	err := Verify(context.Background(), nil, p)
	if err == nil || strings.Count(err.Error(), "is missing") != 2 ||
		!strings.Contains(err.Error(), "shared bridge: is missing") {
		t.Errorf("verify: %v", err)
	}
	if _, err := p[0].Ensure(context.Background(), nil); err == nil || len(h.log) != 0 {
		t.Errorf("a required thing was made: %v, %q", err, h.log)
	}
}

// A clock is told each step of an ADD, a CHECK and a DEL, with its time.
func TestTiming(t *testing.T) {
	h := newHost()
	p := plan.Plan{h.last("link"), plan.Shared(h.last("bridge"))}
	var steps []string
	ctx := Timing(t.Context(), func(took time.Duration, step func() string) {
		if took < 0 || took > time.Hour {
			t.Errorf("%s took %v", step(), took)
		}
		steps = append(steps, step())
	})
	tx := Begin(nil)
	if err := errors.Join(tx.Apply(ctx, p), Verify(ctx, nil, p), tx.Rollback(ctx)); err != nil {
		t.Fatal(err)
	}
	kind := diaryKind{name: "rule", h: h}
	dead := spec.Owner{Network: "net", ContainerID: "dead"}
	if err := Remove(ctx, nil, []plan.Kind{kind}, plan.TagOf(dead)); err != nil {
		t.Fatal(err)
	}
	want := []string{"link", "shared bridge", "link", "shared bridge", "remove link", "remove rule"}
	if !slices.Equal(steps, want) {
		t.Errorf("the steps are %q", steps)
	}
}

// A value that the runtime has not given refuses an ADD and a CHECK, with all that stands before it undone.
func TestLacking(t *testing.T) {
	missing := errors.New("runtimeConfig.mac: is missing")
	h := newHost()
	p := plan.Plan{h.last("link"), plan.Lacking(missing)}
	tx := Begin(nil)
	if err := tx.Apply(t.Context(), p); !errors.Is(err, missing) {
		t.Errorf("apply: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil || len(h.there) > 0 {
		t.Errorf("roll back: %v, left %v", err, h.there)
	}
	if err := Verify(t.Context(), nil, plan.Plan{plan.Lacking(missing)}); !errors.Is(err, missing) {
		t.Errorf("verify: %v", err)
	}
}
