package filter

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"golang.org/x/sys/unix"
)

// prune deletes chains and sets that attachments shared and that no attachment uses any more, and the rules that jump
// to them. Only GC calls it. DEL leaves them for the next attachment, because a deletion makes the kernel wait. The
// lock keeps other calls from filling a set that prune has found empty.
func (f Tx) prune() error {
	use, err := f.Uses(f.Table)
	if err != nil {
		return err
	}
	names, err := f.SetNames(f.Table)
	if err != nil {
		return err
	}
	var shared []string
	for _, name := range slices.AppendSeq(names, maps.Keys(use)) {
		if c := sharedBy(name); c != "" && !slices.Contains(shared, c) {
			shared = append(shared, c)
		}
	}
	if shared == nil {
		return nil
	}
	if shared, err = f.unused(shared, names); err != nil || len(shared) == 0 {
		return err
	}

	var b nft.Batch
	lines, leading, err := f.leadingTo(shared)
	if err != nil {
		return err
	}
	for _, c := range shared {
		own, err := xtables.ChainRules(f.Conn, f.Table, c, false)
		if err != nil {
			return err
		}
		if use[c] > len(own)+leading[c] {
			slog.Warn("an unused chain is kept, because a rule of another program leads to it",
				"chain", f.Table.String()+" "+c)
			return nil
		}
	}
	xtables.RemoveRules(&b, f.Table, lines)
	for _, c := range shared { // before the sets, which their rules may look something up in
		if _, ok := use[c]; ok {
			b.DeleteChain(f.Table, c)
		}
	}
	for _, c := range shared {
		for _, s := range setsOf(f.Table, c) {
			if slices.Contains(names, s.Name) {
				b.DeleteSet(s)
			}
		}
	}
	err = f.Write(&b)
	if errors.Is(err, unix.EBUSY) {
		slog.Warn("unused chains and sets are kept, because a rule of another program needs them", "error", err)
		return nil
	}
	return err
}

// leadingTo are the lines of the skeleton that lead to some chains, and how many lead to each.
func (f Tx) leadingTo(shared []string) (lines []xtables.Rule, count map[string]int, err error) {
	count = map[string]int{}
	for _, open := range f.Table.Chains {
		if !open.Open || open.Name == "user" {
			continue
		}
		all, err := xtables.ChainRules(f.Conn, f.Table, open.Name, false)
		if err != nil {
			return nil, nil, err
		}
		for _, l := range all {
			if slices.Contains(shared, l.Jump) {
				count[l.Jump]++
				lines = append(lines, l)
			}
		}
	}
	return lines, count, nil
}

// unused are those of shared chains whose sets are empty. Whose elements they are is asked of owners, so
// that only sets without an owner are read.
func (f Tx) unused(shared, names []string) (left []string, err error) {
	records, err := f.List(OwnersSet(f.Table))
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, r := range records {
		name, _, _ := strings.Cut(r.Comment, " ")
		used[sharedBy(name)] = true
	}
	for _, c := range shared {
		empty := !used[c]
		for _, s := range setsOf(f.Table, c) {
			if !empty || !slices.Contains(names, s.Name) {
				continue
			}
			all, err := f.List(s)
			if err != nil {
				return nil, err
			}
			empty = len(all) == 0
		}
		if empty {
			left = append(left, c)
		}
	}
	return left, nil
}

// sharedBy is the chain that a set or chain of that name was made for by some attachments, or "".
func sharedBy(name string) string {
	i := strings.LastIndexByte(name, '_')
	if len(name)-i-1 != 12 || strings.Trim(name[i+1:], "0123456789abcdef") != "" {
		return ""
	}
	if isShared(name) {
		return name
	}
	if p, ok := PortMapsNamed(&nft.Table{}, name); ok && p.where != "" {
		return p.Chain()
	}
	return ""
}

// setsOf are the sets of such a chain.
func setsOf(t *nft.Table, chain string) []*nft.Set {
	if p, ok := PortMapsNamed(t, chain); ok {
		return p.Sets()
	}
	return []*nft.Set{sharedSet(t, chain)}
}
