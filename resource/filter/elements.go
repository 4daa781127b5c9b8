package filter

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// CommentOf returns the comment on an element of owner o: the owner's tag.
func CommentOf(o spec.Owner) string { return cut(identity.Tag(o)) }

// cut makes a comment out of text that nft(8) can print and read again.
func cut(text string) string {
	text = strings.Map(func(r rune) rune {
		if r == '"' || r < ' ' {
			return '_'
		}
		return r
	}, text)
	if len(text) > nft.CommentMax {
		text = strings.ToValidUTF8(text[:nft.CommentMax], "")
	}
	return text
}

// TaggedBy reports whether an element carries the tag of the owner with that hash.
func TaggedBy(e *nft.Elem, hash [8]byte) bool { return tagOf(e.Comment, hash) }

func tagOf(tag string, hash [8]byte) bool {
	_, owner, _, ok := identity.ParseTag(tag)
	return ok && owner == hash
}

// SameKey reports whether two elements are in the same set under the same key.
func SameKey(a, b nft.Elem) bool { return ElementKey(a) == ElementKey(b) }

// Has reports whether one of the elements is in the same set under the same key as e.
func Has(list []nft.Elem, e nft.Elem) bool {
	return slices.ContainsFunc(list, func(other nft.Elem) bool { return SameKey(other, e) })
}

// Owned returns the element of a set under a key, as an element of owner o.
func Owned(o spec.Owner, set *nft.Set, key ...any) nft.Elem {
	return nft.Elem{Set: set, Key: nft.Key(key...), Comment: CommentOf(o)}
}

// SameData reports whether two elements of a map have the same data.
func SameData(a, b nft.Elem) bool { return bytes.Equal(a.Data, b.Data) }

// A State has elements as they are, by ElementKey.
type State map[string]*nft.Elem

// At returns the element of a set under a key, or nil.
func (s State) At(e nft.Elem) *nft.Elem { return s[ElementKey(e)] }

// Current reads the elements that entries and wanted elements name, by place, and their other holders.
func (f Tx) Current(have []Entry, want []nft.Elem) (State, error) {
	ask := append(Places(have), want...)
	at := State{}
	held := slices.DeleteFunc(slices.Clone(ask), func(e nft.Elem) bool { return !shared(e.Set) })
	for n := uint32(0); len(ask)+len(held) > 0; n++ {
		plain := len(ask)
		for _, e := range held {
			ask = append(ask, holder(e, n))
		}
		found, err := f.Get(ask...)
		if err != nil {
			return nil, err
		}
		for i, e := range found {
			if e != nil {
				at[ElementKey(ask[i])] = e
			}
		}
		var more []nft.Elem // which have a further one
		for i, e := range held {
			if found[plain+i] != nil {
				more = append(more, e)
			}
		}
		ask, held = nil, more
	}
	return at, nil
}

// ElementKey returns an element's set and key as text, for use as a map key.
func ElementKey(e nft.Elem) string { return e.Set.Name + " " + string(e.Key) + string(e.KeyEnd) }

// holder is where the nth stands who has an element beside the owner that its comment names. They stand without a gap.
func holder(e nft.Elem, n uint32) nft.Elem {
	return nft.Elem{Set: holdersSet(e.Set.Table), Key: ownerKey(identity.PlaceHash(ElementKey(e)), n)}
}

// holders are those who have an element beside the owner that its comment names.
func (s State) holders(e nft.Elem) (all []nft.Elem) {
	for shared(e.Set) {
		h := s.At(holder(e, uint32(len(all))))
		if h == nil {
			break
		}
		all = append(all, *h)
	}
	return all
}

// Tags returns the tags of all owners of an element.
func (s State) Tags(e nft.Elem) (tags []string) {
	if now := s.At(e); now != nil {
		tags = append(tags, now.Comment)
	}
	for _, h := range s.holders(e) {
		tags = append(tags, h.Comment)
	}
	return tags
}

// holds reports whether an owner has the element at a place, alone or with others.
func (s State) holds(e nft.Elem, hash [8]byte) bool {
	return slices.ContainsFunc(s.Tags(e), func(tag string) bool { return tagOf(tag, hash) })
}

// An edit is how a batch changes elements, and what there is after it.
type edit struct {
	b  *nft.Batch
	at State
}

func (e edit) delete(x nft.Elem) {
	e.b.Delete(x)
	delete(e.at, ElementKey(x))
}

func (e edit) add(x nft.Elem) {
	e.b.Add(x)
	e.at[ElementKey(x)] = &x
}

