package blocks

import (
	"cmp"
	"slices"
)

// holdings are sorted by their blocks, with one for each.
type holdings []Holding

func compareHoldings(a, b Holding) int {
	return cmp.Or(cmp.Compare(a.Pool, b.Pool), a.Block.Compare(b.Block))
}

// parts returns which parts of the block of h are among the holdings.
func (hs holdings) parts(h Holding) Parts {
	i, found := slices.BinarySearchFunc(hs, h, compareHoldings)
	if !found {
		return 0
	}
	return hs[i].Parts
}

// with returns the holdings with the parts of h, and without returns those that have none of them.
func (hs holdings) with(h Holding) holdings    { return hs.set(h, hs.parts(h)|h.Parts) }
func (hs holdings) without(h Holding) holdings { return hs.set(h, hs.parts(h)&^h.Parts) }

func (hs holdings) set(h Holding, parts Parts) holdings {
	i, found := slices.BinarySearchFunc(hs, h, compareHoldings)
	out := slices.Clone(hs)
	h.Parts = parts
	switch {
	case parts == 0 && found:
		return slices.Delete(out, i, i+1)
	case parts == 0:
		return out
	case found:
		out[i] = h
		return out
	}
	return slices.Insert(out, i, h)
}

// minus returns the first holding with parts that others has not. Its parts are zero if there is none.
func (hs holdings) minus(others holdings) Holding {
	for _, h := range hs {
		if h.Parts &^= others.parts(h); h.Parts != 0 {
			return h
		}
	}
	return Holding{}
}

// of returns those of a pool.
func (hs holdings) of(pool string) (list holdings) {
	for _, h := range hs {
		if h.Pool == pool {
			list = append(list, h)
		}
	}
	return list
}
