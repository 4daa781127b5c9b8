package resource

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A filter is one call's work on a table. It holds a lock in /run for as long: a reading and the
// transaction that follows from it belong together, and a transaction that fails costs a grace period.
type filter struct {
	*kernel.NFT
	t     *kernel.NFTTable
	again bool
}

// withFilter runs fn under the lock. What somebody else did to the table in between, without the lock,
// fails the transaction; then the table is mended and fn runs once more.
func withFilter(ctx context.Context, w *kernel.World, t *kernel.NFTTable, fn func(filter) error) error {
	nft, err := w.Host.NFT()
	if err != nil {
		return err
	}
	unlock, err := kernel.Lock(ctx, "nft")
	if err != nil {
		return err
	}
	defer unlock()
	err = fn(filter{nft, t, false})
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) {
		err = fn(filter{nft, t, true})
	}
	return err
}

// ready makes what always stands in the table, and a part, where something of them is missing.
func (f filter) ready(p *part) error {
	all := &kernel.NFTTable{Family: f.t.Family, Name: f.t.Name, Chains: slices.Concat(f.t.Chains, p.Chains)}
	var more []*kernel.NFTRule
	for _, l := range p.lines {
		more = append(more, l.rule)
	}
	if !f.again {
		if ok, err := f.Intact(all, more...); err != nil || ok {
			return err
		}
	}
	if err := f.mend(f.t); err != nil {
		return err
	}
	if err := f.mend(&p.NFTTable); err != nil {
		return err
	}
	missing, err := f.missing(p)
	if err != nil {
		return err
	}
	var b kernel.NFTBatch
	for _, l := range missing {
		b.AddRule(f.t, l.chain, l.rule)
	}
	return f.Commit(&b)
}

// mend makes the chains and sets of t as they should be. They are for all attachments and stay.
func (f filter) mend(t *kernel.NFTTable) error {
	drift, fix, err := f.Diff(t)
	if err != nil {
		return err
	}
	if len(drift) > 0 && fix.Empty() {
		return errors.Join(drift...)
	}
	return f.Commit(fix)
}

// A part is what some attachments share in a table: chains and sets that are named after a hash of what they
// do, and the lines in chains of the skeleton that lead there. It is made once and stays.
type part struct {
	kernel.NFTTable
	lines []wayIn
}

type wayIn struct {
	chain string
	rule  *kernel.NFTRule
}

func newPart(t *kernel.NFTTable) *part {
	return &part{NFTTable: kernel.NFTTable{Family: t.Family, Name: t.Name}}
}

// share adds a chain for those that a set of its name has, and returns the set. A line in the chain from leads
// there; way is what it looks up.
func (p *part) share(from, prefix string, way func(*kernel.NFTSet) *kernel.NFTRule, rules []*kernel.NFTRule) *kernel.NFTSet {
	var all strings.Builder
	for _, r := range rules {
		all.WriteString(r.Code())
	}
	c := &kernel.NFTChain{Name: prefix + "_" + kernel.ShortHash(all.String()), Rules: rules}
	s := sharedSet(&p.NFTTable, c.Name)
	p.Chains, p.Sets = append(p.Chains, c), append(p.Sets, s)
	p.lines = append(p.lines, wayIn{from, way(s).Jump(c.Name)})
	return s
}

