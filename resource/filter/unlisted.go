package filter

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/spec"
)

// An Unlisted element has an owner by its comment, and the set owners does not list it: owners was flushed.
// DEL, which goes by owners alone, leaves such an element.
type Unlisted struct {
	Hash  [8]byte
	kind  uint32
	place nft.Elem
	tag   string
}

// A PlaceOf returns the element that owners names where there is an element e. Nil is e itself.
type PlaceOf func(e nft.Elem) nft.Elem

// NetworkOwner returns the owner of a bridge's policy.
func NetworkOwner(network, link string) spec.Owner {
	return spec.Owner{Network: network, IfName: link}
}

// Unlisted returns what the owners of a network have of some kinds and owners, which has these records, does not list.
// It reads all sets of these kinds.
func (f Tx) Unlisted(records []nft.Elem, network string, place PlaceOf, kinds ...uint32) (all []Unlisted, err error) {
	elements, err := f.elementsOf(kinds)
	if err != nil || len(elements) == 0 {
		return nil, err
	}
	listed := f.listed(records)
	bridges := policyOwners(network, elements)
	for _, e := range elements {
		net, hash, _, ok := identity.ParseTag(e.Comment)
		if !ok || net != identity.NetworkHash(network) {
			continue
		}
		u := Unlisted{Hash: hash, kind: kindOfSet(e.Set.Name), place: e, tag: e.Comment}
		if place != nil {
			u.place = place(e)
		}
		if bridges[hash] {
			u.kind = ofNetwork(u.kind)
		}
		key := string(hash[:]) + ElementKey(u.place)
		if slices.Contains(kinds, u.kind) && !listed[key] {
			listed[key] = true
			all = append(all, u)
		}
	}
	return all, nil
}

// elementsOf reads the elements of all sets of some kinds. An element that several owners have is there once for each.
func (f Tx) elementsOf(kinds []uint32) (all []nft.Elem, err error) {
	names, err := f.SetNames(f.Table)
	if err != nil {
		return nil, err
	}
	held := map[[8]byte]nft.Elem{}
	for _, name := range names {
		s, kind := setNamed(f.Table, name), kindOfSet(name)
		if s == nil || !slices.Contains(kinds, kind) && !slices.Contains(kinds, ofNetwork(kind)) {
			continue
		}
		elements, err := f.List(s)
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			if shared(s) {
				held[identity.PlaceHash(ElementKey(e))] = e
			}
		}
		all = append(all, elements...)
	}
	if len(held) == 0 {
		return all, nil
	}

	others, err := f.List(holdersSet(f.Table))
	for _, h := range others {
		if e, ok := held[hashIn(h)]; ok {
			e.Comment = h.Comment
			all = append(all, e)
		}
	}
	return all, err
}

// listed are the elements that records of owners name, after the hash of the owner. What stands behind a gap in an
// owner's numbers is not found there, and so not listed.
func (f Tx) listed(records []nft.Elem) map[string]bool {
	count := map[string]uint32{}
	for _, r := range records {
		count[ownerAndKind(r)]++
	}
	listed := map[string]bool{}
	for _, r := range records {
		e, tag := f.ParseEntry(r)
		_, hash, _, ok := identity.ParseTag(tag)
		if ok && numberOf(r)&0xffff < count[ownerAndKind(r)] {
			listed[string(hash[:])+ElementKey(e.Place)] = true
		}
	}
	return listed
}

func ownerAndKind(record nft.Elem) string {
	return string(OwnerKey(hashIn(record), numberOf(record)&^0xffff))
}

// hashIn is the hash in the key of an element of owners or holders.
func hashIn(record nft.Elem) (hash [8]byte) {
	binary.BigEndian.PutUint32(hash[:4], binary.NativeEndian.Uint32(record.Key))
	binary.BigEndian.PutUint32(hash[4:], binary.NativeEndian.Uint32(record.Key[4:]))
	return hash
}

// numberOf is the number in that key.
func numberOf(record nft.Elem) uint32 { return binary.NativeEndian.Uint32(record.Key[8:]) }

// policyOwners are the hashes of those whose policies the links have that elements name.
func policyOwners(network string, elements []nft.Elem) map[[8]byte]bool {
	owners := map[[8]byte]bool{}
	for _, e := range elements {
		for _, field := range nft.Fields(e.Set.Key, e.Key) {
			if link, ok := field.(string); ok {
				owners[identity.OwnerHash(NetworkOwner(network, link))] = true
			}
		}
	}
	return owners
}

// Relist has owners, which has these records, list elements that it did not.
func (f Tx) Relist(records []nft.Elem, all []Unlisted) error {
	had := map[string][]nft.Elem{}
	for _, r := range records {
		had[ownerAndKind(r)] = append(had[ownerAndKind(r)], r)
	}
	more := map[string][]Unlisted{}
	for _, u := range all {
		key := string(OwnerKey(u.Hash, u.kind))
		more[key] = append(more[key], u)
	}

	var b nft.Batch
	for key, unlisted := range more { // numbered anew, for there may be a gap
		var comments []string
		for _, r := range had[key] {
			b.Delete(r)
			comments = append(comments, r.Comment)
		}
		for _, u := range unlisted {
			if c := entryComment(u.place, u.tag); !slices.Contains(comments, c) {
				comments = append(comments, c)
			}
		}
		for i, c := range comments {
			number := unlisted[0].kind | uint32(i)
			b.Add(nft.Elem{Set: OwnersSet(f.Table), Key: OwnerKey(unlisted[0].Hash, number), Comment: c})
		}
	}
	return f.Write(&b)
}

// kindOfSet is the number of the kind whose elements a set has, and that of attachments where networks have elements in
// it, too. Zero is none.
func kindOfSet(name string) uint32 {
	first, _, _ := strings.Cut(name, "_")
	switch {
	case first == "masquerade" || first == "network":
		return KindMasquerade
	case slices.Contains([]string{"publish", "claims", "ranges", "hairpin", "allow", "itself"}, first):
		return KindPublish
	case name == "spoofcheck" || name == "allowed":
		return KindSpoofCheck
	case name == "isolated_ports" || isPortAddressSet(name):
		return KindIsolatedPort
	case slices.Contains([]string{"within", "isolated", "policed", "strict", "known"}, name):
		return KindIngress
	}
	if _, ok := SubnetSetsNamed(&nft.Table{}, name); ok {
		return KindOwnSubnet
	}
	return 0
}

// ofNetwork is the kind that a network has where an attachment has the given one.
func ofNetwork(kind uint32) uint32 {
	switch kind {
	case KindIngress:
		return KindNetwork
	case KindOwnSubnet:
		return KindSubnet
	}
	return kind
}
