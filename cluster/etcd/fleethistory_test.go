package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// A fleet is machines with members that share a simulated etcd, and containers that come and go there.
type fleet struct {
	*testing.T
	etcd     *simulated
	etcdBusy sync.Mutex // a mishap of etcd goes on
	machines []*computer
	admin    *Store
	isTimed  bool // silent nodes lose their blocks after an hour

	mu     sync.Mutex
	random *rand.Rand // of mishaps
	begin  time.Time
	lines  []string              // what happened, for people
	holder map[netip.Addr]string // of addresses that containers have
	gave   int
}

// A container has an address of each family.
type container struct {
	spec.Owner
	addrs []netip.Addr
}

// A computer has a disk and a network of its own, whose name tells it from others.
type computer struct {
	*fleet
	host    string // name of the node
	network string // and identifier of the hardware
	seed    uint64
	random  *rand.Rand // of its containers
	busy    sync.Mutex // a mishap of the machine goes on

	mu         sync.Mutex
	starts     int
	link       *link
	member     *Member // nil: no agent runs
	end        func()
	containers []container
	isOff      bool // no container runs, and none begins
	attached   int
}

func (f *fleet) say(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lines = append(f.lines, fmt.Sprintf("%v %s", time.Since(f.begin), fmt.Sprintf(format, args...)))
}

// logged takes the lines of agents' logs.
type logged struct{ c *computer }

func (l logged) Write(line []byte) (int, error) {
	_, text, _ := strings.Cut(string(line), "msg=")
	l.c.say("%s: %s", l.c.network, strings.TrimSpace(text))
	return len(line), nil
}

func newFleet(t *testing.T, seed uint64) *fleet {
	f := &fleet{T: t, etcd: newSimulated(), random: rand.New(rand.NewPCG(seed, 0)), begin: time.Now(), holder: map[netip.Addr]string{},
		isTimed: seed%4 == 0}
	f.admin = f.store(f.newLink(seed, 100))
	config := blocks.Config{Pools: []blocks.Pool{{Name: "p", Prefix: netip.MustParsePrefix("10.9.0.0/25"), Bits: 28, Parts: 4}}}
	if f.isTimed {
		config.Pools[0].Reclaim = blocks.LeastDelay
	}
	f.untilDone("make the cluster", func(ctx context.Context) error {
		if v, err := f.admin.Look(ctx); err != nil || v.Config() != nil {
			return err // an answer may have been lost
		}
		_, err := f.admin.Init(ctx, config.Pools)
		return err
	})
	for n := range 5 {
		name := string(rune('a' + n))
		f.machines = append(f.machines, f.newComputer(seed, n, name, name))
	}
	return f
}

// newLink returns a link whose chances are those of a seed and a number.
func (f *fleet) newLink(seed uint64, number int) *link {
	return &link{store: f.etcd, seed: seed<<16 + uint64(number), random: map[string]*rand.Rand{}}
}

func (f *fleet) newComputer(seed uint64, n int, host, network string) *computer {
	seed = seed<<8 + uint64(n)
	return &computer{fleet: f, host: host, network: network, seed: seed, random: rand.New(rand.NewPCG(seed, 1)),
		link: f.newLink(seed, 0)}
}

func (f *fleet) store(l *link) *Store {
	s, err := Open(Access{Cluster: "c", Endpoints: []string{"http://192.0.2.1:2379"}})
	if err != nil {
		f.Fatal(err)
	}
	s.dial = l.client
	return s
}

// untilDone tries something again until etcd does it.
func (f *fleet) untilDone(what string, try func(context.Context) error) {
	limit := time.Now().Add(3 * time.Hour) // the longest mishap takes two
	why := map[string]int{}
	for {
		ctx, stop := context.WithTimeout(f.Context(), 2*patience)
		err := try(ctx)
		stop()
		if err == nil {
			f.say("done: %s", what)
			return
		}
		why[err.Error()]++
		if time.Now().After(limit) {
			f.Fatalf("%s: %v; etcd has\n%s", what, why, strings.Join(f.etcd.sorted(), "\n"))
		}
		time.Sleep(time.Second)
	}
}

// start starts an agent, whose first actions so many go on before it is killed. Zero: it is not killed.
func (c *computer) start(killedAt int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.member != nil {
		return
	}
	c.starts++
	c.link = c.newLink(c.seed, c.starts)
	ctx, cancel := context.WithCancel(c.Context())
	s := c.store(c.link)
	m := NewMember(s, NewView(), c.network, blocks.Host{Name: c.host})
	m.Log, m.Spare, m.Idle, m.machine = slog.New(slog.NewTextHandler(logged{c}, nil)), 4, 2*time.Minute, c.network
	m.watchLeases, m.isNewEnough, m.clock = unwatched, true, c.now
	dead := c.link
	actions := 0
	m.before = func(a blocks.Action) {
		if a == nil {
			return
		}
		if actions++; actions == killedAt {
			c.say("%s: killed before %T", c.network, a)
			dead.kill()
			cancel()
		}
	}
	var running sync.WaitGroup
	running.Go(func() {
		if err := m.Run(ctx); err != nil {
			c.Errorf("%s: %v", c.network, err)
		}
	})
	running.Go(func() {
		s.Follow(ctx, m.View, func(freed bool) {
			if freed {
				m.Freed()
			}
			m.ViewChanged()
		}, func(error) {})
	})
	c.say("%s: starts", c.network)
	c.member = m
	c.end = func() {
		cancel()
		running.Wait()
		_ = s.Close()
	}
}

