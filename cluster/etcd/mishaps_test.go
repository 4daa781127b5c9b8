package etcd

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
)

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
	{"a node is silent for longer than it may be", func(f *fleet, c *computer) {
		if !f.isTimed {
			return
		}
		how := f.chance(3)
		switch how {
		case 0:
			c.link.cut(true)
		case 1:
			c.stop(true)
		case 2:
			c.turnOff()
		}
		time.Sleep(time.Hour + f.seconds(3600))
		switch how {
		case 0:
			c.link.cut(false)
		case 1:
			c.start(0)
		case 2:
			c.turnOn()
		}
	}, ofMachine},
	{"etcd is restored from a copy", func(f *fleet, _ *computer) {
		if f.isTimed && f.chance(8) > 0 { // until a silent node returns to say what it has, nobody loses anything
			return
		}
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

// now is the clock of a machine, which its boots do not set back.
func (c *computer) now() int64 { return int64(time.Since(c.begin)) }

// isLate reports whether containers of the machine may get no address any more, as the plugin finds, and may not go on.
func (c *computer) isLate() bool {
	g, err := grant.OfBoot(c.network)
	if err != nil {
		return false
	}
	for _, end := range g.Until {
		if c.now() >= end {
			return true
		}
	}
	return false
}

// refusal says why the node gets no ranges.
func (c *computer) refusal() string {
	g, err := grant.OfBoot(c.network)
	if err != nil || len(g.Ranges) > 0 {
		return ""
	}
	return g.Missing
}