// missing are the lines of a part that the table lacks. The chains are as long as there are different networks
// and conditions on this host.
func (f filter) missing(p *part) (missing []wayIn, err error) {
	got := map[string][]string{}
	for _, l := range p.lines {
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
	return a.Set.Name == b.Set.Name && bytes.Equal(a.Key, b.Key)
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
		if key, rest, ok := s.CutNFTKey(rest); ok {
			e.place = kernel.NFTElem{Set: s, Key: key}
			tag = rest
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

func place(e kernel.NFTElem) string { return e.Set.Name + " " + string(e.Key) }

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
	at, err := f.current(plain, nil)
	if err != nil {
		return nil, err
	}
	f.replace(b, hash, plain, nil, at)
	claims, err := f.claims(slotsOf(f.t, mapped))
	if err != nil {
		return nil, err
	}
	claims.remove(hash)
	flows, err := f.lead(b, claims)
	if err != nil {
		return nil, err
	}
	f.forget(b, have)
	return flows, f.Commit(b)
}

// remove is Remove for an owner.
func remove(ctx context.Context, w *kernel.World, t *kernel.NFTTable, o spec.Owner, kind uint32) error {
	var flows []kernel.UDPFlow
	err := withFilter(ctx, w, t, func(f filter) (err error) {
		flows, err = f.drop(kernel.OwnerHash(o), kind)
		return err
	})
	if unavailable(err) {
		return nil // what the kernel cannot have is removed
	}
	if err == nil {
		flush(w, flows)
	}
	return err
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

// standing says what of the table and of a shared part of it is missing or different.
func (f filter) standing(p *part) (d drift, err error) {
	found, _, err := f.Diff(f.t)
	if err != nil || len(found) > 0 {
		return found, err // the part would say the same again where the table is missing
	}
	if found, _, err = f.Diff(&p.NFTTable); err != nil {
		return nil, err
	}
	missing, err := f.missing(p)
	for _, l := range missing {
		found = append(found, fmt.Errorf("nft rule %v %s %q is missing", f.t, l.chain, l.rule.Comment()))
	}
	return found, err
}

// all reports whether there is no table: each element of it is missing then, and need not be named.
func (d drift) all() bool { return errors.As(d.err(), new(*kernel.NoTableError)) }

// verify is Verify for kinds whose elements nobody else can want.
func (f filter) verify(p *part, o spec.Owner, kind uint32, want []kernel.NFTElem) error {
	d, err := f.standing(p)
	if err != nil || d.all() {
		return errors.Join(err, d.err())
	}
	more, err := f.settled(o, kind, want)
	if err != nil {
		return err
	}
	return append(d, more...).err()
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
	for _, w := range want {
		if !slices.ContainsFunc(have, func(e entry) bool { return e.place.Set != nil && sameKey(e.place, w) }) {
			d.add(fmt.Errorf("nft element %v is not in owners", w))
		}
	}
	for _, e := range have {
		if e.place.Set != nil && !slices.ContainsFunc(want, func(w kernel.NFTElem) bool { return sameKey(e.place, w) }) {
			d.add(fmt.Errorf("nft element %v is too much", e.place))
		}
	}
	return d
}

// unavailable reports whether the kernel has no nf_tables, in which case there is nothing to remove.
func unavailable(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

// SweepNFT removes what the network's attachments left in the packet filter, of every owner that keep
// does not want. It reads owners alone, and goes on past an error.
func SweepNFT(ctx context.Context, w *kernel.World, network string, keep func(owner [8]byte) bool) error {
	var errs []error
	for _, t := range []*kernel.NFTTable{inetTable(), bridgeTable()} {
		var flows []kernel.UDPFlow
		err := withFilter(ctx, w, t, func(f filter) error {
			records, err := f.List(ownersSet(t))
			if err != nil {
				return err
			}
			type stale struct {
				hash [8]byte
				kind uint32
			}
			var dead []stale
			for _, r := range records {
				_, tag := f.parseEntry(r)
				net, hash, _, ok := kernel.ParseTag(tag)
				if !ok || net != kernel.NetworkHash(network) || keep(hash) {
					continue
				}
				s := stale{hash, binary.NativeEndian.Uint32(r.Key[8:]) &^ 0xffff}
				if !slices.Contains(dead, s) {
					dead = append(dead, s)
				}
			}
			for _, s := range dead {
				cut, err := f.drop(s.hash, s.kind)
				errs = append(errs, err)
				flows = append(flows, cut...)
			}
			return nil
		})
		if !unavailable(err) {
			errs = append(errs, err)
		}
		flush(w, flows)
	}
	return errors.Join(errs...)
}
