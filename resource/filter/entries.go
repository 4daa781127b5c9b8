package filter

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/identity"
)

// The numbers of the kinds in the set owners. A kind is the upper half of the number in a key.
const (
	KindMasquerade = (1 + iota) << 16
	KindPublish
	KindSpoofCheck
	KindIngress
	KindIsolatedPort
	KindNetwork   // no attachment's: the policy of a bridge
	KindSubnet    // no attachment's: the subnets behind a bridge
	KindOwnSubnet // the addresses behind a link of the attachment's own
)

// numbers are the bits of the number in a key that count the entries of a kind.
const numbers = 0xffff

// ownerKey returns the key of an owner's nth entry of a kind.
func ownerKey(hash [8]byte, n uint32) []byte {
	return nft.Key(binary.BigEndian.Uint32(hash[:4]), binary.BigEndian.Uint32(hash[4:]), n)
}

// ownerAndNumber are the hash and the number in the key of an element of owners or holders.
func ownerAndNumber(record nft.Elem) (hash [8]byte, number uint32) {
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(record.Key[4*i:]) }
	binary.BigEndian.PutUint32(hash[:4], word(0))
	binary.BigEndian.PutUint32(hash[4:], word(1))
	return hash, word(2)
}

// An Entry is an element of the set owners. It names the set and key of one of an owner's elements.
type Entry struct {
	Record  nft.Elem // in owners
	Owner   [8]byte
	Kind    uint32
	Network [6]byte  // zero if the entry could not be read, such as that of a later version
	Place   nft.Elem // set and key, with the owner's tag; no set if the entry could not be read
}

// Places returns the sets and keys that entries name. It leaves out entries that it cannot read.
func Places(have []Entry) (all []nft.Elem) {
	for _, e := range have {
		if e.Place.Set != nil {
			all = append(all, e.Place)
		}
	}
	return all
}

func (f Tx) parseEntry(record nft.Elem) Entry {
	hash, number := ownerAndNumber(record)
	e := Entry{Record: record, Owner: hash, Kind: number &^ numbers}
	name, rest, _ := strings.Cut(record.Comment, " ")
	if s := setNamed(f.Table, name); s != nil {
		if place, tag, ok := s.CutKey(rest); ok {
			place.Comment = tag
			e.Place = place
			e.Network, _, _, _ = identity.ParseTag(tag)
		}
	}
	return e
}

// AllEntries returns the entries of all owners.
func (f Tx) AllEntries() (all []Entry, err error) {
	records, err := f.List(OwnersSet(f.Table))
	for _, r := range records {
		all = append(all, f.parseEntry(r))
	}
	return all, err
}

// Entries returns an owner's entries of one kind.
func (f Tx) Entries(hash [8]byte, kind uint32) (all []Entry, err error) {
	for n := 4; ; n *= 4 { // most have fewer
		var ask []nft.Elem
		for i := len(all); i < n; i++ {
			ask = append(ask, f.Record(hash, kind, i, ""))
		}
		found, err := f.Get(ask...)
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			if r == nil {
				return all, nil
			}
			all = append(all, f.parseEntry(*r))
		}
	}
}

// Relist adds to b the changes that turn an owner's entries in the set owners from have into want.
func (f Tx) Relist(b *nft.Batch, hash [8]byte, kind uint32, have []Entry, want []nft.Elem) {
	if places := Places(have); len(places) == len(have) && slices.EqualFunc(places, want, SameKey) {
		return
	}
	f.Forget(b, have)
	f.enter(b, hash, kind, 0, want)
}

// enter adds an owner's entries from a number on.
func (f Tx) enter(b *nft.Batch, hash [8]byte, kind uint32, from int, places []nft.Elem) {
	for i, e := range places {
		b.Add(f.Record(hash, kind, from+i, entryComment(e)))
	}
}

// Record returns an owner's nth entry of a kind.
func (f Tx) Record(hash [8]byte, kind uint32, n int, comment string) nft.Elem {
	return nft.Elem{Set: OwnersSet(f.Table), Key: ownerKey(hash, kind|uint32(n)), Comment: comment}
}

// entryComment is the comment on the entry of owners for an element with its owner's tag.
func entryComment(e nft.Elem) string { return cut(e.Set.Name + " " + e.KeyText() + " " + e.Comment) }

// Forget deletes entries.
func (f Tx) Forget(b *nft.Batch, have []Entry) {
	for _, e := range have {
		b.Delete(e.Record)
	}
}
