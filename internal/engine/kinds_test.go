package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// A diaryKind writes down what is asked of it.
type diaryKind struct {
	name   string
	h      *host
	owners []spec.Owner
	broken error
}

func (k diaryKind) Name() string { return k.name }

func (k diaryKind) Owners(context.Context, *kernel.World, string) (tags []plan.Tag, err error) {
	for _, o := range k.owners {
		tags = append(tags, plan.TagOf(o))
	}
	return tags, nil
}

func (k diaryKind) Remove(_ context.Context, _ *kernel.World, tags ...plan.Tag) error {
	if len(tags) == 0 {
		k.h.log = append(k.h.log, "remove nothing")
	}
	for _, t := range tags {
		k.h.log = append(k.h.log, fmt.Sprintf("remove %s of %s", k.name, t.Owner.ContainerID))
	}
	return k.broken
}

func (k diaryKind) Tidy(_ context.Context, _ *kernel.World, network string, used bool) error {
	k.h.log = append(k.h.log, fmt.Sprintf("tidy %s of %s, used %v", k.name, network, used))
	return nil
}

// DEL removes kinds in the reverse of the order in which ADD makes them, and goes on past errors.
//
// clause: P12
func TestRemoveKinds(t *testing.T) {
	h, boom := newHost(), errors.New("boom")
	kinds := []plan.Kind{diaryKind{name: "link", h: h}, diaryKind{name: "addr", h: h, broken: boom},
		diaryKind{name: "rule", h: h}}
	err := Remove(t.Context(), nil, kinds, plan.TagOf(spec.Owner{Network: "net", ContainerID: "c1"}))
	if !errors.Is(err, boom) {
		t.Errorf("remove: %v", err)
	}
	want := []string{"remove rule of c1", "remove addr of c1", "remove link of c1"}
	if !slices.Equal(h.log, want) {
		t.Errorf("did %q, want %q", h.log, want)
	}
}

// GC removes what the dead have, the last kind first. Then it tidies what attachments share, also after an error.
//
// clause: P22
func TestCollect(t *testing.T) {
	living := spec.Owner{Network: "net", ContainerID: "living"}
	dead := spec.Owner{Network: "net", ContainerID: "dead"}
	for _, used := range []bool{true, false} {
		h, boom := newHost(), errors.New("boom")
		both := []spec.Owner{living, dead}
		kinds := []plan.Kind{diaryKind{name: "link", h: h, owners: both},
			diaryKind{name: "rule", h: h, owners: both, broken: boom}}
		kinds = append(kinds, diaryKind{name: "empty", h: h}) // which removes nothing
		var valid []spec.Owner
		want := []string{"remove rule of living", "remove rule of dead", "remove link of living", "remove link of dead"}
		if used {
			valid = append(valid, living)
			want = []string{"remove rule of dead", "remove link of dead"}
		}
		if err := Collect(t.Context(), nil, kinds, "net", valid); !errors.Is(err, boom) {
			t.Errorf("collect: %v", err)
		}
		for _, name := range []string{"empty", "rule", "link"} {
			want = append(want, fmt.Sprintf("tidy %s of net, used %v", name, used))
		}
		if !slices.Equal(h.log, want) {
			t.Errorf("did %q, want %q", h.log, want)
		}
	}
}

// A mark that tells too little of its owner may be of any valid attachment that fits, and stays then.
func TestCollectCould(t *testing.T) {
	for _, tc := range []struct {
		valid []spec.Owner
		want  []string
	}{
		{nil, []string{"remove rule of ", "tidy rule of net, used false"}},
		{[]spec.Owner{{ContainerID: "other"}}, []string{"remove rule of ", "tidy rule of net, used true"}},
		{[]spec.Owner{{ContainerID: "other"}, {ContainerID: "mine"}}, []string{"tidy rule of net, used true"}},
	} {
		h := newHost()
		could := func(o spec.Owner) bool { return o.ContainerID == "mine" }
		kinds := []plan.Kind{vagueKind{diaryKind{name: "rule", h: h}, plan.Tag{Could: could}, nil}}
		if err := Collect(t.Context(), nil, kinds, "net", tc.valid); err != nil || !slices.Equal(h.log, tc.want) {
			t.Errorf("with %v: did %q, want %q: %v", tc.valid, h.log, tc.want, err)
		}
	}
	lost := errors.New("no answer")
	kinds := []plan.Kind{vagueKind{diaryKind: diaryKind{name: "rule", h: newHost()}, lost: lost}}
	if err := Collect(t.Context(), nil, kinds, "net", nil); !errors.Is(err, lost) {
		t.Errorf("where owners are not known: %v", err)
	}
	if (plan.Tag{}).Known() || !plan.TagOf(spec.Owner{ContainerID: "c"}).Known() {
		t.Error("which owner is known")
	}
}

// A vagueKind has one tag.
type vagueKind struct {
	diaryKind
	tag  plan.Tag
	lost error
}

func (k vagueKind) Owners(context.Context, *kernel.World, string) ([]plan.Tag, error) {
	return []plan.Tag{k.tag}, k.lost
}

// otherKind is a diaryKind of another type.
type otherKind struct{ diaryKind }

// Union has each kind once. Two kinds that are not the same may not have one name.
func TestUnion(t *testing.T) {
	link, addr := diaryKind{name: "link"}, diaryKind{name: "addr"}
	all := Union([]plan.Kind{link}, []plan.Kind{link, addr})
	if len(all) != 2 || all[0].Name() != "link" || all[1].Name() != "addr" {
		t.Errorf("union is %v", all)
	}
	defer func() {
		if said := fmt.Sprint(recover()); !strings.Contains(said, `two kinds are called "link"`) {
			t.Errorf("panic says %s", said)
		}
	}()
	Union([]plan.Kind{link}, []plan.Kind{otherKind{link}})
}

// What was in a namespace that is gone counts as removed, and is not reported.
func TestGoneNamespace(t *testing.T) {
	gone := fmt.Errorf("open: %w", kernel.ErrNoNamespace)
	dead := spec.Owner{Network: "net", ContainerID: "dead"}
	kinds := []plan.Kind{diaryKind{name: "link", h: newHost(), owners: []spec.Owner{dead}, broken: gone}}
	if err := Remove(t.Context(), nil, kinds, plan.TagOf(dead)); err != nil {
		t.Errorf("remove: %v", err)
	}
	if err := Collect(t.Context(), nil, kinds, "net", nil); err != nil {
		t.Errorf("collect: %v", err)
	}
}
