package etcd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/cluster/fence"
	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
)

// Dir is the directory of the journals, one for each network.
const Dir = "/var/lib/cni/fairlead/cluster"

// A host is where a node keeps its journal, its grant and its leases.
type host struct {
	cluster, node, network string
	leases                 *disk.Store
	grant                  *grant.File
	fence                  *fence.Fence // nil: nothing is cut off
}

// change changes the grant, and what is cut off by it.
func (h *host) change(ctx context.Context, change func(*grant.Grant)) error {
	if h.fence == nil {
		return h.grant.Change(change)
	}
	return h.fence.Change(ctx, h.grant, change)
}

func (h *host) journalPath() string { return filepath.Join(Dir, h.network+".journal.json") }

// lock returns an error if another agent has the network. The lock ends with the process.
func (h *host) lock() (unlock func(), err error) {
	if err := os.MkdirAll(Dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(h.journalPath()+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: another agent of this network runs on this host: %w", f.Name(), err),
			f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// loadJournal returns what was saved. A node that has never saved anything gets an identifier.
func (h *host) loadJournal() (blocks.Journal, error) {
	b, err := os.ReadFile(h.journalPath())
	if errors.Is(err, fs.ErrNotExist) {
		return blocks.Journal{Node: nonce()}, nil
	}
	if err != nil {
		return blocks.Journal{}, err
	}
	var j blocks.Journal
	err = json.Unmarshal(b, &j)
	if err == nil && j.Node == "" {
		err = errNoNode
	}
	if err != nil {
		return j, fmt.Errorf("%s: is no journal: %w: end the containers of this node, forget it, and remove the file",
			h.journalPath(), err)
	}
	return j, nil
}

// errNoNode means that a journal names no node.
var errNoNode = errors.New("it names no node")

// nonce returns 128 random bits.
func nonce() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// machine returns an identifier of the hardware, which is not on a disk. Empty: it is unknown.
func machine() string {
	b, _ := os.ReadFile("/sys/class/dmi/id/product_uuid")
	return strings.TrimSpace(string(b))
}

// saveJournal replaces the journal, and returns when it is on the disk.
func (h *host) saveJournal(j blocks.Journal) error {
	b, err := json.Marshal(j)
	if err != nil {
		return err
	}
	f, err := os.Create(h.journalPath() + ".new") // one agent writes it; what a killed one left is replaced
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), h.journalPath()); err != nil {
		return err
	}
	dir, err := os.Open(Dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// granted returns the holdings in the grant of this boot, and until when containers may get addresses of them.
func (h *host) granted() ([]blocks.Holding, blocks.Deadlines, error) {
	g, err := grant.OfBoot(h.network)
	if err != nil || len(g.Source) == 0 {
		return nil, nil, nil // no grant, or one of an earlier boot: no container has an address of it
	}
	var list []blocks.Holding
	if err := json.Unmarshal(g.Source, &list); err != nil {
		return nil, nil, fmt.Errorf("%s: source: %w", grant.Path(h.network), err)
	}
	deadlines := blocks.Deadlines{}
	for _, held := range list {
		for p, end := range g.Until {
			if held.Block.Contains(p.Addr()) {
				deadlines[held.Pool] = end
			}
		}
	}
	return list, deadlines, nil
}

// isGrantLost reports whether the grant was removed, or what is there is none that an owner wrote. A file that cannot be read is
// not lost.
func (h *host) isGrantLost() bool {
	g, err := grant.OfBoot(h.network)
	if err != nil {
		return !errors.As(err, new(unix.Errno))
	}
	return len(g.Source) == 0
}

// A grantor knows the ranges of what an owner has.
type grantor struct {
	owner   *blocks.Owner
	pools   []blocks.Pool // of the network, but for pinned ones
	allowed []blocks.Pool // … with pinned ones
	leased  []netip.Addr
	reserve int // see Member.Reserve
}

func (m *Member) grantor(o *blocks.Owner) grantor {
	return grantor{o, m.pools(o), m.allowed(o), m.addrs, m.Reserve}
}

// ranges returns the addresses of holdings. Missing is the family of which there are none, though the network has an open pool
// of it: a container would lack an address.
func (g grantor) ranges(all []blocks.Holding) (list []netip.Prefix, missing string) {
	var v4, v6 bool
	for _, held := range all {
		if held.Block.IsSingleIP() {
			continue
		}
		for _, r := range g.owner.Ranges(held) {
			v4, v6 = v4 || r.Addr().Is4(), v6 || r.Addr().Is6()
			list = append(list, r)
		}
	}
	for _, p := range g.pools {
		switch {
		case p.Closed:
		case p.Prefix.Addr().Is4() && !v4:
			return nil, "IPv4"
		case p.Prefix.Addr().Is6() && !v6:
			return nil, "IPv6"
		}
	}
	return list, ""
}

// until returns when containers get no more addresses of the holdings of a grant.
func (g grantor) until(p blocks.Publish) (until map[netip.Prefix]int64) {
	for _, held := range p.Holdings {
		end, ends := p.Deadlines[held.Pool]
		if !ends {
			continue
		}
		if until == nil {
			until = map[netip.Prefix]int64{}
		}
		for _, r := range g.owner.Ranges(held) {
			until[r] = end
		}
	}
	return until
}

// pins returns the single addresses among holdings.
func pins(all []blocks.Holding) (list []netip.Addr) {
	for _, held := range all {
		if held.Block.IsSingleIP() {
			list = append(list, held.Block.Addr())
		}
	}
	return list
}

// grantPools returns pools as the grant has them: the former ones, as long as etcd has not said any.
func grantPools(pools []blocks.Pool, former []grant.Pool) (list []grant.Pool) {
	if len(pools) == 0 {
		return former
	}
	for _, p := range pools {
		list = append(list, grant.Pool{Name: p.Name, Prefix: p.Prefix, Bits: p.Bits, Pinned: p.Pinned, Fenced: p.Fence == blocks.Drop})
	}
	return list
}

// publish replaces the grant. It reports whether it did not, because a lease is in the way.
func (h *host) publish(ctx context.Context, p blocks.Publish, by grantor) (busy bool, err error) {
	if p.Without == nil && len(p.Holdings) > 0 && len(p.Deadlines) == 0 { // nothing is taken away
		return false, h.write(ctx, p, by)
	}
	var leaving []netip.Prefix
	if p.Without != nil {
		if leaving = by.owner.Ranges(*p.Without); leaving == nil { // the pool is not there any more
			leaving = []netip.Prefix{p.Without.Block}
		}
	}
	return h.leases.Withdraw(ctx, h.network, leaving, func() error { return h.write(ctx, p, by) })
}

// write writes the grant. What others wrote into it stays.
func (h *host) write(ctx context.Context, p blocks.Publish, by grantor) error {
	source, err := json.Marshal(p.Holdings)
	if err != nil {
		return err
	}
	return h.change(ctx, func(g *grant.Grant) {
		hadOnce := *g
		g.Cluster, g.Node, g.Source = h.cluster, h.node, source
		lacks := ""
		g.Ranges, lacks = by.ranges(p.Holdings)
		g.Until = by.until(p)
		g.Pins, g.Pools, g.Reserve = pins(p.Holdings), grantPools(by.allowed, g.Pools), by.reserve
		g.Lost = slices.DeleteFunc(slices.Clone(by.leased), func(a netip.Addr) bool {
			wasOwn := hadOnce.Has(a) || slices.Contains(hadOnce.Lost, a)
			return g.Has(a) || !wasOwn
		})
		switch {
		case p.Refusal != nil:
			g.Missing, g.Hint = missing(p.Refusal, h.node)
		case lacks != "" && len(p.Holdings) > 0:
			g.Missing, g.Hint = "the node has no block of "+lacks+" addresses", "`fairlead cluster pools` shows what is free."
		default:
			g.Missing, g.Hint = "", ""
		}
	})
}

// missing says why the node with a name has no range, and what to do.
func missing(r *blocks.Refusal, name string) (why, hint string) {
	if r == nil {
		return "", ""
	}
	switch r.Reason {
	case blocks.Unconfigured:
		return "etcd has no cluster of this name", "Make the cluster first, or correct the name or the endpoints."
	case blocks.NameTaken:
		return "another node of the cluster has this node's name, " + name + ": that with the identifier " + r.Node,
			"Give this node another name (--node), or if the other one is gone for good: `fairlead cluster forget " + name + " --confirmed-dead`."
	case blocks.Forgotten:
		return "the node was forgotten, and others may have its addresses",
			"End its containers, remove the journal in " + Dir + ", and it joins as another node."
	case blocks.OtherMachine:
		return "the journal in " + Dir + " is of another machine: the disk was copied or moved",
			"On a copy, remove the journal. Of a machine that was replaced, forget the node first."
	case blocks.Superseded:
		return "another agent has this node's identity: its disk was copied or restored",
			"End the containers of this node, forget the node, and remove the journal in " + Dir + "."
	}
	return fmt.Sprintf("reason %d", r.Reason), ""
}
