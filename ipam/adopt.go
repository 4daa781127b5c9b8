package ipam

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/spec"
)

// An Adoption says which leases of a network, or of a directory, became those of another network.
type Adoption struct {
	From   string  `json:"from"`
	Leases int     `json:"leases"` // that From has
	Added  []Lease `json:"added"`  // those that the other network did not have yet
}

// Adopt adds the leases of other networks to those of a network whose ranges are the same, so that it gives none of the
// addresses to another container. The owners stay: who releases the lease of a container in the network, by DEL or GC,
// frees the address. From are networks of the same store, or directories; none: all networks of the store that have a
// lease in the ranges. A lease outside of the ranges is an error, and nothing is changed. With dry nothing is, either.
func Adopt(ctx context.Context, l Ledger, network string, from []string, dry bool) ([]Adoption, error) {
	books, err := adoptable(ctx, l, network, from)
	if err != nil {
		return nil, err
	}
	all := []Adoption{}
	var errs []error
	for _, b := range books {
		added, err := l.Import(ctx, network, b, false, true)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, Adoption{b.From, len(b.Leases), append([]Lease{}, added.Leases...)})
	}
	if err := errors.Join(errs...); err != nil || dry {
		return all, err
	}
	for i, b := range books {
		added, err := l.Import(ctx, network, b, false, false)
		if err != nil {
			return nil, err
		}
		all[i].Added = append([]Lease{}, added.Leases...)
	}
	return all, nil
}

// adoptable reads the leases that Adopt adds.
func adoptable(ctx context.Context, l Ledger, network string, from []string) (books []*Book, err error) {
	given := len(from) > 0
	if !given {
		if from, err = l.Networks(ctx); err != nil {
			return nil, err
		}
		from = slices.DeleteFunc(from, func(name string) bool { return name == network })
	}
	for _, name := range from {
		var b *Book
		if strings.Contains(name, "/") {
			b, err = l.Read(name)
		} else {
			b, err = l.Look(ctx, name)
		}
		if err != nil {
			return nil, err
		}
		if given && len(b.Problems) > 0 {
			return nil, spec.Errorf(spec.CodeIO, "leases of %s: %s", name, strings.Join(b.Problems, "; "))
		}
		if given && len(b.Leases) == 0 {
			return nil, spec.Errorf(spec.CodeConfig, "%s has no leases", name)
		}
		if !given && !slices.ContainsFunc(b.Leases, b.within) {
			continue
		}
		books = append(books, &Book{From: name, Leases: b.Leases})
	}
	return books, nil
}

// within reports whether a lease is in one of the sets of the book.
func (b *Book) within(l Lease) bool {
	return slices.ContainsFunc(b.Sets, func(s Set) bool {
		_, found := s.Find(l.Address)
		return found
	})
}