// release removes an owner from an element. The element is deleted with its last holder.
func (e edit) release(x nft.Elem, hash [8]byte) {
	now, others := e.at.At(x), e.at.holders(x)
	mine := slices.IndexFunc(others, func(h nft.Elem) bool { return TaggedBy(&h, hash) })
	leads := now != nil && TaggedBy(now, hash)
	if leads {
		e.delete(*now)
	}
	if len(others) == 0 || !leads && mine < 0 {
		return
	}
	last := others[len(others)-1]
	e.delete(last)
	switch {
	case leads: // and has one owner
		next := *now
		next.Comment = last.Comment
		e.add(next)
	case mine < len(others)-1:
		e.delete(others[mine])
		others[mine].Comment = last.Comment
		e.add(others[mine])
	}
}

// claim gives an element to an owner. An element for a link's name then has only this owner; one for an address keeps
// its other holders.
func (e edit) claim(x nft.Elem, hash [8]byte) {
	now := e.at.At(x)
	if now == nil {
		e.release(x, hash) // who held it with others before it was deleted by hand
		e.add(x)
		return
	}
	_, _, _, tagged := identity.ParseTag(now.Comment)
	switch {
	case e.at.holds(x, hash) && SameData(*now, x):
	case tagged && shared(x.Set):
		h := holder(x, uint32(len(e.at.holders(x))))
		h.Comment = x.Comment
		e.add(h)
	default:
		e.delete(*now)
		e.add(x)
	}
}

// Replace adds to b the changes that turn an owner's elements from have into want.
func (f Tx) Replace(b *nft.Batch, hash [8]byte, have []Entry, want []nft.Elem, at State) {
	e := edit{b, at}
	for _, old := range Places(have) {
		if !Has(want, old) {
			e.release(old, hash)
		}
	}
	for _, w := range want {
		e.claim(w, hash)
	}
}

// AddFor adds elements for another owner, who has the entries have.
func (f Tx) AddFor(b *nft.Batch, hash [8]byte, kind uint32, have []Entry, more []nft.Elem, at State) {
	f.Replace(b, hash, nil, more, at)
	f.enter(b, hash, kind, len(have), more)
}

// ApplyElements implements Ensure for kinds whose elements have exactly one owner.
func (f Tx) ApplyElements(hash [8]byte, kind uint32, want ...nft.Elem) (changed bool, err error) {
	have, err := f.Entries(hash, kind)
	if err != nil {
		return false, err
	}
	at, err := f.Current(have, want)
	if err != nil {
		return false, err
	}
	var b nft.Batch
	f.Replace(&b, hash, have, want, at)
	f.Relist(&b, hash, kind, have, want)
	return !b.Empty(), f.Commit(&b)
}

// Drop removes and commits all elements of a kind of an owner. If there are none, it only reads one set.
func (f Tx) Drop(hash [8]byte, kind uint32) error {
	_, err := f.ApplyElements(hash, kind)
	return err
}

// VerifyElements returns which of an owner's elements are missing, different, or not wanted.
func (f Tx) VerifyElements(o spec.Owner, kind uint32, want []nft.Elem) (d resource.Drift, err error) {
	have, err := f.Entries(identity.OwnerHash(o), kind)
	if err != nil {
		return nil, err
	}
	at, err := f.Current(nil, want)
	if err != nil {
		return nil, err
	}
	for _, w := range want {
		d.Add(at.Drift(w))
	}
	d = append(d, RecordDrift(have, want)...)
	return d, nil
}

// Drift compares a wanted element, which several owners may hold, with the existing one.
func (s State) Drift(want nft.Elem) error {
	_, owner, _, _ := identity.ParseTag(want.Comment)
	now := s.At(want)
	if now != nil && s.holds(want, owner) && SameData(*now, want) {
		return nil
	}
	return ElementDrift(now, want)
}

// ElementDrift compares a wanted element with the existing one under the same key.
func ElementDrift(now *nft.Elem, want nft.Elem) error {
	_, owner, _, _ := identity.ParseTag(want.Comment)
	switch {
	case now == nil:
		return spec.Missing(fmt.Sprintf("nft element %v", want))
	case !TaggedBy(now, owner):
		return fmt.Errorf("nft element %v belongs to %q", want, now.Comment)
	case !SameData(*now, want):
		return fmt.Errorf("nft element %v is %s", want, now.DataText())
	}
	return nil
}

// RecordDrift compares an owner's entries in the set owners with the wanted elements.
func RecordDrift(have []Entry, want []nft.Elem) (d resource.Drift) {
	recorded, wanted := map[string]bool{}, map[string]bool{}
	for _, e := range Places(have) {
		recorded[ElementKey(e)] = true
	}
	for _, w := range want {
		if wanted[ElementKey(w)] = true; !recorded[ElementKey(w)] {
			d.Add(spec.DiffersBy("owners", "nft element %v is not in owners", w))
		}
	}
	for _, e := range Places(have) {
		if !wanted[ElementKey(e)] {
			d.Add(spec.TooMuch(fmt.Sprintf("nft element %v", e)))
		}
	}
	return d
}
