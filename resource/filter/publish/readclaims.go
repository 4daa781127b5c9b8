package publish

import (
	"bytes"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/resource/filter"
)

// slotsAround are the slots where any claim stands that may have a port in common with what is wanted. For a range all
// ports are listed, for fewer are published than a range may be wide.
func slotsAround(f filter.Tx, want []wanted) (slots []slot, err error) {
	listed := map[string][]nft.Elem{}
	for _, w := range want {
		slots = append(slots, w.slot, rangesOf(w.PortMaps, w.proto))
		if w.first == w.last {
			continue
		}
		all, ok := listed[w.Claims.Name]
		if !ok {
			if all, err = f.List(w.Claims); err != nil {
				return nil, err
			}
			listed[w.Claims.Name] = all
		}
		for _, e := range all {
			key := nft.Fields(e.Set.Key, e.Key)
			if port := key[1].(uint16); key[0] == w.proto && w.first <= port && port <= w.last {
				slots = append(slots, slot{w.PortMaps, w.proto, port})
			}
		}
	}
	return slots, nil
}

// read reads the claims of slots that m lacks. Those of a port stand without a gap, so reading ends at the first that
// is missing.
func (m slotClaims) read(f filter.Tx, slots []slot) (err error) {
	var added, open []*claimedSlot
	for _, s := range slots {
		if m[s.key()] != nil {
			continue
		}
		c := &claimedSlot{slot: s}
		m[s.key()] = c
		added = append(added, c)
		if s.port != 0 {
			open = append(open, c)
		} else if c.before, err = rangeClaims(f, s); err != nil {
			return err
		}
	}
	for step := 1; len(open) > 0; step *= 4 { // most ports have one claim or none
		var ask []nft.Elem
		for _, c := range open {
			for i := range step {
				ask = append(ask, nft.Elem{Set: c.set(), Key: c.element(len(c.before)+i, portClaim{}).Key})
			}
		}
		found, err := f.Get(ask...)
		if err != nil {
			return err
		}
		var more []*claimedSlot
		for i, c := range open {
			mine := found[i*step : (i+1)*step]
			for _, e := range mine {
				if e == nil {
					break
				}
				c.before = append(c.before, c.parse(e))
			}
			if mine[step-1] != nil {
				more = append(more, c)
			}
		}
		open = more
	}
	for _, c := range added {
		c.after = slices.Clone(c.before)
	}
	return nil
}

// rangeClaims reads the claims of a list of ranges.
func rangeClaims(f filter.Tx, s slot) (list []portClaim, err error) {
	all, err := f.List(s.Ranges)
	slices.SortFunc(all, func(a, b nft.Elem) int { return bytes.Compare(a.Key, b.Key) })
	for _, e := range all {
		if e.Key[0] == s.proto {
			list = append(list, s.parse(&e))
		}
	}
	return list, err
}
