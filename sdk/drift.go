package sdk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
)

// A drifted is a resource that differs from its description, with the differences.
type drifted struct {
	plan.Resource
	what error
	with []string // what misses the same link
}

func (d drifted) err() error {
	err := fmt.Errorf("%v: %w", d.Resource, d.what)
	if len(d.with) > 0 {
		err = fmt.Errorf("%w; it is needed by %s", err, strings.Join(d.with, ", "))
	}
	return err
}

// verify compares all resources with the kernel and joins the differences. A missing link is reported once, by the
// first resource that needs it, which is the one that made it if the plan contains that. The other resources that need
// the link are listed behind it, because nothing else can be said about them.
func verify(ctx context.Context, want plan.Plan, w *kernel.World) error {
	var all []*drifted
	missing := map[string]*drifted{} // by the name of the link
	for _, r := range want {
		end := plan.Step(ctx, r)
		err := r.Verify(ctx, w)
		if end(); err == nil {
			continue
		}
		is := &drifted{Resource: r, what: err}
		lacks := missed(err)
		if i := slices.IndexFunc(lacks, func(name string) bool { return missing[name] != nil }); i >= 0 {
			first := missing[lacks[i]]
			first.with = append(first.with, r.String())
			continue
		}
		for _, name := range lacks {
			missing[name] = is
		}
		all = append(all, is)
	}
	var errs []error
	for _, is := range all {
		errs = append(errs, is.err())
	}
	return errors.Join(errs...)
}

// missed returns the names of the links whose absence an error reports.
func missed(err error) (names []string) {
	switch e := err.(type) {
	case rtnl.NoLink:
		return []string{e.Name}
	case interface{ Unwrap() error }:
		return missed(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, e := range e.Unwrap() {
			names = append(names, missed(e)...)
		}
	}
	return names
}
