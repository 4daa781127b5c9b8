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
	f := &fleet{T: t, etcd: newSimulated(), random: rand.New(rand.NewPCG(seed, 0)), begin: time.Now(), holder: map[netip.Addr]string{}}
	f.admin = f.store(f.newLink(seed, 100))
	config := blocks.Config{Pools: []blocks.Pool{{Name: "p", Prefix: netip.MustParsePrefix("10.9.0.0/25"), Bits: 28, Parts: 4}}}
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
	limit := time.Now().Add(time.Hour)
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
	m.unwatched, m.isNewEnough = true, true
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
			m.Heard()
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
	if c.isOff || len(c.containers) >= 20 {
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
		if c.random.IntN(2) == 0 {
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

// seconds is a time by chance.
func (f *fleet) seconds(most int) time.Duration {
	return time.Duration(f.chance(most*1000)) * time.Millisecond
}

func (f *fleet) chance(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.random.IntN(n)
}

// A mishap is what happens to a fleet. It ends when all machines are as before.
type mishap struct {
	name string
	do   func(f *fleet, c *computer) // c is nil if it is one of etcd
	isOf func(f *fleet, c *computer) *sync.Mutex
}

func ofMachine(_ *fleet, c *computer) *sync.Mutex { return &c.busy }
func ofEtcd(f *fleet, _ *computer) *sync.Mutex    { return &f.etcdBusy }

var mishaps = []mishap{
	{"an agent is killed", func(f *fleet, c *computer) {
		c.stop(true)
		time.Sleep(f.seconds(20))
		c.start(0)
	}, ofMachine},
	{"an agent is killed again and again as it starts", func(f *fleet, c *computer) {
		for n := range 8 {
			c.stop(f.chance(2) == 0)
			c.start(n + 1)
			time.Sleep(f.seconds(3))
		}
		c.stop(true)
		c.start(0)
	}, ofMachine},
	{"a machine boots", func(f *fleet, c *computer) {
		c.turnOff()
		time.Sleep(f.seconds(100))
		c.turnOn()
	}, ofMachine},
	{"the way to etcd is cut", func(f *fleet, c *computer) {
		c.link.cut(true)
		time.Sleep(f.seconds(90))
		c.link.cut(false)
	}, ofMachine},
	{"etcd is down", func(f *fleet, _ *computer) {
		f.etcd.setDown(true)
		time.Sleep(f.seconds(60))
		f.etcd.setDown(false)
	}, ofEtcd},
	{"a node is drained", func(f *fleet, c *computer) {
		node := c.node()
		f.untilDone("drain "+c.network, func(ctx context.Context) error { return f.admin.Drain(ctx, node, true) })
		time.Sleep(f.seconds(200))
		f.untilDone("drain no more "+c.network, func(ctx context.Context) error { return f.admin.Drain(ctx, node, false) })
	}, ofMachine},
	{"a node is forgotten, and returns", func(f *fleet, c *computer) {
		node := c.node()
		c.turnOff()
		f.forgetNode(node)
		time.Sleep(f.seconds(900))
		c.turnOn()
		time.Sleep(f.seconds(60))
		if n := len(ranges(f.T, c.network)); n > 0 && f.etcd.hasForgotten(node) {
			f.Errorf("%s was forgotten, and is granted %d ranges", c.network, n)
		}
		c.turnOff()
		c.loseDisk()
		c.turnOn()
	}, ofMachine},
	{"a machine ends while the way to etcd is cut, and is forgotten at once", func(f *fleet, c *computer) {
		c.link.cut(true)
		time.Sleep(f.seconds(10))
		c.turnOff()
		f.forget(c)
		c.loseDisk()
		time.Sleep(f.seconds(60))
		c.turnOn()
	}, ofMachine},
	{"a machine gets a new disk", func(f *fleet, c *computer) {
		node := c.node()
		c.turnOff()
		c.loseDisk()
		c.turnOn()
		time.Sleep(f.seconds(60))
		f.forgetNode(node)
	}, ofMachine},
	{"a disk is copied to another machine", func(f *fleet, c *computer) {
		twin := f.newComputer(uint64(f.chance(1<<30)), 0, c.host, "twin"+strconv.Itoa(f.chance(1<<30)))
		c.node()
		b, err := os.ReadFile((&host{network: c.network}).journalPath())
		if err != nil {
			f.Fatal(err)
		}
		if err := os.WriteFile((&host{network: twin.network}).journalPath(), b, 0o600); err != nil {
			f.Fatal(err)
		}
		twin.start(0)
		ctx, stop := context.WithTimeout(f.Context(), f.seconds(100))
		defer stop()
		twin.live(ctx)
		twin.turnOff()
	}, ofMachine},
	{"a disk is restored from a copy", func(f *fleet, c *computer) {
		c.node()
		b, err := os.ReadFile((&host{network: c.network}).journalPath())
		if err != nil {
			f.Fatal(err)
		}
		time.Sleep(f.seconds(100))
		c.turnOff()
		if err := os.WriteFile((&host{network: c.network}).journalPath(), b, 0o600); err != nil {
			f.Fatal(err)
		}
		c.turnOn()
		time.Sleep(f.seconds(60))
		if m := c.refusal(); m == "" {
			return // nothing was written after the copy
		}
		c.turnOff()
		f.forget(c)
		c.loseDisk()
		c.turnOn()
	}, ofMachine},
	{"etcd is restored from a copy", func(f *fleet, _ *computer) {
		copied := f.etcd.backUp()
		time.Sleep(f.seconds(1000))
		f.etcd.restore(copied)
		f.untilDone("readopt", f.readopt)
	}, ofEtcd},
}

// readopt ends what began when etcd was found restored. Nodes that were forgotten after the copy was made are in it again.
func (f *fleet) readopt(ctx context.Context) error {
	v, err := f.admin.Look(ctx)
	if err != nil {
		return err
	}
	names := v.Names()
	for _, c := range f.machines { // docs/fleet.md has the operator wait for agents that joined after the copy was made
		if id := c.id(); c.isGranted() && names[id] == "" {
			return fmt.Errorf("%s has not joined again", c.network)
		}
	}
	var gone []string
	for _, n := range v.Awaited() {
		isThere := slices.ContainsFunc(f.machines, func(c *computer) bool { return c.id() == n.ID })
		if !isThere {
			gone = append(gone, n.ID)
		}
	}
	awaited, err := f.admin.Readopt(ctx, gone...)
	if err == nil && len(awaited) > 0 {
		err = fmt.Errorf("%d nodes are awaited, such as %s", len(awaited), awaited[0].Name)
	}
	if err != nil {
		return err
	}
	for _, id := range gone {
		f.forgetNode(id)
	}
	return nil
}

func (f *fleet) forgetNode(id string) {
	f.untilDone("forget "+id, func(ctx context.Context) error {
		if v, err := f.admin.Look(ctx); err != nil || v.Names()[id] == "" {
			return err // a copy of etcd may not have it
		}
		return f.admin.Forget(ctx, id)
	})
}

// operate forgets nodes whose machine is another node by now, as an operator does who is told that a name is taken.
func (f *fleet) operate(ctx context.Context) {
	for sleep(ctx, 30*time.Second) == nil {
		v, err := f.admin.Look(ctx)
		if err != nil {
			continue
		}
		for _, n := range v.Members() {
			isThere := slices.ContainsFunc(f.machines, func(c *computer) bool { return c.id() == n.ID })
			if !n.Alive && !isThere { // also one whose forgetting did not come to its end
				f.say("the operator forgets %s: %v", n.Name, f.admin.Forget(ctx, n.ID))
			}
		}
	}
}

// id is the identifier of the machine's node. Empty: its agent has chosen none yet.
func (c *computer) id() string {
	h := &host{network: c.network}
	if _, err := os.Stat(h.journalPath()); err != nil {
		return ""
	}
	j, err := h.loadJournal()
	if err != nil {
		c.Fatal(err)
	}
	return j.Node
}

// mishap has one happen, unless another one goes on there.
func (f *fleet) mishap() {
	m, c := mishaps[f.chance(len(mishaps))], f.machines[f.chance(len(f.machines))]
	lock := m.isOf(f, c)
	if !lock.TryLock() {
		return
	}
	defer lock.Unlock()
	f.say("%s: %s", c.network, m.name)
	if lock == &c.busy {
		c.node() // no journal is of a node that another one's name keeps out
	}
	m.do(f, c)
	f.say("%s: over: %s", c.network, m.name)
}

func (f *fleet) forget(c *computer) {
	f.forgetNode(c.node())
}

// isGranted reports whether containers of the machine may have addresses.
func (c *computer) isGranted() bool {
	g, err := grant.OfBoot(c.network)
	return err == nil && len(g.Ranges) > 0
}

// refusal says why the node gets no ranges.
func (c *computer) refusal() string {
	g, err := grant.OfBoot(c.network)
	if err != nil || len(g.Ranges) > 0 {
		return ""
	}
	return g.Missing
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
			return fmt.Errorf("an hour after all, etcd has %s", strings.Join(left, "; "))
		}
		return nil
	})
	off()
	operator.Wait()
	for _, c := range f.machines {
		c.stop(false)
	}
	_ = f.admin.Close()
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
