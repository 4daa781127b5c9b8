package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/cluster/etcd"
	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/ipam"
)

// An adoption is what a node takes over of other networks.
type adoption struct {
	Network string          `json:"network"`
	DryRun  bool            `json:"dryRun"`
	From    []ipam.Adoption `json:"from"`
	Blocks  []netip.Prefix  `json:"blocks"` // which the node owns then

	leases map[netip.Prefix][]ipam.Lease // by the blocks
}

func adoptVerb() verb {
	var pools, from list
	var dry bool
	return verb{name: "adopt", operands: "[NET]", options: "--pool NAME [--from FROM] [--dry-run]", most: 1,
		does: "Take over the leases that another network of this node has in a pool, and claim the blocks with them.",
		flags: func(c *call) {
			c.flags.Var(&pools, "pool", "`NAME` of the pool; may be repeated")
			c.flags.Var(&from, "from", "take the leases of the network or directory `FROM`; may be repeated (default: all networks with "+
				"leases in the pool)")
			c.flags.BoolVar(&dry, "dry-run", false, "list what would be taken over, and change nothing")
		},
		ask: func(ctx context.Context, c *call, s *etcd.Store, v *etcd.View, operands []string) error {
			j, err := c.joined()
			if err != nil {
				return err
			}
			a := &adoption{Network: cmp.Or(append(operands, j.Network, etcd.DefaultNetwork)...), DryRun: dry}
			if err := a.adopt(ctx, v, pools, from); err != nil {
				return err
			}
			return c.print(a, a.print)
		}}
}

// A reader is a store that changes nothing where it looks: the store itself makes a lock, and removes lease files that a crash
// left empty.
type reader struct{ *disk.Store }

// Look implements ipam.Ledger.
func (r reader) Look(_ context.Context, network string, _ ...netip.Addr) (*ipam.Book, error) {
	b, err := r.Read(filepath.Join(disk.DefaultDir, network))
	if errors.Is(err, fs.ErrNotExist) {
		b, err = &ipam.Book{From: network}, nil
	}
	if err != nil {
		return nil, err
	}
	b.Sets = r.Sets
	return b, nil
}

// adopt takes over the leases of other networks. The leases come first, so that no container gets one of the addresses when the
// node has the blocks.
func (a *adoption) adopt(ctx context.Context, v *etcd.View, names, from []string) error {
	pools, kept, err := poolsOf(v, names)
	if err != nil {
		return err
	}
	var ledger ipam.Ledger = kept
	if a.DryRun {
		ledger = reader{kept}
	}
	if err := areThere(ctx, ledger, a.Network, from); err != nil {
		return err
	}
	if a.From, err = ipam.Adopt(ctx, ledger, a.Network, from, true); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("nothing is taken over: %w", err)
	} else if err != nil {
		return fmt.Errorf("nothing is taken over: %w\nend the containers that this names, or say which networks to take over: those whose "+
			"leases are all in the pool %s (--from)", err, strings.Join(names, ", "))
	}
	if len(a.From) == 0 {
		return nil
	}
	book, err := ledger.Look(ctx, a.Network)
	if err != nil {
		return err
	}
	leases := slices.DeleteFunc(book.Leases, func(l ipam.Lease) bool { return has(a.ranges(), l) })
	for _, one := range a.From {
		leases = append(leases, one.Added...)
	}
	if err := a.sort(pools, leases); err != nil || len(a.Blocks) == 0 {
		return err
	}
	if err := etcd.AskAdopt(ctx, a.Network, a.Blocks, true); err != nil || a.DryRun {
		return a.explain(err)
	}
	all, err := ipam.Adopt(ctx, ledger, a.Network, from, false)
	if err != nil {
		return err
	}
	a.From = all
	err = etcd.AskAdopt(ctx, a.Network, a.Blocks, false)
	var refused *etcd.RefusedAdoption
	if errors.As(err, &refused) { // else it is not known whether the node has the blocks
		err = errors.Join(a.explain(err), a.undo(ctx, ledger))
	}
	return err
}

// areThere returns an error if a network that --from names has no leases on this node.
func areThere(ctx context.Context, ledger ipam.Ledger, network string, from []string) error {
	have, err := ledger.Networks(ctx)
	if err != nil {
		return err
	}
	for _, name := range from {
		if !strings.Contains(name, "/") && !slices.Contains(have, name) {
			others := slices.DeleteFunc(have, func(other string) bool { return other == network })
			return fmt.Errorf("--from: no network %q has leases on this node: there are %s", name, cmp.Or(strings.Join(others, ", "), "no others"))
		}
	}
	return nil
}

