package fleet

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/etcd"
)

func drainVerb() verb {
	var undo bool
	return verb{name: "drain", operands: "NODE", options: "[--undo]", least: 1, most: 1,
		does:  "Let a node claim no more addresses, and give back those that no container has.",
		flags: func(c *call) { c.flags.BoolVar(&undo, "undo", false, "let the node claim addresses again") },
		ask: func(ctx context.Context, c *call, s *etcd.Store, v *etcd.View, operands []string) error {
			n, err := memberOf(v, operands[0])
			if err != nil {
				return err
			}
			if err := s.Drain(ctx, n.ID, !undo); err != nil {
				return err
			}
			return c.print(map[string]any{"node": n.Name, "drain": !undo, "blocks": n.Blocks}, func(w io.Writer) {
				if undo {
					printf(w, "node %s claims addresses again\n", n.Name)
					return
				}
				printf(w, "node %s has %s. It gives each block back when no container has an address of it: fairlead cluster blocks %[1]s\n",
					n.Name, uses(n, time.Now()))
			})
		}}
}

// memberOf returns the node with a name or an identifier. It returns an error if two have the name.
func memberOf(v *etcd.View, name string) (etcd.MemberInfo, error) {
	var same []string
	for _, n := range v.Members() {
		if n.ID == name {
			return n, nil
		}
		if n.Name == name {
			same = append(same, fmt.Sprintf("%s (agent: %s, %d blocks)", n.ID, agentState(n), n.Blocks))
		}
	}
	if len(same) > 1 {
		return etcd.MemberInfo{}, fmt.Errorf("%d nodes have the name %s: say one of their identifiers: %s", len(same), name,
			strings.Join(same, ", "))
	}
	return v.Member(name)
}

// uses says what a node owns, and how long ago it said how many addresses are in use. Nodes say small changes late.
func uses(n etcd.MemberInfo, now time.Time) string {
	ago := ""
	if age := now.Sub(time.Unix(n.LeasedAt, 0)).Round(time.Minute); n.LeasedAt != 0 && age > 0 {
		ago = " " + strings.TrimSuffix(age.String(), "0s") + " ago"
	}
	return fmt.Sprintf("%d blocks, and said%s that %d addresses were in use", n.Blocks, ago, n.Leased)
}

func forgetVerb() verb {
	var dead bool
	return verb{name: "forget", operands: "NODE", options: "--confirmed-dead", least: 1, most: 1,
		does: "Take the addresses of a node that does not exist any more. Others get them ten minutes later.",
		flags: func(c *call) {
			c.flags.BoolVar(&dead, "confirmed-dead", false, "you know that the node's containers have ended")
		},
		ask: func(ctx context.Context, c *call, s *etcd.Store, v *etcd.View, operands []string) error {
			n, err := memberOf(v, operands[0])
			if err != nil {
				return err
			}
			has := uses(n, time.Now())
			switch {
			case n.Alive:
				return fmt.Errorf("the agent of node %s runs: it has %s. Drain the node, and end its agent before", n.Name, has)
			case !dead:
				return fmt.Errorf("node %s has %s. If its containers still run, others get their addresses: say --confirmed-dead if "+
					"they have ended", n.Name, has)
			}
			if err := s.Forget(ctx, n.ID); err != nil {
				return err
			}
			return c.print(map[string]any{"node": n.Name, "blocks": n.Blocks}, func(w io.Writer) {
				printf(w, "node %s is forgotten; others get its %d blocks in ten minutes\n", n.Name, n.Blocks)
			})
		}}
}

func readoptVerb() verb {
	var done bool
	var without string
	return verb{name: "readopt",
		options: "[--done] [--without NODE,…]",
		does:    "After etcd was restored from a copy, list the nodes that have not said yet what they have, or end the wait for them.",
		flags: func(c *call) {
			c.flags.BoolVar(&done, "done", false, "let nodes claim again, if all have said what they have")
			c.flags.StringVar(&without, "without", "", "`NODE`,… that do not have to say it, because their machines are off")
		},
		ask: func(ctx context.Context, c *call, s *etcd.Store, v *etcd.View, operands []string) error {
			if !v.Restored() {
				return c.print(map[string]any{"restored": false}, func(w io.Writer) {
					fmt.Fprintln(w, "etcd was not restored, as far as its nodes know: nothing is to be done")
				})
			}
			off, err := machinesOff(v, etcd.SplitList(without))
			if err != nil {
				return err
			}
			if done {
				awaited, err := s.Readopt(ctx, off...)
				if err == nil && len(awaited) > 0 {
					err = fmt.Errorf("%s. %d nodes are awaited: fairlead cluster readopt lists them", silence(awaited[0]), len(awaited))
				}
				if err != nil {
					return err
				}
				return c.print(map[string]any{"restored": true, "done": true}, func(w io.Writer) {
					fmt.Fprintln(w, "nodes claim addresses again")
				})
			}
			awaited := v.Awaited()
			return c.print(map[string]any{"restored": true, "done": false, "awaited": awaited}, func(w io.Writer) {
				for _, n := range awaited {
					printf(w, "%s\n", silence(n))
				}
				fmt.Fprintln(w, "no node claims addresses until fairlead cluster readopt --done; etcd does not know the nodes that joined "+
					"after the copy was made: their agents have to run before")
			})
		}}
}

// machinesOff returns the identifiers of nodes, none of which may have an agent.
func machinesOff(v *etcd.View, names []string) (ids []string, err error) {
	for _, name := range names {
		n, err := memberOf(v, name)
		if err != nil {
			return nil, err
		}
		if n.Alive {
			return nil, fmt.Errorf("--without: the agent of node %s runs: wait until it has said what the node has", n.Name)
		}
		ids = append(ids, n.ID)
	}
	return ids, nil
}

// silence says what to do about a node that has not said what it has.
func silence(n etcd.MemberInfo) string {
	if n.Alive {
		return "node " + n.Name + " has not said yet what it has, and its agent runs: fairlead cluster status there says what it waits for"
	}
	return "node " + n.Name + " has not said what it has, and its agent does not run: start it, forget the node, or say --without " + n.Name +
		" if the machine is off"
}
