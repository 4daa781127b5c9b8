package filter

import (
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/spec"
)

// A PlaceOf returns the element that owners names where there is an element e. Nil is e itself.
type PlaceOf func(e nft.Elem) nft.Elem

// NetworkOwner returns the owner of a bridge's policy.
func NetworkOwner(network, link string) spec.Owner {
	return spec.Owner{Network: network, IfName: link}
}

// unlisted returns an entry for each element of some kinds that has an owner in a network by its comment, and that the
// set owners, with these entries, does not list: owners was flushed. DEL, which goes by owners alone, leaves such an
// element. It reads all sets of these kinds.
func (f Tx) unlisted(entries []Entry, network string, place PlaceOf, kinds ...uint32) (all []Entry, err error) {
	elements, err := f.elementsOf(kinds)
	if err != nil || len(elements) == 0 {
		return nil, err
	}
	listed := listedIn(entries)
	bridges := policyOwners(network, elements)
	for _, e := range elements {
		net, hash, _, ok := identity.ParseTag(e.Comment)
		if !ok || net != identity.NetworkHash(network) {
			continue
		}
		u := Entry{Owner: hash, Kind: kindOfSet(e.Set.Name), Place: e}
		if place != nil {
			u.Place = place(e)
		}
		if bridges[hash] {
			u.Kind = ofNetwork(u.Kind)
		}
		key := u.ownerAndPlace()
		if slices.Contains(kinds, u.Kind) && !listed[key] {
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
		place, _ := ownerAndNumber(h)
		if e, ok := held[place]; ok {
			e.Comment = h.Comment
			all = append(all, e)
		}
	}
	return all, err
}

// listedIn are the elements that entries name, by ownerAndPlace. What stands behind a gap in an owner's numbers is not
// found there, and so not listed.
func listedIn(entries []Entry) map[string]bool {
	count := map[string]uint32{}
	for _, e := range entries {
		count[e.ownerAndKind()]++
	}
	listed := map[string]bool{}
	for _, e := range entries {
		_, number := ownerAndNumber(e.Record)
		if e.Place.Set != nil && number&numbers < count[e.ownerAndKind()] {
			listed[e.ownerAndPlace()] = true
		}
	}
	return listed
}

func (e Entry) ownerAndKind() string { return string(ownerKey(e.Owner, e.Kind)) }

func (e Entry) ownerAndPlace() string { return string(e.Owner[:]) + ElementKey(e.Place) }

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

// ListAgain has the set owners list the elements of a network's owners that it does not list, of the owners for which
// of returns true. It returns all entries.
func (f Tx) ListAgain(network string, place PlaceOf, of func(owner [8]byte) bool, kinds ...uint32) ([]Entry, error) {
	entries, err := f.AllEntries()
	if err != nil {
		return nil, err
	}
	all, err := f.unlisted(entries, network, place, kinds...)
	more := map[string][]Entry{}
	for _, u := range all {
		if of(u.Owner) {
			more[u.ownerAndKind()] = append(more[u.ownerAndKind()], u)
		}
	}
	if err != nil || len(more) == 0 {
		return entries, err
	}

	var b nft.Batch
	for key, unlisted := range more { // numbered anew, for there may be a gap
		var comments []string
		for _, e := range entries {
			if e.ownerAndKind() == key {
				b.Delete(e.Record)
				comments = append(comments, e.Record.Comment)
			}
		}
		for _, u := range unlisted {
			if c := entryComment(u.Place); !slices.Contains(comments, c) {
				comments = append(comments, c)
			}
		}
		for i, c := range comments {
			b.Add(f.Record(unlisted[0].Owner, unlisted[0].Kind, i, c))
		}
	}
	if err := f.Write(&b); err != nil {
		return nil, err
	}
	return f.AllEntries()
}

// kindOfSet is the number of the kind whose elements a set has, and that of attachments where networks have elements in
// it, too. Zero is none.
func kindOfSet(name string) uint32 {
	if name == "isolated_ports" {
		return KindIsolatedPort
	}
	switch first, _, _ := strings.Cut(name, "_"); first {
	case "masquerade", "network":
		return KindMasquerade
	case "publish", "claims", "ranges", "hairpin", "allow", "itself":
		return KindPublish
	case "spoofcheck", "allowed":
		return KindSpoofCheck
	case "guarded", "containers", "addresses", "port":
		return KindIsolatedPort
	case "within", "isolated", "policed", "strict", "known", "subnet", "bridged", "open":
		if _, ok := SubnetSetsNamed(&nft.Table{}, name); ok {
			return KindOwnSubnet
		}
		return KindIngress
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
