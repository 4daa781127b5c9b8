package filter

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// known is what one run over many attachments knows of the tables, and what it has yet to do there.
type known struct {
	// parts have been compared rule by rule, and need not be looked at for each attachment: by ID. What is flushed
	// afterwards is noticed in the end, see Guarded.
	parts sync.Map
	read  atomic.Uint32 // the generation that the changes of later rest on; 0: any

	mu sync.Mutex
	// later are changes that are to be made in one transaction, by table; nil: each is made at once.
	later map[string]*deferred
}

// deferred is a transaction that is yet to be made, and the elements as they will be after it; nil: deleted.
type deferred struct {
	table *nft.Table
	batch nft.Batch
	at    State
}

type knownKey struct{}

// Together returns a context for ensuring the resources of many attachments. With it, their shared objects are
// compared thoroughly, and only once.
func Together(ctx context.Context) context.Context {
	return context.WithValue(ctx, knownKey{}, &known{})
}

// IsTogether reports whether a context comes from Together.
func IsTogether(ctx context.Context) bool { return knownOf(ctx) != nil }

func knownOf(ctx context.Context) *known {
	k, _ := ctx.Value(knownKey{}).(*known)
	return k
}

// AtOnce makes one transaction for each table of everything that do ensures in a context of Together. Policies need
// this: no link's policy may take effect before those of the others are known. AtOnce calls do again if transactions
// of others came between.
func AtOnce(ctx context.Context, w *kernel.World, do func()) (err error) {
	k := knownOf(ctx)
	for left := 4; left >= 0; left-- {
		generation := uint32(0)
		// at last it is done, even if others go on changing something else
		if conn, err := nft.Open(w.Host); err == nil && left > 0 {
			generation, _ = conn.Generation() // without nf_tables nothing is written either
		}
		k.read.Store(generation)
		k.setLater(map[string]*deferred{})
		do()
		later := k.setLater(nil)
		err = nil
		for _, d := range later {
			err = errors.Join(err, Transact(ctx, w, d.table, func(f Tx) error {
				if read := k.read.Load(); read != 0 {
					*f.gen = read
				}
				err := f.Write(&d.batch)
				if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ERESTART) {
					return unix.EAGAIN // reading comes before writing
				}
				return err
			}))
		}
		if !errors.Is(err, unix.EAGAIN) {
			return err
		}
		k.parts.Clear()
	}
	return err
}

func (k *known) setLater(later map[string]*deferred) (was map[string]*deferred) {
	k.mu.Lock()
	defer k.mu.Unlock()
	was, k.later = k.later, later
	return was
}

// pending calls with, under the lock, with what is yet to be made in a table, if there is something.
func (f Tx) pending(with func(State)) {
	if f.known == nil {
		return
	}
	f.known.mu.Lock()
	defer f.known.mu.Unlock()
	if d := f.known.later[f.Table.String()]; d != nil {
		with(d.at)
	}
}

// Get reads elements, including changes that are not committed yet.
func (f Tx) Get(keys ...nft.Elem) ([]*nft.Elem, error) {
	found, err := f.Conn.Get(keys...)
	if err != nil {
		return found, err
	}
	f.pending(func(at State) {
		for i, e := range keys {
			if will, ok := at[ElementKey(e)]; ok {
				found[i] = will
			}
		}
	})
	return found, nil
}

// List reads a whole set, including changes that are not committed yet. It returns nil if there is no such set.
func (f Tx) List(set *nft.Set) ([]nft.Elem, error) {
	all, err := f.Conn.List(set)
	if err != nil {
		return all, err
	}
	f.pending(func(at State) {
		all = slices.DeleteFunc(all, func(e nft.Elem) bool { _, ok := at[ElementKey(e)]; return ok })
		for _, e := range at {
			if e != nil && e.Set.Name == set.Name {
				all = append(all, *e)
			}
		}
	})
	return all, nil
}

// Commit commits changes of elements, or adds them to the common transaction of AtOnce.
func (f Tx) Commit(b *nft.Batch) error {
	if b.Empty() || f.known.defers(f.Table, b) {
		return nil
	}
	return f.Write(b)
}

// defers takes changes that are to be made with those of others, where they are.
func (k *known) defers(t *nft.Table, b *nft.Batch) bool {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.later == nil {
		return false
	}
	d := k.later[t.String()]
	if d == nil {
		d = &deferred{table: t, at: State{}}
		k.later[t.String()] = d
	}
	d.batch.Append(b)
	b.Each(func(e nft.Elem, added bool) {
		d.at[ElementKey(e)] = nil
		if added {
			d.at[ElementKey(e)] = &e
		}
	})
	return true
}

// wrote has what was read before a transaction of our own go on to count.
func (k *known) wrote(was, now uint32) {
	if k != nil {
		k.read.CompareAndSwap(was, now)
	}
}

// has reports whether a part, and what always stands in its table, have been seen to.
func (k *known) has(p *ChainSet) bool {
	if k == nil {
		return false
	}
	_, has := k.parts.Load(p.ID())
	return has
}

func (k *known) add(p *ChainSet) {
	if k != nil {
		k.parts.Store(p.ID(), true)
	}
}
