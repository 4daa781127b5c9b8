package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
)

// oldest is the oldest version of etcd that the tests run.
const oldest = "3.4.0"

// CheckVersion returns an error if no member of etcd answers, or the one that does is older than what the tests run.
func (s *Store) CheckVersion(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	c, err := s.connect()
	if err != nil {
		return err
	}
	asked := clientv3.RetryMaintenanceClient(c, c.ActiveConnection()) // Status of clientv3 makes another connection
	st, err := asked.Status(ctx, &etcdserverpb.StatusRequest{}, grpc.WaitForReady(true))
	switch {
	case isDenied(err):
		return nil
	case err != nil:
		return s.failed(clientv3.ContextError(ctx, err))
	case older(st.Version, oldest):
		return oldError{strings.Join(s.access.Endpoints, ","), st.Version}
	}
	return nil
}

// An oldError says that etcd is older than what the tests run.
type oldError struct{ endpoint, version string }

func (e oldError) Error() string {
	return fmt.Sprintf("etcd at %s is version %s, and fairlead-agent needs %s or later", e.endpoint, e.version, oldest)
}

// isDenied reports whether etcd says its version to administrators alone, as no old version does.
func isDenied(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) }

// older compares versions of the form 3.4.0.
func older(a, b string) bool {
	of := func(v string, i int) int {
		parts := strings.Split(strings.SplitN(v, "-", 2)[0], ".")
		if i >= len(parts) {
			return 0
		}
		n, _ := strconv.Atoi(parts[i])
		return n
	}
	for i := range 3 {
		if x, y := of(a, i), of(b, i); x != y {
			return x < y
		}
	}
	return false
}

// ErrHasCluster means that a cluster of this name cannot be made, because there is one.
var ErrHasCluster = errors.New("etcd has this cluster already")

// Init makes a cluster with pools. It returns the identifier of etcd.
func (s *Store) Init(ctx context.Context, pools []blocks.Pool) (id string, err error) {
	c := blocks.Config{Pools: pools}
	if err := c.Validate(); err != nil {
		return "", err
	}
	v, err := s.Look(ctx)
	if err != nil {
		return "", err
	}
	c.Store = v.id
	if has := v.Config(); has != nil {
		return "", fmt.Errorf("%w: at %s is a cluster %s, with the pools %s: choose another --cluster, or join it with a token of one of its "+
			"nodes (fairlead cluster token)", ErrHasCluster, strings.Join(s.access.Endpoints, ","), s.access.Cluster, describePools(has.Pools))
	}
	return v.id, s.change(ctx, blocks.Init(c))
}

func describePools(pools []blocks.Pool) string {
	var texts []string
	for _, p := range pools {
		texts = append(texts, fmt.Sprintf("%s (%v)", p.Name, p.Prefix))
	}
	return strings.Join(texts, ", ")
}

// errChanged means that another command or agent wrote at the same time.
var errChanged = errors.New("another command changed the cluster at the same time: try again")

// change does a transaction of an administrator.
func (s *Store) change(ctx context.Context, t blocks.Txn) error {
	r, err := s.Commit(ctx, t)
	if err == nil && !r.Done {
		err = errChanged
	}
	return err
}

// AddPool adds a pool, and returns what the store says then.
func (s *Store) AddPool(ctx context.Context, p blocks.Pool) (*View, error) {
	return s.configure(ctx, func(_ *View, c *blocks.Config) error {
		c.Pools = append(c.Pools, p)
		return nil
	})
}

// ClosePool keeps nodes from claiming blocks of a pool in which they have no container, or lets them claim any block again, and
// returns what the store says then.
func (s *Store) ClosePool(ctx context.Context, name string, closed bool) (*View, error) {
	return s.ChangePool(ctx, name, func(p *blocks.Pool) { p.Closed = closed })
}

// RemovePool removes a pool of which no node has a block and none rests, and returns what the store says then.
func (s *Store) RemovePool(ctx context.Context, name string) (*View, error) {
	return s.configure(ctx, func(v *View, c *blocks.Config) error {
		p, err := v.Pool(name)
		if err != nil {
			return err
		}
		if v.Restored() || c.Store != v.id {
			return fmt.Errorf("pool %s stays: etcd was restored from a copy, and nodes have not said yet which blocks they have: see fairlead "+
				"cluster readopt", name)
		}
		if err := v.unused(p); err != nil {
			return err
		}
		c.Pools = slices.DeleteFunc(c.Pools, func(p blocks.Pool) bool { return p.Name == name })
		if !slices.ContainsFunc(c.Pools, func(p blocks.Pool) bool { return !p.Pinned }) {
			return fmt.Errorf("pool %s stays: it is the last one for containers that ask for no address. Add another one before", name)
		}
		return nil
	}, blocks.Unused(name)...)
}

