package filter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/conntrack"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/nft"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A filter is one call's work on a table: what it reads and the transaction that follows belong together.
type filter struct {
	*nft.Conn
	t     *nft.Table
	gen   *uint32 // the generation that is read
	again bool
	known *known // nil: every call looks for itself
}

// withFilter runs fn, and runs it anew where somebody else has made a transaction between what fn read and its own. A
// lock in /run makes that rare. Nothing rests on it: who holds it may have been stopped.
func withFilter(ctx context.Context, w *kernel.World, t *nft.Table, fn func(filter) error) error {
	conn, err := nft.Open(w.Host)
	if err != nil {
		return err
	}
	done, err := w.Host.Turn(ctx, "nft")
	if err != nil {
		return err
	}
	defer done()
	t.Ends = nft.EndsElements()
	return filter{Conn: conn, t: t, gen: new(uint32), known: knownOf(ctx)}.attempt(ctx, fn)
}

// attempt is withFilter under the lock.
func (f filter) attempt(ctx context.Context, fn func(filter) error) (err error) {
	torn, busy := 0, 0
	for range 1000 { // each time somebody else got ahead
		if *f.gen, err = f.Generation(); err != nil {
			return err
		}
		read := *f.gen
		switch err = fn(f); {
		case err == nil || ctx.Err() != nil:
			return err
		case errors.Is(err, unix.ERESTART):
		case !f.again && (errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT)):
			f.again = true // what always stands is not as the cheap look at it says
		case errors.Is(err, unix.EBUSY) && busy < 20:
			busy++ // a key came and went so often within a second that the kernel is sorting its set anew
		default: // what was read of two generations is no answer
			if now, gerr := f.Generation(); gerr != nil || now == read || *f.gen != read || torn == 10 {
				return err
			}
			torn++
		}
	}
	return err
}

// write makes a transaction of what was read since the last one.
func (f filter) write(b *nft.Batch) error {
	if b.Empty() {
		return nil
	}
	if f.t.Ends {
		if ending, err := f.Ending(b); err != nil {
			return err
		} else if ending != nil {
			b = ending
		}
	}
	was := *f.gen
	if err := f.CommitAt(b, was); err != nil {
		return err
	}
	*f.gen = max(was+1, 1) // and not what it is by now: what others have changed since was not read
	f.known.wrote(was, *f.gen)
	return nil
}

// ensureBase makes what always stands in the table, and a part, where something of them is missing. What was read
// before that is of another generation: the error is ERESTART.
func (f filter) ensureBase(p *chainSet) error {
	if !f.t.Ends && f.CanEnd() {
		f.t.Ends = true
		return unix.ERESTART
	}
	all := &nft.Table{Family: f.t.Family, Name: f.t.Name, Ends: f.t.Ends, Sets: f.t.Sets,
		Chains: slices.Concat(f.t.Chains, p.Chains)}
	var more []*nft.Rule
	for _, l := range p.jumps {
		more = append(more, l.rule)
	}
	switch {
	case f.again:
	case f.known.has(p):
		return nil
	case f.known == nil:
		if ok, err := f.Intact(*f.gen, all, more...); err != nil || ok {
			return err
		}
	}
	mended := false
	for _, t := range []*nft.Table{f.t, &p.Table} {
		drift, fix, err := f.Diff(t)
		if err != nil {
			return err
		}
		if len(drift) > 0 && fix.Empty() {
			return errors.Join(drift...)
		}
		if err := f.write(fix); err != nil {
			return err
		}
		mended = mended || !fix.Empty()
	}
	moved, err := f.move()
	if err != nil {
		return err
	}
	mended = mended || moved
	missing, err := f.missing(p)
	if err != nil {
		return err
	}
	var b nft.Batch
	for _, l := range missing {
		if l.first {
			b.InsertRule(f.t, l.chain, l.rule)
		} else {
			b.AddRule(f.t, l.chain, l.rule)
		}
	}
	if err := f.write(&b); err != nil {
		return err
	}
	f.known.add(p)
	if mended || !b.Empty() {
		return unix.ERESTART
	}
	return nil
}

