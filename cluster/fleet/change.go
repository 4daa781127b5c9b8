package fleet

import (
	"context"
	"fmt"
	"io"

	"github.com/fairlead-cni/fairlead/cluster/etcd"
)

func drainVerb() verb {
	var undo bool
	return verb{name: "drain", operands: "NODE", least: 1, most: 1,
		does:  "Let a node claim no more addresses, and give back those that no container has.",
		flags: func(c *call) { c.flags.BoolVar(&undo, "undo", false, "let the node claim addresses again") },
		ask: func(ctx context.Context, c *call, s *etcd.Store, v *etcd.View, operands []string) error {
			n, err := v.Member(operands[0])
			if err != nil {
				return err
			}
			if err := s.Drain(ctx, n.ID, !undo); err != nil {
				return err
			}
			return c.print(map[string]any{"node": n.Name, "drain": !undo, "blocks": n.Blocks}, func(w io.Writer) {
				if undo {
					fmt.Fprintf(w, "node %s claims addresses again\n", n.Name)
					return
				}
				fmt.Fprintf(w, "node %s has %d blocks with %d addresses in use, and gives each back when it is empty: fairlead cluster "+
					"blocks %s\n", n.Name, n.Blocks, n.Leased, n.Name)
			})
		}}
}

func forgetVerb() verb {
	var dead bool
	return verb{name: "forget", operands: "NODE", least: 1, most: 1,
		does: "Take the addresses of a node that does not exist any more. Others get them ten minutes later.",
		flags: func(c *call) {
			c.flags.BoolVar(&dead, "confirmed-dead", false, "you know that the node's containers have ended")
		},
		ask: func(ctx context.Context, c *call, s *etcd.Store, v *etcd.View, operands []string) error {
			n, err := v.Member(operands[0])
			if err != nil {
				return err
			}
			has := fmt.Sprintf("%d blocks, and said that %d addresses are in use", n.Blocks, n.Leased)
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
				fmt.Fprintf(w, "node %s is forgotten; others get its %d blocks in ten minutes\n", n.Name, n.Blocks)
			})
		}}
}

func readoptVerb() verb {
	var done bool
	return verb{name: "readopt",
		does: "After etcd was restored from a copy, list the nodes that have not said yet what they have, or end the wait for them.",
		flags: func(c *call) {
			c.flags.BoolVar(&done, "done", false, "all nodes that have containers have said what they have: let nodes claim again")
		},
		ask: func(ctx context.Context, c *call, s *etcd.Store, v *etcd.View, operands []string) error {
			if !v.Restored() {
				return c.print(map[string]any{"restored": false}, func(w io.Writer) {
					fmt.Fprintln(w, "etcd was not restored, as far as its nodes know: nothing is to be done")
				})
			}
			var silent []etcd.MemberInfo
			for _, n := range v.Members() {
				if !n.Alive && n.State != etcd.StateForgotten {
					silent = append(silent, n)
				}
			}
			if done && len(silent) > 0 {
				return fmt.Errorf("the agent of node %s does not run, and nobody knows which addresses its containers have: start it, or "+
					"forget the node", silent[0].Name)
			}
			if done {
				if err := s.Readopted(ctx); err != nil {
					return err
				}
			}
			return c.print(map[string]any{"restored": true, "done": done, "silent": silent}, func(w io.Writer) {
				if done {
					fmt.Fprintln(w, "nodes claim addresses again")
					return
				}
				for _, n := range silent {
					fmt.Fprintf(w, "the agent of node %s does not run: start it, or forget the node\n", n.Name)
				}
				fmt.Fprintln(w, "nobody claims addresses until fairlead cluster readopt --done")
			})
		}}
}