// poolsOf returns the pools with these names, and the leases of networks in them.
func poolsOf(v *etcd.View, names []string) (pools []blocks.Pool, ledger *disk.Store, err error) {
	if len(names) == 0 {
		return nil, nil, fmt.Errorf("--pool: want the name of a pool: fairlead cluster pools lists them: %w", errUsage)
	}
	var sets []ipam.Set
	for _, name := range names {
		p, err := v.Pool(name)
		if err != nil {
			return nil, nil, fmt.Errorf("--pool: %w", err)
		}
		if p.Pinned {
			return nil, nil, fmt.Errorf("--pool: %s is pinned: containers get addresses of it by name alone", name)
		}
		pools = append(pools, p)
		sets = append(sets, ipam.Set{Path: "pool " + name, Ranges: []ipam.Range{{Subnet: p.Prefix}}})
	}
	sets, err = ipam.Complete(sets)
	return pools, &disk.Store{Sets: sets}, err
}

// sort puts the leases into the blocks of the pools.
func (a *adoption) sort(pools []blocks.Pool, leases []ipam.Lease) error {
	a.leases = map[netip.Prefix][]ipam.Lease{}
	var errs []error
	for _, l := range leases {
		i := slices.IndexFunc(pools, func(p blocks.Pool) bool { return p.Prefix.Contains(l.Address) })
		if i < 0 {
			continue // of another pool of the network
		}
		p := pools[i]
		block := p.Block(l.Address)
		if p.IsReserved(l.Address) {
			errs = append(errs, fmt.Errorf("%v of container %s is the first, the second or the last address of the block %v, which no "+
				"container can have: make a pool whose blocks are as long as the former network's subnet (fairlead cluster pools add "+
				"NAME=CIDR,BITS), or end the container", l.Address, l.ContainerID, block))
		}
		a.leases[block] = append(a.leases[block], l)
	}
	if a.Blocks = slices.SortedFunc(maps.Keys(a.leases), netip.Prefix.Compare); len(a.Blocks) > etcd.MostAdopted {
		errs = append(errs, fmt.Errorf("the leases are in %d blocks, and a node adopts at most %d at once: make a pool with larger blocks "+
			"(fairlead cluster pools add NAME=CIDR,BITS), or adopt one network after the other (--from)", len(a.Blocks), etcd.MostAdopted))
	}
	if len(errs) > 0 {
		return fmt.Errorf("nothing is taken over: %w", errors.Join(errs...))
	}
	return nil
}

// explain adds to the agent's refusal which containers it is about.
func (a *adoption) explain(err error) error {
	var refused *etcd.RefusedAdoption
	if !errors.As(err, &refused) {
		return err
	}
	text := "nothing is claimed, and nothing is taken over:"
	if refused.Why != "" {
		return fmt.Errorf("%s %w. %s", text, refused, refused.Hint)
	}
	for _, block := range slices.SortedFunc(maps.Keys(refused.Blocks), netip.Prefix.Compare) {
		text += fmt.Sprintf("\nblock %v: %s. Containers have these addresses of it here:", block, refused.Blocks[block])
		for _, l := range a.leases[block] {
			text += fmt.Sprintf("\n  %v of %s %s", l.Address, l.ContainerID, l.IfName)
		}
	}
	return fmt.Errorf("%s\n%s", text, refused.Hint)
}

// ranges returns those that the node has.
func (a *adoption) ranges() []netip.Prefix {
	g, err := grant.OfBoot(a.Network)
	if err != nil {
		return nil
	}
	return g.Ranges
}

func has(ranges []netip.Prefix, l ipam.Lease) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(l.Address) })
}

// undo removes the leases that were added, where the node has no block with their addresses.
func (a *adoption) undo(ctx context.Context, ledger ipam.Ledger) (err error) {
	ranges := a.ranges()
	for _, one := range a.From {
		for _, l := range one.Added {
			if !has(ranges, l) {
				err = errors.Join(err, ledger.Drop(ctx, a.Network, l))
			}
		}
	}
	return err
}

func (a *adoption) print(w io.Writer) {
	if len(a.From) == 0 {
		fmt.Fprintln(w, "no other network of this node has a lease in the pool: nothing is to be done")
		return
	}
	took, owns := "took over", "owns"
	if a.DryRun {
		took, owns = "would take over", "would own"
	}
	for _, one := range a.From {
		printf(w, "network %s %s %d of %d leases of %s\n", a.Network, took, len(one.Added), one.Leases, one.From)
		for _, l := range one.Added {
			printf(w, "  %v of %s %s\n", l.Address, l.ContainerID, l.IfName)
		}
	}
	if len(a.Blocks) > 0 {
		printf(w, "this node %s the blocks %s\n", owns, join(a.Blocks))
	}
	if a.DryRun {
		fmt.Fprintln(w, "nothing was changed")
		return
	}
	fmt.Fprintln(w, "attach no more containers to the former network: it would give addresses of other blocks, which other nodes may own")
}
