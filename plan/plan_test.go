package plan

import (
	"context"
	"errors"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel"
)

// A thing is a resource that outlives its link.
type thing string

func (t thing) String() string { return string(t) }

func (thing) Ensure(context.Context, *kernel.World) (bool, error) { return false, nil }

func (thing) Verify(context.Context, *kernel.World) error { return nil }

func (thing) Remove(context.Context, *kernel.World) error { return nil }

func TestParts(t *testing.T) {
	missing := errors.New("runtimeConfig.mac: is missing")
	p := Plan{Required(thing("master")), Shared(thing("bridge")), Prerequisite(thing("module")), thing("link"),
		Lacking(missing)}
	for text, part := range map[string]Plan{
		"required master\nrequired module\n": p.Required(),
		"shared bridge\n":                    p.Shared(),
	} {
		if part.String() != text {
			t.Errorf("%q, want %q", part, text)
		}
	}
	if _, err := p.Attaching(); !errors.Is(err, missing) {
		t.Errorf("attaching: %v", err)
	}
	if q, err := p[:4].Attaching(); err != nil || q.String() != "required master\nshared bridge\nlink\n" {
		t.Errorf("attaching: %v, %q", err, q)
	}
	for i, name := range []thing{"master", "bridge", "module", "link"} {
		if is := Unwrap(p[i]); is != name {
			t.Errorf("%v is %v", p[i], is)
		}
	}
	if _, ok := p[1].(Remover); ok {
		t.Error("a shared thing can be removed by an attachment")
	}
}
