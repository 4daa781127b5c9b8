package resource

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// tagOf is the comment on an element of o.
func tagOf(o spec.Owner) string { return cut(kernel.Tag(o)) }

// cut makes a comment out of text that nft(8) can print and read again.
func cut(text string) string {
	text = strings.Map(func(r rune) rune {
		if r == '"' || r < ' ' {
			return '_'
		}
		return r
	}, text)
	if len(text) > kernel.NFTCommentMax {
		text = strings.ToValidUTF8(text[:kernel.NFTCommentMax], "")
	}
	return text
}

// taggedBy reports whether an element carries the tag of that owner.
func taggedBy(e *kernel.NFTElem, hash [8]byte) bool {
	_, owner, _, ok := kernel.ParseTag(e.Comment)
	return ok && owner == hash
}

func sameKey(a, b kernel.NFTElem) bool {
	return a.Set.Name == b.Set.Name && bytes.Equal(a.Key, b.Key) && bytes.Equal(a.KeyEnd, b.KeyEnd)
}

func sameData(a, b kernel.NFTElem) bool { return bytes.Equal(a.Data, b.Data) }

// An entry is what an owner has in owners: the place of one of its elements.
type entry struct {
	place  kernel.NFTElem // set and key
	record kernel.NFTElem // in owners
}

// parseEntry reads an element of owners. What it cannot read, a later version's perhaps, has no place.
func (f filter) parseEntry(record kernel.NFTElem) (e entry, tag string) {
	e.record = record
	name, rest, _ := strings.Cut(record.Comment, " ")
	if s := setNamed(f.t, name); s != nil {
		if place, rest, ok := s.CutNFTKey(rest); ok {
			e.place, tag = place, rest
		}
	}
	return e, tag
}

// entries are what an owner has of one kind.
func (f filter) entries(hash [8]byte, kind uint32) (all []entry, err error) {
	owners := ownersSet(f.t)
	for n := uint32(2); ; n *= 2 { // most have one or two
		var ask []kernel.NFTElem
		for i := uint32(len(all)); i < n; i++ {
			ask = append(ask, kernel.NFTElem{Set: owners, Key: ownerKey(hash, kind|i)})
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

// current are the elements at the places of entries and wanted elements, by place.
func (f filter) current(have []entry, want []kernel.NFTElem) (map[string]*kernel.NFTElem, error) {
	var ask []kernel.NFTElem
	for _, e := range have {
		if e.place.Set != nil {
			ask = append(ask, e.place)
		}
	}
	ask = append(ask, want...)
	found, err := f.Get(ask...)
	at := map[string]*kernel.NFTElem{}
	for i, e := range found {
		if e != nil {
			at[place(ask[i])] = e
		}
	}
	return at, err
}

func place(e kernel.NFTElem) string { return e.Set.Name + " " + string(e.Key) + string(e.KeyEnd) }

// replace writes into b how the elements of an owner turn from have into want. Elements at these keys
// that belong to somebody else give way where they are wanted, else they are left alone.
func (f filter) replace(b *kernel.NFTBatch, hash [8]byte, have []entry, want []kernel.NFTElem, at map[string]*kernel.NFTElem) {
	for _, e := range have {
		if e.place.Set == nil || slices.ContainsFunc(want, func(w kernel.NFTElem) bool { return sameKey(w, e.place) }) {
			continue
		}
		// Deleting goes by key and does not ask whose element it is: a late DEL would delete what
		// somebody else has there by now.
		if now := at[place(e.place)]; now != nil && taggedBy(now, hash) {
			b.Delete(*now)
			delete(at, place(e.place))
		}
	}
	for _, w := range want {
		now := at[place(w)]
		if now != nil && taggedBy(now, hash) && sameData(*now, w) {
			continue
		}
		if now != nil {
			b.Delete(*now)
		}
		b.Add(w)
	}
}

// record writes into b how an owner's entries in owners turn from have into want.
func (f filter) record(b *kernel.NFTBatch, o spec.Owner, kind uint32, have []entry, want []kernel.NFTElem) {
	if slices.EqualFunc(have, want, func(e entry, w kernel.NFTElem) bool { return e.place.Set != nil && sameKey(e.place, w) }) {
		return
	}
	f.forget(b, have)
	for i, w := range want {
		b.Add(kernel.NFTElem{Set: ownersSet(f.t), Key: ownerKey(kernel.OwnerHash(o), kind|uint32(i)),
			Comment: cut(w.Set.Name + " " + w.KeyText() + " " + kernel.Tag(o))})
	}
}

// forget deletes entries.
func (f filter) forget(b *kernel.NFTBatch, have []entry) {
	for _, e := range have {
		b.Delete(e.record)
	}
}

// settle is Ensure for kinds whose elements nobody else can want.
func (f filter) settle(o spec.Owner, kind uint32, want []kernel.NFTElem) (changed bool, err error) {
	hash := kernel.OwnerHash(o)
	have, err := f.entries(hash, kind)
	if err != nil {
		return false, err
	}
	at, err := f.current(have, want)
	if err != nil {
		return false, err
	}
	var b kernel.NFTBatch
	f.replace(&b, hash, have, want, at)
	f.record(&b, o, kind, have, want)
	return !b.Empty(), f.Commit(&b)
}

// drop is Remove for every kind. Where there is nothing, it has read one set and is done. It returns the
// flows that went to ports that are published no more.
func (f filter) drop(hash [8]byte, kind uint32) ([]kernel.UDPFlow, error) {
	have, err := f.entries(hash, kind)
	if err != nil || len(have) == 0 {
		return nil, err
	}
	mapped, plain := split(have)
	b := &kernel.NFTBatch{}
	claims, err := f.claims(slotsOf(f.t, mapped))
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
	flows, err := f.lead(b, claims)
	if err != nil {
		return nil, err
	}
	f.forget(b, have)
	return flows, f.Commit(b)
}

// settled says what of an owner's elements is missing, different, or too much.
func (f filter) settled(o spec.Owner, kind uint32, want []kernel.NFTElem) (d drift, err error) {
	have, err := f.entries(kernel.OwnerHash(o), kind)
	if err != nil {
		return nil, err
	}
	at, err := f.current(nil, want)
	if err != nil {
		return nil, err
	}
	for _, w := range want {
		d.add(elementDrift(at[place(w)], w))
	}
	d = append(d, recordDrift(have, want)...)
	return d, nil
}

// elementDrift compares the element at a place with the wanted one.
func elementDrift(now *kernel.NFTElem, want kernel.NFTElem) error {
	_, owner, _, _ := kernel.ParseTag(want.Comment)
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
func recordDrift(have []entry, want []kernel.NFTElem) (d drift) {
	recorded, wanted := map[string]bool{}, map[string]bool{}
	for _, e := range have {
		if e.place.Set != nil {
			recorded[place(e.place)] = true
		}
	}
	for _, w := range want {
		if wanted[place(w)] = true; !recorded[place(w)] {
			d.add(fmt.Errorf("nft element %v is not in owners", w))
		}
	}
	for _, e := range have {
		if e.place.Set != nil && !wanted[place(e.place)] {
			d.add(fmt.Errorf("nft element %v is too much", e.place))
		}
	}
	return d
}
