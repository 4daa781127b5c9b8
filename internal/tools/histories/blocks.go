package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
)

// agentVerb is that of an agent, which changes the grant of the chain cluster. Its object has the blocks that it takes out and
// puts in: -0+0-2.
const agentVerb = "agent"

// blocks is how many the grant has at first. Each has addresses for all containers.
const blocks = 3

// blockOf are the ranges of a block.
func blockOf(n int) string { return fmt.Sprintf("10.77.0.%d/29,fd00:77::%x/125", 8*n, 8*n) }

// grantOf is a grant of all blocks, for the boot that a shell puts into it. Those that the node has not are of other nodes.
func grantOf() string {
	var all []string
	for n := range blocks {
		all = append(all, strings.Split(blockOf(n), ",")...)
	}
	return fmt.Sprintf(`{"cluster":"c","node":"n","boot":"%%s","ranges":["%[1]s"],"prefixes":["%[1]s"]}`, strings.Join(all, `","`))
}

// agentArgs are those of the program agent, for the object of an actor.
func agentArgs(object string) (args []string) {
	args = []string{network}
	for i := 0; i+1 < len(object); i += 2 {
		args = append(args, object[i:i+1]+blockOf(int(object[i+1]-'0')))
	}
	return args
}

// agentOf is the path of the program agent, which is built for a program fairlead.
func agentOf(program string) string { return filepath.Join(filepath.Dir(program), "agent") }

// agents adds one that takes blocks out of the grant and puts them in again. At least one is always there, as far as it knows.
// Often it begins with the block that the next container has its address of. Sometimes it is killed, and another one comes.
func (c *casting) agents() {
	in := []bool{true, true, true}
	actions := ""
	for range 1 + c.random.IntN(4) {
		n := c.random.IntN(blocks)
		if actions == "" && c.random.IntN(2) == 0 {
			n = 0
		}
		isLast := !slices.Contains(slices.Delete(slices.Clone(in), n, n+1), true)
		switch {
		case in[n] && isLast:
			continue
		case in[n]:
			actions += fmt.Sprint("-", n)
		default:
			actions += fmt.Sprint("+", n)
		}
		in[n] = !in[n]
	}
	c.script.actors = append(c.script.actors, actor{name: agentVerb, verb: agentVerb, object: actions})
	switch c.random.IntN(6) {
	case 0:
		c.act("continue", agentVerb, c.act("stop", agentVerb, ""))
	case 1:
		kills := c.act("kill", agentVerb, "")
		c.script.actors = append(c.script.actors, actor{"agent-2", agentVerb, "+0-1+1", kills})
	}
}

// granted looks whether each lease, and each address of a living container, is of a block that the grant has.
func (p *play) granted() error {
	if !chains()[p.script.chain].granted {
		return nil
	}
	g, err := grant.OfBoot(network)
	if err != nil {
		return failure{"there is always a grant", err.Error()}
	}
	entries, err := os.ReadDir(filepath.Join("/var/lib/cni/networks", network))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var given []string
	for _, e := range entries {
		given = append(given, e.Name())
	}
	for _, c := range p.containers {
		if c.state == attached && !c.linkCut {
			given = append(given, addressesOf(c.view[links])...)
		}
	}
	for _, text := range given {
		a, err := netip.ParseAddr(text)
		if err == nil && !slices.ContainsFunc(g.Ranges, func(r netip.Prefix) bool { return r.Contains(a) }) {
			return failure{"addresses are of blocks that the node has", fmt.Sprint(a, " is given, and of none of ", g.Ranges)}
		}
	}
	return nil
}

// givenBack looks whether all blocks can leave the grant when no container is left.
func (p *play) givenBack() error {
	if !chains()[p.script.chain].granted {
		return nil
	}
	out, err := exec.Command(agentOf(p.program), agentArgs("-0-1-2")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("agent: %w\n%s", err, out)
	}
	g, err := grant.OfBoot(network)
	if err == nil && len(g.Ranges) > 0 {
		err = failure{"a node can give all blocks back when no container is left", fmt.Sprint("there are ", g.Ranges)}
	}
	return err
}

// addressesOf are those of a container's interfaces.
func addressesOf(lines []string) (list []string) {
	for _, line := range lines {
		if text, is := strings.CutPrefix(line, "cont addr "); is {
			address, _, _ := strings.Cut(text, "/")
			list = append(list, address)
		}
	}
	return list
}
