package publish

import (
	"github.com/fairlead-cni/fairlead/kernel/nft"
	"github.com/fairlead-cni/fairlead/resource/filter"
)

// moveRanges makes the list of ranges where a table lacks it, and moves there what an earlier version had among the
// claims of ports. In the upper byte of the number it had 1 to 4 for a range, by its width, and 0xff for a mark, which
// goes. That is one transaction, so that no claim is ever missing or there twice.
func moveRanges(f filter.Tx, p filter.PortMaps) (ranges []nft.Elem, err error) {
	ports, err := f.Conn.List(p.Claims)
	if ports == nil || err != nil {
		return nil, err
	}
	var b nft.Batch
	b.AddSet(p.Ranges)
	for _, e := range ports {
		key := nft.Fields(e.Set.Key, e.Key)
		level := key[2].(uint32) >> 24
		if level == 0 {
			continue
		}
		b.Delete(e)
		if level < 0xff {
			list := rangesOf(p, key[0].(byte))
			ranges = append(ranges, list.element(0, list.parse(&e)))
		}
	}
	for _, e := range ranges {
		b.Add(e)
	}
	return ranges, f.Write(&b)
}