// move makes the sets of a table of an earlier version anew, so that elements can end there. The administrator's chain
// is never touched; what it looks something up in stays as it is.
func (f filter) move() (moved bool, err error) {
	if !f.t.Ends {
		return false, nil
	}
	b, err := f.Remade(f.t, "user")
	if err == nil {
		err = f.write(b)
	}
	if err != nil && !errors.Is(err, unix.ERESTART) { // they do as they are
		slog.Warn("the sets of an earlier version stay, so DEL takes longer", "table", f.t.String(), "error", err)
		return false, nil
	}
	return !b.Empty(), err
}

// A chainSet is what some attachments share in a table: chains and sets that are named after a hash of what they
// do, and the lines in chains of the skeleton that lead there. It is made once and stays.
type chainSet struct {
	nft.Table
	jumps []jumpRule
}

type jumpRule struct {
	chain string
	rule  *nft.Rule
	first bool // before all other lines
}

func newChainSet(t *nft.Table) *chainSet {
	return &chainSet{Table: nft.Table{Family: t.Family, Name: t.Name, Ends: t.Ends}}
}

// share adds a chain for those that a set of its name has, and returns the set. A line in the chain from leads
// there; way is what it looks up.
func (p *chainSet) share(from, prefix string, way func(*nft.Set) *nft.Rule,
	rules []*nft.Rule) *nft.Set {
	var all strings.Builder
	for _, r := range rules {
		all.WriteString(r.Code())
	}
	c := &nft.Chain{Name: prefix + "_" + identity.ShortHash(all.String()), Rules: rules}
	s := sharedSet(&p.Table, c.Name)
	p.Chains, p.Sets = append(p.Chains, c), append(p.Sets, s)
	p.jumps = append(p.jumps, jumpRule{chain: from, rule: way(s).Jump(c.Name)})
	return s
}

// missing are the lines of a part that the table lacks. The chains are as long as there are different networks
// and conditions on this host.
func (f filter) missing(p *chainSet) (missing []jumpRule, err error) {
	got := map[string][]string{}
	for _, l := range p.jumps {
		if got[l.chain] == nil {
			if got[l.chain], err = f.Rules(f.t, l.chain); err != nil {
				return nil, err
			}
		}
		if !slices.Contains(got[l.chain], l.rule.Comment()) {
			missing = append(missing, l)
		}
	}
	return missing, nil
}

// remove is Remove for an owner.
func remove(ctx context.Context, w *kernel.World, t *nft.Table, owner [8]byte, kind uint32) error {
	var flows []conntrack.UDPFlow
	nft, err := nft.Open(w.Host)
	if err != nil {
		return err
	}
	have, err := filter{Conn: nft, t: t}.entries(owner, kind)
	if err == nil && len(have) > 0 {
		err = withFilter(ctx, w, t, func(f filter) (err error) {
			flows, err = f.drop(owner, kind)
			return err
		})
	}
	if unavailable(err) {
		return nil // what the kernel cannot have is removed
	}
	if err == nil {
		FlushFlows(w, flows)
	}
	return err
}

// standing says what of the table and of a shared part of it is missing or different.
func (f filter) standing(p *chainSet) (d resource.Drift, err error) {
	found, err := f.Drift(f.t, *f.gen)
	if err != nil || len(found) > 0 {
		return found, err // the part would say the same again where the table is missing
	}
	if found, err = f.Drift(&p.Table, *f.gen); err != nil {
		return nil, err
	}
	missing, err := f.missing(p)
	for _, l := range missing {
		found = append(found, fmt.Errorf("nft rule %v %s %q is missing", f.t, l.chain, l.rule.Comment()))
	}
	return found, err
}

// verify is Verify for kinds whose elements nobody else can want.
func (f filter) verify(p *chainSet, o spec.Owner, kind uint32, want []nft.Elem) error {
	d, err := f.standing(p)
	if err != nil || d.All() {
		return errors.Join(err, d.Err())
	}
	more, err := f.verifyElements(o, kind, want)
	if err != nil {
		return err
	}
	return append(d, more...).Err()
}

// unavailable reports whether the kernel has no nf_tables, in which case there is nothing to remove.
func unavailable(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EINVAL) ||
		errors.Is(err, unix.EOPNOTSUPP)
}