// stop ends the agent: by a signal that it takes, or at once.
func (c *computer) stop(isKilled bool) {
	c.mu.Lock()
	isRunning, end := c.member != nil, c.end
	c.member = nil
	c.mu.Unlock()
	if !isRunning {
		return
	}
	c.say("%s: stops, killed: %v", c.network, isKilled)
	if isKilled {
		c.link.kill()
	}
	end()
}

// loseRun is what a boot does: no container runs, and there is no grant.
func (c *computer) loseRun() {
	c.stop(true)
	c.releaseAll()
	c.say("%s: loses /run", c.network)
	if err := os.Remove(grant.Path(c.network)); err != nil && !os.IsNotExist(err) {
		c.Fatal(err)
	}
}

// loseDisk is what a new disk does.
func (c *computer) loseDisk() {
	c.loseRun()
	c.say("%s: loses its disk", c.network)
	if err := os.RemoveAll((&host{network: c.network}).journalPath()); err != nil {
		c.Fatal(err)
	}
}

// attach gives a container an address, as the plugin does: by the grant, or after a question to the agent.
func (c *computer) attach() {
	c.mu.Lock()
	if c.isOff || len(c.containers) >= 20 || c.isLate() {
		c.mu.Unlock()
		return
	}
	c.attached++
	o := spec.Owner{Network: c.network, ContainerID: "x" + strconv.Itoa(c.attached), IfName: "eth0"}
	m := c.member
	c.mu.Unlock()

	given, err := allocator(c.network).Allocate(c.Context(), o)
	if err != nil && m != nil {
		ctx, stop := context.WithTimeout(c.Context(), 2*time.Second)
		_ = m.Ask(ctx, grant.Want{}) // whatever it says, the grant may have an address now
		stop()
		given, err = allocator(c.network).Allocate(c.Context(), o)
	}
	if err != nil {
		return
	}
	x := container{Owner: o}
	c.fleet.mu.Lock()
	for _, ip := range given.IPs {
		addr := ip.Address.Addr()
		x.addrs = append(x.addrs, addr)
		if other := c.holder[addr]; other != "" {
			c.Errorf("%v: a container of %s gets %v, which one of %s has", time.Since(c.begin), c.network, addr, other)
		}
		c.holder[addr] = c.network
		c.gave++
	}
	c.fleet.mu.Unlock()

	c.mu.Lock()
	isLate := c.isOff // the machine ended meanwhile
	if !isLate {
		c.containers = append(c.containers, x)
	}
	c.mu.Unlock()
	if isLate {
		c.release(x)
	}
}

// detach ends a container.
func (c *computer) detach() {
	c.mu.Lock()
	if len(c.containers) == 0 {
		c.mu.Unlock()
		return
	}
	n := c.random.IntN(len(c.containers))
	x := c.containers[n]
	c.containers = slices.Delete(c.containers, n, n+1)
	c.mu.Unlock()
	c.release(x)
}

func (c *computer) release(x container) {
	c.fleet.mu.Lock()
	for _, addr := range x.addrs {
		delete(c.holder, addr)
	}
	c.fleet.mu.Unlock()
	if err := allocator(c.network).Release(c.Context(), x.Owner); err != nil {
		c.Error(err)
	}
	c.mu.Lock()
	m := c.member
	c.mu.Unlock()
	if m != nil {
		notify(m.changed) // as inotify(7) does
	}
}

func (c *computer) releaseAll() {
	c.mu.Lock()
	all := c.containers
	c.containers = nil
	c.mu.Unlock()
	for _, x := range all {
		c.release(x)
	}
}

// live has containers come and go until ctx ends.
func (c *computer) live(ctx context.Context) {
	for sleep(ctx, time.Duration(c.random.IntN(4000))*time.Millisecond) == nil {
		if c.isLate() { // as whoever has silent nodes lose their blocks sees to
			c.releaseAll()
		} else if c.random.IntN(2) == 0 {
			c.attach()
		} else {
			c.detach()
		}
	}
}

// turnOff ends all that runs on the machine.
func (c *computer) turnOff() {
	c.mu.Lock()
	c.isOff = true
	c.mu.Unlock()
	c.loseRun()
}

func (c *computer) turnOn() {
	c.mu.Lock()
	c.isOff = false
	c.mu.Unlock()
	c.start(0)
}

