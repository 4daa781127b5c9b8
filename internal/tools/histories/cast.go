package main

import (
	"fmt"
	"math/rand/v2"
)

// room is how many containers a network has addresses for.
const room = 2

// exceedsRoom reports whether a script has more containers at once than there are addresses.
func (s *script) exceedsRoom() bool {
	n := len(s.attached)
	for _, a := range s.actors {
		if a.verb == "add" && a.after == "" {
			n++
		}
	}
	return n > room
}

// cast makes a script of which a seed decides: what is attached before, and who acts beside whom. The calls for one
// container follow each other, as clause R8 demands of a runtime. No more containers than addresses are there, but for
// those that come while others leave.
func cast(chain string, seed uint64) *script {
	random := rand.New(rand.NewPCG(seed, 1))
	c := &casting{random: random, script: &script{chain: chain, seed: seed, fresh: random.IntN(2) == 0,
		impatient: random.IntN(3) == 0}}
	switch {
	case chains()[chain].dhcp:
		defer c.daemons()
	case chains()[chain].granted && random.IntN(3) > 0:
		defer c.agents()
	}
	const cycle = 23 // a prime, so that each of several chains has all duels by turns
	if n := int(seed % cycle); n < len(duels()) {
		c.duel(duels()[n])
		return c.script
	}
	attached := []int{0, 0, 1, 1, 1, 2} // often the first comes while the last leaves
	c.attach(attached[random.IntN(len(attached))])
	for range 2 + random.IntN(3) {
		c.call()
	}
	if random.IntN(4) > 0 {
		c.event()
	}
	return c.script
}

// attach has so many containers attached before.
func (c *casting) attach(n int) {
	for range n {
		c.script.attached = append(c.script.attached, c.container())
	}
	c.free = append(c.free, c.script.attached...)
}

// A duel is two calls beside each other, and nothing else: most faults need no more.
type duel struct {
	host     string // "fresh": it has had no attachment; "flushed": the packet filter was since
	attached int
	verbs    [2]string
}

// duels are as often in the list as they are played.
func duels() []duel {
	return []duel{
		{"fresh", 0, [2]string{"add", "add"}},
		{"", 0, [2]string{"add", "add"}},
		{"", 1, [2]string{"add", "del"}},
		{"", 1, [2]string{"add", "del"}},
		{"", 1, [2]string{"add", "del"}},
		{"", 1, [2]string{"add", "del"}},
		{"", 2, [2]string{"del", "del"}},
		{"", 2, [2]string{"add", "del"}}, // there is no address before the other one leaves
		{"", 2, [2]string{"add", "del"}},
		{"", 1, [2]string{"add", "gc"}},
		{"", 1, [2]string{"del", "gc"}},
		{"", 1, [2]string{"add", "repair"}},
		{"", 1, [2]string{"del", "repair"}},
		{"flushed", 1, [2]string{"add", "repair"}},
		{"flushed", 1, [2]string{"del", "repair"}},
		{"flushed", 1, [2]string{"del", "repair"}},
	}
}

// duel adds the calls of a duel.
func (c *casting) duel(d duel) {
	// Who is attached has had done to the host what an earlier attachment does to it.
	c.script.fresh = d.host == "fresh" || d.attached > 0
	c.script.flushed = d.host == "flushed"
	c.attach(d.attached)
	for _, verb := range d.verbs {
		switch verb {
		case "add":
			c.act(verb, c.container(), "")
		case "del":
			id, _ := c.take()
			c.act(verb, id, "")
		default:
			c.act(verb, "", "")
		}
	}
}

// daemons adds the DHCP daemon. Mostly it is killed once or twice, and another one comes. Sometimes none comes at last.
func (c *casting) daemons() {
	name := c.act(daemonVerb, "", "")
	if c.random.IntN(5) == 0 {
		c.act("continue", name, c.act("stop", name, ""))
	}
	for n := range c.random.IntN(3) {
		name = c.act(daemonVerb, fmt.Sprint(n+2), c.act("kill", name, ""))
	}
	if c.random.IntN(8) == 0 {
		c.act("kill", name, "")
	}
}

type casting struct {
	random *rand.Rand
	script *script
	made   int      // containers
	used   int      // addresses
	free   []string // attached containers that no actor concerns yet
}

// container is a new one, for which there is an address.
func (c *casting) container() string {
	c.used++
	return c.successor()
}

// successor is a new one that comes in another's place.
func (c *casting) successor() string {
	c.made++
	return fmt.Sprintf("c%d", c.made)
}

func (c *casting) act(verb, object, after string) string {
	name := verb
	if object != "" {
		name += "-" + object
	}
	for _, a := range c.script.actors {
		if a.name == name {
			return name
		}
	}
	c.script.actors = append(c.script.actors, actor{name, verb, object, after})
	return name
}

// take is an attached container that no actor concerns yet.
func (c *casting) take() (id string, ok bool) {
	if len(c.free) == 0 {
		return "", false
	}
	id, c.free = c.free[0], c.free[1:]
	return id, true
}

// call adds an actor that calls fairlead.
func (c *casting) call() {
	switch n := c.random.IntN(13); {
	case n < 4 && c.used < room:
		id := c.container()
		adds := c.act("add", id, "")
		if c.random.IntN(4) == 0 {
			c.act("del", id, adds)
		}
	case n < 8:
		id, ok := c.take()
		if !ok {
			return
		}
		deletes := c.act("del", id, "")
		switch c.random.IntN(4) {
		case 0: // the same container is started again
			c.act("add", id, deletes)
		case 1: // and another one in its place
			c.act("add", c.successor(), deletes)
		case 2: // which does not wait, and may find no address
			c.act("add", c.successor(), "")
		}
	case n < 9:
		if id, ok := c.take(); ok {
			c.act("check", id, "")
		}
	case n < 10: // of a container that the runtime has forgotten, or whose DEL is late
		if id, ok := c.take(); ok {
			c.act("gc", id, "")
			if c.random.IntN(2) == 0 {
				c.act("del", id, "")
			}
		}
	case n < 11:
		c.act("gc", "", "")
	default:
		c.act("repair", "", "")
	}
}

// event adds something that happens to the host, or to an actor.
func (c *casting) event() {
	attached, actors := c.script.attached, c.script.actors
	switch n := c.random.IntN(16); {
	case n >= 14 && len(actors) > 0:
		victim := actors[c.random.IntN(len(actors))].name
		c.act("continue", victim, c.act("stop", victim, ""))
	case n < 6 && len(actors) > 0:
		victim := actors[c.random.IntN(len(actors))]
		kills := c.act("kill", victim.name, "")
		if victim.verb == "add" || victim.verb == "del" {
			again := "again-" + victim.object
			for i, a := range c.script.actors {
				if a.after == victim.name {
					c.script.actors[i].after = again
				}
			}
			c.script.actors = append(c.script.actors, actor{again, "del", victim.object, kills})
		}
	case n < 9:
		c.act("repair", "", c.act("flush", "", ""))
	case n < 10 && len(attached) > 0:
		c.act("unlink", attached[c.random.IntN(len(attached))], "")
	case n < 13:
		c.act("room", "", c.act("full", "", ""))
	default:
		c.act("reboot", "", "")
	}
}
