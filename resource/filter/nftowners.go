package filter

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel/conntrack"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/nft"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// tagOf is the comment on an element of o.
func tagOf(o spec.Owner) string { return cut(identity.Tag(o)) }

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

// taggedBy reports whether an element carries the tag of that owner.
func taggedBy(e *nft.Elem, hash [8]byte) bool {
	_, owner, _, ok := identity.ParseTag(e.Comment)
	return ok && owner == hash
}

func sameKey(a, b nft.Elem) bool {
	return a.Set.Name == b.Set.Name && bytes.Equal(a.Key, b.Key) && bytes.Equal(a.KeyEnd, b.KeyEnd)
}

func sameData(a, b nft.Elem) bool { return bytes.Equal(a.Data, b.Data) }

// An entry is what an owner has in owners: the place of one of its elements.
type entry struct {
	place  nft.Elem // set and key
	record nft.Elem // in owners
}

// parseEntry reads an element of owners. What it cannot read, a later version's perhaps, has no place.
func (f filter) parseEntry(record nft.Elem) (e entry, tag string) {
	e.record = record
	name, rest, _ := strings.Cut(record.Comment, " ")
	if s := setNamed(f.t, name); s != nil {
		if place, rest, ok := s.CutKey(rest); ok {
			e.place, tag = place, rest
		}
	}
	return e, tag
}

// entries are what an owner has of one kind.
func (f filter) entries(hash [8]byte, kind uint32) (all []entry, err error) {
	owners := ownersSet(f.t)
	for n := uint32(2); ; n *= 2 { // most have one or two
		var ask []nft.Elem
		for i := uint32(len(all)); i < n; i++ {
			ask = append(ask, nft.Elem{Set: owners, Key: ownerKey(hash, kind|i)})
		}
		found, err := f.Get(ask...)
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			if r == nil {
				return all, nil
			}
			e, _ := f.parseEntry(*r)
			all = append(all, e)
		}
	}
}