// node returns the identifier by which etcd knows the machine, when its agent has chosen one.
func (c *computer) node() (id string) {
	c.untilDone("a name of "+c.network, func(context.Context) error {
		if id = c.id(); id == "" {
			return fmt.Errorf("its grant says: %s", c.refusal())
		}
		return nil
	})
	return id
}

// history has a fleet live for a time, in which mishaps of a seed happen, up to three at once. Then all is to come back.
func history(t *testing.T, seed uint64, d time.Duration) {
	cryptotest.SetGlobalRandom(t, seed)
	for _, dir := range []string{Dir, filepath.Dir(grant.Path("a")), "/var/lib/cni/networks"} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	f := newFleet(t, seed)
	t.Cleanup(func() {
		for _, c := range f.machines {
			f.say("%s: is %s, granted %v, missing %q", c.network, c.id(), ranges(t, c.network), c.refusal())
		}
		if t.Failed() {
			t.Log(strings.Join(f.lines, "\n"))
		}
	})
	for _, c := range f.machines {
		c.start(0)
		synctest.Wait() // the random names of nodes are those of the seed
	}
	ctx, stop := context.WithCancel(t.Context())
	var living sync.WaitGroup
	for _, c := range f.machines {
		living.Go(func() { c.live(ctx) })
	}
	watching, off := context.WithCancel(t.Context())
	var operator sync.WaitGroup
	operator.Go(func() { f.operate(watching) })
	defer operator.Wait()
	defer off()
	var trouble sync.WaitGroup
	for range 3 {
		trouble.Go(func() {
			for time.Since(f.begin) < d && !t.Failed() {
				time.Sleep(f.seconds(60))
				f.mishap()
			}
		})
		synctest.Wait()
	}
	trouble.Wait()
	stop()
	living.Wait()

	for _, c := range f.machines {
		c.start(0)
		c.releaseAll()
		node := c.node()
		f.untilDone("drain "+c.network, func(ctx context.Context) error { return f.admin.Drain(ctx, node, true) })
	}
	f.untilDone("all blocks come back", func(context.Context) error {
		var left []string
		for _, line := range f.etcd.sorted() {
			if strings.Contains(line, "/v1/"+string(blocks.BlockKey)+"/") || strings.Contains(line, "/v1/"+string(blocks.MineKey)+"/") {
				left = append(left, line)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("hours after all, etcd has %s", strings.Join(left, "; "))
		}
		return nil
	})
	off()
	operator.Wait()
	for _, c := range f.machines {
		c.stop(false)
	}
	_ = f.admin.Close()
	lost := slices.DeleteFunc(slices.Clone(f.lines), func(line string) bool { return !strings.Contains(line, "lost blocks") })
	t.Logf("%d containers got addresses; silent nodes lost blocks %d times", f.gave, len(lost))
	if len(f.holder) > 0 {
		t.Errorf("%v", f.holder)
	}
	if f.gave < 100 {
		t.Errorf("only %d containers got an address, so that the history shows little", f.gave)
	}
}

// In hours of mishaps no address is held twice, and all blocks come back in the end. Each case is an hour, or FAIRLEAD_HOURS,
// in about three seconds; FAIRLEAD_CASE may be any seed.
func TestFleetHistories(t *testing.T) {
	hours := 1
	if text := os.Getenv("FAIRLEAD_HOURS"); text != "" {
		var err error
		if hours, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	nstest.Sample(t, 10, func(seed int) (there bool) {
		there = seed <= 40 || os.Getenv("FAIRLEAD_CASE") != ""
		if there {
			synctest.Test(t, func(t *testing.T) { history(t, uint64(seed), time.Duration(hours)*time.Hour) })
		}
		return there
	})
}

// A lease of etcd is no right: where etcd gives none, or ends them, a node has its block all the same. It is said to be alive
// when there is a lease.
func TestNoLease(t *testing.T) {
	for name, fault := range map[string]leaseFault{"refused": leasesRefused, "ended": leasesEnd} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1)
				c := f.newComputer(1, 0, name, name)
				f.etcd.setLeases(fault)
				c.start(0)
				f.untilDone("a block", func(context.Context) error {
					if !c.isGranted() {
						return fmt.Errorf("its grant says: %s", c.refusal())
					}
					return nil
				})
				if took := time.Since(f.begin); took > time.Minute {
					t.Errorf("a block after %v", took)
				}
				f.etcd.setLeases(leasesGiven)
				f.untilDone("alive", func(ctx context.Context) error {
					v, err := f.admin.Look(ctx)
					if err != nil {
						return err
					}
					if len(v.All(blocks.AliveKey)) != 1 || len(v.All(blocks.NodeKey)) != 1 {
						return fmt.Errorf("etcd has %v", v.All(blocks.NodeKey))
					}
					return nil
				})
				c.stop(false)
				_ = f.admin.Close()
			})
		})
	}
}
