package faults

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// killedAt runs the node's agent until it says a text, or kills it before its call number at of those that change the
// state of the kernel or of a file. It reports whether there was such a call.
func (n *node) killedAt(at int, text string) (killed bool) {
	n.c.t.Helper()
	line := n.agentLine()
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Stderr = killer{cmd, text}
	killed, err := interrupted(cmd, at, func(pid int) unix.Errno {
		unix.Kill(pid, unix.SIGKILL)
		return 0
	})
	if err == nil {
		n.c.t.Error("the agent ended by itself")
	}
	return killed
}

// interrupted runs a command of the node's agent. At call number at of those that change the state of the kernel or of a
// file, it asks what the call is to answer. It reports whether there was such a call.
func interrupted(cmd *exec.Cmd, at int, by func(pid int) unix.Errno) (there bool, err error) {
	count := 0
	err = nstest.WithFaults(cmd, func(s nstest.Syscall) unix.Errno {
		inFile := s.Name == "write" && s.Room || s.Name == "openat" && s.Room
		message := s.Name == "sendto" // which a question is, too
		other := s.Name == "renameat" || s.Name == "unlinkat" || s.Name == "mkdirat"
		if s.By != "fairlead-agent" || !inFile && !message && !other {
			return 0
		}
		if count++; count != at {
			return 0
		}
		there = true
		return by(s.PID)
	}, "sendto", "write", "openat", "renameat", "unlinkat", "mkdirat")
	return there, err
}

// A killer kills a program when it says a text.
type killer struct {
	cmd  *exec.Cmd
	text string
}

func (k killer) Write(b []byte) (int, error) {
	if strings.Contains(string(b), k.text) {
		k.cmd.Process.Signal(syscall.SIGKILL)
	}
	return len(b), nil
}

// state is what the node has on its way to the others, as ip(8), bridge(8) and nft(8) show it.
func (n *node) state() string {
	n.c.t.Helper()
	return n.run(`ip -d link show fairlead-vx 2>&1 | sed 's/^[0-9]*: //'; ip addr show fairlead-vx 2>&1 | grep 'scope global' || true
ip neigh show dev fairlead-vx nud permanent 2>&1 | sort; bridge fdb show dev fairlead-vx 2>&1 | sort; ip route show proto 118 | sort
nft list ruleset; cat /run/fairlead/cluster/pods.json /var/lib/cni/fairlead/cluster/pods.json || true`)
}

// A killed agent leaves nothing that the next one does not correct, wherever it was killed: at its first start on a node
// and when the cluster has changed. Meanwhile no packet is lost between containers whose nodes have not changed.
func TestKilledAnywhere(t *testing.T) {
	nstest.Apart(t, "first", func(t *testing.T) {
		c := newCluster(t)
		n := c.newNode(1)
		n.join()
		c.join(2)
		want := ""
		nstest.Sample(t, 7, func(at int) bool {
			killed := n.killedAt(at, programmed)
			n.startAgentUntil(programmed) // with the cluster's answer, which the grant needs
			n.has(2)
			if got := n.state(); want == "" {
				want = got
			} else if got != want {
				t.Fatalf("killed at call %d, the next agent left another state: %s", at, contract.Difference(want, got))
			}
			n.agent.kill()
			n.run("ip link del fairlead-vx; nft flush ruleset; rm -r /run/fairlead/* /var/lib/cni/*")
			t.Log(at, "calls")
			return killed
		})
	})
	nstest.Apart(t, "change", func(t *testing.T) {
		p := newPair(t)
		p.a.agent.kill()
		before := overloaded(t)
		former := 0
		nstest.Sample(t, 7, func(at int) bool {
			p.api.set("moves", []string{fmt.Sprintf("198.51.100.%d", at%250+1)}, []string{"10.99.0.0/24"})
			p.api.set(fmt.Sprint("joins", at), []string{"198.51.100.253"}, []string{fmt.Sprintf("10.98.%d.0/24", at)})
			if former > 0 {
				p.api.remove(fmt.Sprint("joins", former))
			}
			killed := p.a.killedAt(at, "made the ways to other nodes")
			p.flow(fmt.Sprintf("killed at call %d", at))
			p.a.startAgent()
			p.a.until(fmt.Sprintf("10.98.%d.0/24", at), true)
			if former > 0 { // a node that is gone
				p.a.until(fmt.Sprintf("10.98.%d.0/24", former), false)
			}
			if !p.a.whole() {
				t.Fatalf("killed at call %d, the next agent has not made all whole", at)
			}
			p.a.agent.kill()
			t.Log(at, "calls")
			former = at
			return killed
		})
		for _, s := range p.streams {
			lost, outage := s.stop()
			if dropped := overloaded(t) - before; lost > dropped {
				t.Errorf("%d packets are lost in %v, want none; this busy machine dropped %d", lost, outage, dropped)
			}
		}
	})
}

// An agent of whose calls one fails corrects it by itself, or ends and says why.
func TestFailsAnywhere(t *testing.T) {
	c := newCluster(t)
	n := c.newNode(1)
	n.join()
	c.join(2)
	fresh := func() { n.run("ip link del fairlead-vx; nft flush ruleset; rm -r /run/fairlead/* /var/lib/cni/*") }
	n.startAgentUntil(programmed)
	want := n.state()
	n.agent.kill()
	fresh()
	faults := nstest.Faults()
	nstest.Sample(t, 7, func(at int) (fired bool) {
		errno := faults[at%len(faults)]
		ctx, stop := context.WithCancel(t.Context())
		line := n.agentLine()
		agent := exec.CommandContext(ctx, line[0], line[1:]...)
		var said bytes.Buffer
		agent.Stderr = &said
		ended := make(chan error, 1)
		go func() {
			var err error
			fired, err = interrupted(agent, at, func(int) unix.Errno { return errno })
			ended <- err
		}()
		running := true
		for end := nstest.Deadline(t); contract.Difference(want, n.state()) != ""; { // in whatever order
			select {
			case err := <-ended:
				if running = false; err == nil {
					t.Errorf("call %d is %s, and the agent ends without an error", at, unix.ErrnoName(errno))
				}
				n.startAgentUntil(programmed)
			case <-time.After(20 * time.Millisecond):
			}
			if time.Now().After(end) {
				t.Fatalf("call %d is %s, and there is another state: %s\n%s", at, unix.ErrnoName(errno),
					contract.Difference(want, n.state()), said.String())
			}
		}
		if stop(); running {
			<-ended
		} else {
			n.agent.kill() // before its files are removed
		}
		fresh()
		return fired
	})
}