// current are the elements at the places of entries and wanted elements, by place, with who else holds them.
func (f filter) current(have []entry, want []nft.Elem) (map[string]*nft.Elem, error) {
	var ask []nft.Elem
	for _, e := range have {
		if e.place.Set != nil {
			ask = append(ask, e.place)
		}
	}
	ask = append(ask, want...)
	at := map[string]*nft.Elem{}
	held := slices.DeleteFunc(slices.Clone(ask), func(e nft.Elem) bool { return !byAddress(e.Set) })
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
				at[elementKey(ask[i])] = e
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

func elementKey(e nft.Elem) string { return e.Set.Name + " " + string(e.Key) + string(e.KeyEnd) }

// byAddress reports whether the elements of a set are for a container's address, which several may have: of networks
// that overlap, or that one moves to another. Links' names are one attachment's.
func byAddress(s *nft.Set) bool {
	return len(s.Data) == 0 && (s.Key[0] == nft.Addr || s.Key[0] == nft.Addr6)
}

// holder is where the nth stands who has an element beside the owner that its comment names. They stand without a gap.
func holder(e nft.Elem, n uint32) nft.Elem {
	return nft.Elem{Set: holdersSet(e.Set.Table), Key: ownerKey(identity.PlaceHash(elementKey(e)), n)}
}

// holders are those who have an element beside the owner that its comment names.
func holders(e nft.Elem, at map[string]*nft.Elem) (all []nft.Elem) {
	for byAddress(e.Set) {
		h := at[elementKey(holder(e, uint32(len(all))))]
		if h == nil {
			break
		}
		all = append(all, *h)
	}
	return all
}

// holds reports whether an owner has the element at a place, alone or with others.
func holds(e nft.Elem, hash [8]byte, at map[string]*nft.Elem) bool {
	now := at[elementKey(e)]
	return now != nil && (taggedBy(now, hash) ||
		slices.ContainsFunc(holders(e, at), func(h nft.Elem) bool { return taggedBy(&h, hash) }))
}

// An edit is how a batch changes elements, and what there is after it.
type edit struct {
	b  *nft.Batch
	at map[string]*nft.Elem
}

func (e edit) delete(x nft.Elem) {
	e.b.Delete(x)
	delete(e.at, elementKey(x))
}

func (e edit) add(x nft.Elem) {
	e.b.Add(x)
	e.at[elementKey(x)] = &x
}

// release takes an element from an owner: it goes with the last who holds it.
func (e edit) release(x nft.Elem, hash [8]byte) {
	now, others := e.at[elementKey(x)], holders(x, e.at)
	mine := slices.IndexFunc(others, func(h nft.Elem) bool { return taggedBy(&h, hash) })
	leads := now != nil && taggedBy(now, hash)
	if leads {
		e.delete(*now)
	}
	if len(others) == 0 || !leads && mine < 0 {
		return
	}
	last := others[len(others)-1]
	e.delete(last)
	switch {
	case leads: // and is nobody's twice
		next := *now
		next.Comment = last.Comment
		e.add(next)
	case mine < len(others)-1:
		e.delete(others[mine])
		others[mine].Comment = last.Comment
		e.add(others[mine])
	}
}

// claim gives an element to an owner. By its link's name it is nobody else's then; by address he holds it with those
// who do.
func (e edit) claim(x nft.Elem, hash [8]byte) {
	now := e.at[elementKey(x)]
	if now == nil {
		e.release(x, hash) // who held it with others before somebody deleted it by hand
		e.add(x)
		return
	}
	_, _, _, tagged := identity.ParseTag(now.Comment)
	switch {
	case holds(x, hash, e.at) && sameData(*now, x):
	case tagged && byAddress(x.Set):
		h := holder(x, uint32(len(holders(x, e.at))))
		h.Comment = x.Comment
		e.add(h)
	default:
		e.delete(*now)
		e.add(x)
	}
}

// replace writes into b how the elements of an owner turn from have into want.
func (f filter) replace(b *nft.Batch, hash [8]byte, have []entry, want []nft.Elem,
	at map[string]*nft.Elem) {
	e := edit{b, at}
	for _, old := range have {
		if old.place.Set != nil && !slices.ContainsFunc(want, func(w nft.Elem) bool { return sameKey(w, old.place) }) {
			e.release(old.place, hash)
		}
	}
	for _, w := range want {
		e.claim(w, hash)
	}
}

// record writes into b how an owner's entries in owners turn from have into want.
func (f filter) record(b *nft.Batch, o spec.Owner, kind uint32, have []entry, want []nft.Elem) {
	if slices.EqualFunc(have, want, func(e entry,
		w nft.Elem) bool {
		return e.place.Set != nil && sameKey(e.place, w)
	}) {
		return
	}
	f.forget(b, have)
	for i, w := range want {
		b.Add(nft.Elem{Set: ownersSet(f.t), Key: ownerKey(identity.OwnerHash(o), kind|uint32(i)),
			Comment: cut(w.Set.Name + " " + w.KeyText() + " " + identity.Tag(o))})
	}
}

// forget deletes entries.
func (f filter) forget(b *nft.Batch, have []entry) {
	for _, e := range have {
		b.Delete(e.record)
	}
}

// applyElements is Ensure for kinds whose elements nobody else can want.
func (f filter) applyElements(o spec.Owner, kind uint32, want []nft.Elem) (changed bool, err error) {
	hash := identity.OwnerHash(o)
	have, err := f.entries(hash, kind)
	if err != nil {
		return false, err
	}
	at, err := f.current(have, want)
	if err != nil {
		return false, err
	}
	var b nft.Batch
	f.replace(&b, hash, have, want, at)
	f.record(&b, o, kind, have, want)
	return !b.Empty(), f.Commit(&b)
}

// drop is Remove for every kind. Where there is nothing, it has read one set and is done. It returns the
// flows that went to ports that are published no more.
func (f filter) drop(hash [8]byte, kind uint32) ([]conntrack.UDPFlow, error) {
	have, err := f.entries(hash, kind)
	if err != nil || len(have) == 0 {
		return nil, err
	}
	mapped, plain := split(have)
	b := &nft.Batch{}
	claims, err := f.readClaims(slotsOf(f.t, mapped))
	if err != nil {
		return nil, err
	}
	plain = append(plain, claims.unclaimed(f.t, mapped)...)
	at, err := f.current(plain, nil)
	if err != nil {
		return nil, err
	}
	f.replace(b, hash, plain, nil, at)
	claims.remove(hash)
	flows, err := f.applyClaims(b, claims, map[[8]byte]bool{hash: true})
	if err != nil {
		return nil, err
	}
	f.forget(b, have)
	return flows, f.Commit(b)
}

// verifyElements says what of an owner's elements is missing, different, or too much.
func (f filter) verifyElements(o spec.Owner, kind uint32, want []nft.Elem) (d resource.Drift, err error) {
	have, err := f.entries(identity.OwnerHash(o), kind)
	if err != nil {
		return nil, err
	}
	at, err := f.current(nil, want)
	if err != nil {
		return nil, err
	}
	for _, w := range want {
		d.Add(heldDrift(w, at))
	}
	d = append(d, recordDrift(have, want)...)
	return d, nil
}

// heldDrift compares a wanted element with what there is, which its owner may hold with others.
func heldDrift(want nft.Elem, at map[string]*nft.Elem) error {
	_, owner, _, _ := identity.ParseTag(want.Comment)
	if now := at[elementKey(want)]; holds(want, owner, at) && sameData(*now, want) {
		return nil
	}
	return elementDrift(at[elementKey(want)], want)
}

// elementDrift compares the element at a place with the wanted one.
func elementDrift(now *nft.Elem, want nft.Elem) error {
	_, owner, _, _ := identity.ParseTag(want.Comment)
	switch {
	case now == nil:
		return fmt.Errorf("nft element %v is missing", want)
	case !taggedBy(now, owner):
		return fmt.Errorf("nft element %v belongs to %q", want, now.Comment)
	case !sameData(*now, want):
		return fmt.Errorf("nft element %v is %s", want, now.DataText())
	}
	return nil
}

// recordDrift compares what owners has with the wanted elements.
func recordDrift(have []entry, want []nft.Elem) (d resource.Drift) {
	recorded, wanted := map[string]bool{}, map[string]bool{}
	for _, e := range have {
		if e.place.Set != nil {
			recorded[elementKey(e.place)] = true
		}
	}
	for _, w := range want {
		if wanted[elementKey(w)] = true; !recorded[elementKey(w)] {
			d.Add(fmt.Errorf("nft element %v is not in owners", w))
		}
	}
	for _, e := range have {
		if e.place.Set != nil && !wanted[elementKey(e.place)] {
			d.Add(fmt.Errorf("nft element %v is too much", e.place))
		}
	}
	return d
}