// unused returns an error that names the nodes that own blocks of a pool, and says how these go back.
func (v *View) unused(p blocks.Pool) error {
	names, owned := v.Names(), map[string]int{}
	for _, e := range v.All(blocks.BlockKey) {
		if e.Key.Pool != p.Name {
			continue
		}
		for _, owner := range slices.Compact(slices.Sorted(slices.Values(e.Value.Owners))) {
			if owner != "" {
				owned[cmp.Or(names[owner], owner)]++
			}
		}
	}
	var texts []string
	for _, node := range slices.Sorted(maps.Keys(owned)) {
		texts = append(texts, fmt.Sprintf("%s (%d)", node, owned[node]))
	}
	owners := strings.Join(texts, ", ")
	switch {
	case len(texts) == 0:
	case p.Pinned:
		return fmt.Errorf("pool %s stays: containers on these nodes have addresses of it: %s. Repeat this when they have ended", p.Name, owners)
	case !p.Closed:
		return fmt.Errorf("pool %s stays: these nodes own blocks of it: %s. Close it (fairlead cluster pools close %[1]s), and repeat this when "+
			"their containers with addresses of it have ended", p.Name, owners)
	default:
		return fmt.Errorf("pool %s stays: these nodes own blocks of it: %s. It is closed: a block goes back some minutes after its last container "+
			"has ended, if the node has another pool that is open; fairlead cluster drain NODE is faster. Repeat this then", p.Name, owners)
	}
	for _, e := range v.All(blocks.GraveKey) {
		if e.Key.Pool == p.Name {
			return fmt.Errorf("pool %s stays: a block of it, %v, rests, because a node lost it: repeat this ten minutes later", p.Name, e.Key.Block)
		}
	}
	return nil
}

// ChangePool changes a pool, and returns what the store says then.
func (s *Store) ChangePool(ctx context.Context, name string, change func(*blocks.Pool)) (*View, error) {
	return s.configure(ctx, func(v *View, c *blocks.Config) error {
		_, err := v.Pool(name)
		for i := range c.Pools {
			if c.Pools[i].Name == name {
				change(&c.Pools[i])
			}
		}
		return err
	})
}

// configure edits the configuration of the cluster, if other things hold too, and returns what the store says then.
func (s *Store) configure(ctx context.Context, edit func(*View, *blocks.Config) error, also ...blocks.Compare) (*View, error) {
	v, err := s.Look(ctx)
	if err != nil {
		return nil, err
	}
	e := v.get(blocks.Key{Kind: blocks.ConfigKey})
	if e.Value.Config == nil {
		return nil, s.NoCluster()
	}
	c := *e.Value.Config
	c.Pools = slices.Clone(c.Pools)
	if err := edit(v, &c); err != nil {
		return nil, err
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	t := blocks.Configure(e, c)
	t.If = append(t.If, also...)
	if err := s.change(ctx, t); err != nil {
		return nil, err
	}
	return s.Look(ctx)
}

// Drain says whether a node is to claim nothing more, and to give back what it does not need.
func (s *Store) Drain(ctx context.Context, node string, drain bool) error {
	return s.change(ctx, blocks.Drain(node, drain))
}

// Readopt ends what began when etcd was found restored, if all nodes but those of without have said what they have. It
// returns those that are awaited. The caller has to know that the machines of without are off.
func (s *Store) Readopt(ctx context.Context, without ...string) (awaited []MemberInfo, err error) {
	v, err := s.Look(ctx)
	if err != nil {
		return nil, err
	}
	config, readopt := v.get(blocks.Key{Kind: blocks.ConfigKey}), v.get(blocks.Key{Kind: blocks.ReadoptKey})
	if !v.Restored() && config.Value.Config != nil && config.Value.Config.Store == v.id {
		return nil, nil // a call whose answer was lost did it
	}
	awaited = slices.DeleteFunc(v.Awaited(), func(m MemberInfo) bool { return slices.Contains(without, m.ID) })
	if len(awaited) > 0 {
		return awaited, nil
	}
	return nil, s.change(ctx, blocks.Readopted(config, readopt, v.id))
}

// aliveSeconds is how long a node is said to be alive after its agent was last heard.
const aliveSeconds = 60

// keepAlive keeps a lease of the store, with which what says that an agent runs ends, until ctx ends. It calls leased with
// each new one, because the store may end them, or with zero when the store gave none. It gives no right: see package blocks.
func (s *Store) keepAlive(ctx context.Context, leased func(id int64)) {
	for ctx.Err() == nil {
		s.keepLease(ctx, leased)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (s *Store) keepLease(ctx context.Context, leased func(id int64)) {
	c, id, err := s.grantLease(ctx)
	leased(int64(id))
	if err != nil {
		return
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	answers, err := c.KeepAlive(ctx, id)
	if err != nil {
		return
	}
	for a := range answers {
		if a.Revision < s.highest.Load() { // or the member that answers is behind the others: a read tells
			_, _ = s.Read(ctx, blocks.Read{Keys: []blocks.Key{{Kind: blocks.ConfigKey}}})
		}
	}
	if ctx.Err() != nil { // the agent ends: no command has to wait for the lease
		last, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer stop()
		_, _ = c.Revoke(last, id)
	}
}

func (s *Store) grantLease(ctx context.Context) (c *clientv3.Client, id clientv3.LeaseID, err error) {
	if c, err = s.connect(); err != nil {
		return nil, 0, err
	}
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	lease, err := c.Grant(ctx, aliveSeconds)
	if err != nil {
		return nil, 0, err
	}
	return c, lease.ID, nil
}
