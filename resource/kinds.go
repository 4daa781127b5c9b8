package resource

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// RecordedTags returns the tags of a network's attachments that have a record of that name in the host's store. The
// field Found of a tag is its record.
func RecordedTags[T any](w *kernel.World, record, network string) ([]plan.Tag, error) {
	records, err := DecodeRecords[T](w.Store.Records(record, network))
	tags := make([]plan.Tag, 0, len(records))
	for hash, r := range records {
		tags = append(tags, plan.Tag{Network: network, Hash: hash, Found: r})
	}
	return tags, err
}

// ownersIn returns the owners that have a record of that name.
func ownersIn[T any](record string) OwnersFunc {
	return func(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
		return RecordedTags[T](w, record, network)
	}
}

// RecordOf returns the record of a tag's attachment. Known is false if there is none.
func RecordOf[T any](w *kernel.World, record string, t plan.Tag) (r T, known bool, err error) {
	if r, known = t.Found.(T); known {
		return r, true, nil
	}
	raw, err := w.Store.Raw(record, t.Network, t.Hash)
	if err != nil || raw == nil {
		return r, false, err
	}
	return r, json.Unmarshal(raw, &r) == nil, nil
}

// forEach calls do for every tag. It continues after an error and returns all errors.
func forEach(tags []plan.Tag, do func(plan.Tag) error) error {
	var errs []error
	for _, t := range tags {
		errs = append(errs, do(t))
	}
	return errors.Join(errs...)
}

// ForgetRecords deletes the records of these names for all tags.
func ForgetRecords(w *kernel.World, tags []plan.Tag, records ...string) error {
	return forEach(tags, func(t plan.Tag) error {
		var errs []error
		for _, record := range records {
			errs = append(errs, w.Store.DeleteOf(record, t.Network, t.Hash))
		}
		return errors.Join(errs...)
	})
}

// NotOf returns a function that reports whether an owner's hash belongs to none of the tags. A search over many
// objects keeps those of other owners by it.
func NotOf(tags []plan.Tag) (keep func(owner [8]byte) bool) {
	of := map[[8]byte]bool{}
	for _, t := range tags {
		of[t.Hash] = true
	}
	return func(owner [8]byte) bool { return !of[owner] }
}

// PrevMAC returns the MAC address that the previous result gives the container interface of a tag. Attached is false
// if the result does not list the interface.
func PrevMAC(t plan.Tag) (mac string, attached bool) {
	if t.Prev == nil {
		return "", false
	}
	for _, f := range t.Prev.Interfaces {
		if f.Name == t.Owner.IfName && f.Sandbox != "" {
			return f.MAC, true
		}
	}
	return "", false
}

// KindFuncs are the functions of a Kind. A nil function does nothing.
type KindFuncs struct {
	// Owners tells GC whose it is.
	Owners OwnersFunc
	Remove func(ctx context.Context, w *kernel.World, t plan.Tag) error
	// Found removes at once what Owners found. Where it is nil, Remove is called for each.
	Found func(ctx context.Context, w *kernel.World, tags []plan.Tag) error
	// Tidy is that of plan.Tidier.
	Tidy func(ctx context.Context, w *kernel.World, network string, used bool) error
}

// NewKind returns a Kind with that name and these functions.
func NewKind(name string, do KindFuncs) plan.Kind { return funcKind{name, do} }

type funcKind struct {
	name string
	do   KindFuncs
}

// Name implements plan.Kind.
func (k funcKind) Name() string { return k.name }

// Owners implements plan.Kind.
func (k funcKind) Owners(ctx context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	if k.do.Owners == nil {
		return nil, nil
	}
	return k.do.Owners(ctx, w, network)
}

// Remove implements plan.Kind.
func (k funcKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	switch {
	case k.do.Remove == nil:
		return nil
	case k.do.Found != nil && len(tags) > 0 && !tags[0].Known():
		return k.do.Found(ctx, w, tags)
	}
	return forEach(tags, func(t plan.Tag) error { return k.do.Remove(ctx, w, t) })
}

// Tidy implements plan.Tidier.
func (k funcKind) Tidy(ctx context.Context, w *kernel.World, network string, used bool) error {
	if k.do.Tidy == nil {
		return nil
	}
	return k.do.Tidy(ctx, w, network, used)
}

// RecordKind returns a Kind whose owners are those with a record. DEL calls del with the owner. GC calls gc with the
// record's content and then deletes the record.
func RecordKind[T any](
	name, record string,
	del func(context.Context, *kernel.World, plan.Tag) error,
	gc func(context.Context, *kernel.World, plan.Tag, T) error,
) plan.Kind {
	return NewKind(name, RecordFuncs(record, del, gc))
}

// RecordFuncs returns the functions of a RecordKind.
func RecordFuncs[T any](
	record string,
	del func(context.Context, *kernel.World, plan.Tag) error,
	gc func(context.Context, *kernel.World, plan.Tag, T) error,
) KindFuncs {
	return KindFuncs{
		Owners: ownersIn[T](record),
		Remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			r, found := t.Found.(T)
			if !found {
				return del(ctx, w, t)
			}
			if err := gc(ctx, w, t, r); err != nil {
				return err
			}
			return w.Store.DeleteOf(record, t.Network, t.Hash)
		},
	}
}

// An OwnersFunc returns the attachments of a network that have an object of a kind.
type OwnersFunc func(ctx context.Context, w *kernel.World, network string) ([]plan.Tag, error)

// KindByRemover returns a Kind for a resource that removes everything by the owner alone. The tags of owners, if it
// is not nil, contain the complete owner.
func KindByRemover(name string, owners OwnersFunc, of func(spec.Owner) plan.Remover) plan.Kind {
	return NewKind(name, KindFuncs{Owners: owners,
		Remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			return of(t.Owner).Remove(ctx, w)
		}})
}

// ExceptNoNamespace returns err, or nil if err says that the namespace is gone: then there is nothing to remove.
func ExceptNoNamespace(err error) error {
	if errors.Is(err, kernel.ErrNoNamespace) {
		return nil
	}
	return err
}
