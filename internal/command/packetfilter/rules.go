package packetfilter

import (
	"errors"
	"slices"
	"sync"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// rules are those of nf_tables that packets have come to. A view of a namespace keeps them for its generation.
type rules struct {
	mu         sync.Mutex
	nft        *nft.Conn
	generation uint32
	chains     []nft.BaseChain
	tables     map[string]*nftTable // nil for a table that is dormant
}

// rulesOf is the question for the rules of a view.
type rulesOf struct{}

// whileSteady calls look with the rules that there are, until none of them has changed meanwhile. It gives up in
// the end.
func whileSteady(ns *kernel.NS, look func(*rules) error) (steady bool, err error) {
	conn, err := nft.Open(ns)
	if err != nil {
		return false, err
	}
	r, _ := kernel.Once(ns, rulesOf{}, func() (*rules, error) { return &rules{nft: conn}, nil })
	r.mu.Lock()
	defer r.mu.Unlock()
	if steady, err := r.again(look); steady || err != nil {
		return steady, err
	}
	for range 8 {
		steady, err := r.read(look)
		if steady && err == nil {
			return true, nil
		}
		r.tables = nil
		if steady || err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: another program deletes what rules lead to
			return false, err
		}
	}
	return false, nil
}

// again calls look with rules that were steady before. They still are if their generation is that of nf_tables after
// it. A later one would begin with a new number.
func (r *rules) again(look func(*rules) error) (steady bool, err error) {
	if r.tables == nil || r.generation == 0 || look(r) != nil {
		return false, nil
	}
	now, err := r.nft.Generation()
	return err == nil && now == r.generation, err
}

// read reads the base chains, and calls look.
func (r *rules) read(look func(*rules) error) (steady bool, err error) {
	r.tables, r.generation = map[string]*nftTable{}, 0
	if r.chains, err = r.nft.BaseChains(); err != nil {
		return false, err
	}
	if len(r.chains) == 0 { // perhaps there is no nf_tables, which has generations
		return true, look(r)
	}
	if r.generation, err = r.nft.Generation(); err != nil {
		return false, err
	}
	if err := look(r); err != nil {
		return false, err
	}
	// A chain that is made anew lets all through for a moment, of the new generation already, until it has its
	// policy.
	if err := r.nft.AwaitCommit(r.generation); err != nil {
		return false, err
	}
	chains, err := r.nft.BaseChains()
	if err != nil {
		return false, err
	}
	now, err := r.nft.Generation() // after the chains, which may be those of another transaction that goes on
	return err == nil && now == r.generation && slices.Equal(chains, r.chains), err
}

// table returns a table of a base chain; nil if it is dormant.
func (r *rules) table(c nft.BaseChain) (*nftTable, error) {
	name := c.TableName()
	if t, known := r.tables[name]; known {
		return t, nil
	}
	t := &nft.Table{Family: c.Family, Name: c.Table}
	dormant, err := r.nft.Dormant(t)
	if err != nil {
		return nil, err
	}
	if r.tables[name] = nil; !dormant {
		r.tables[name] = newTable(r.nft, t)
	}
	return r.tables[name], nil
}
