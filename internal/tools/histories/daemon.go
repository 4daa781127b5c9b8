package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/dhcp/rpc"
)

// daemonVerb is that of the DHCP daemon, and the name of the actor that it is from the beginning.
const daemonVerb = "daemon"

// newDaemon is the DHCP daemon. It has time for a server's answer while its own steps wait for their turns.
func newDaemon(a actor, impatient bool) *player {
	d := newPlayer(a, impatient)
	d.args = []string{"dhcp", "daemon", "-resendtimeout", "1h", "-timeout", "1h"}
	return d
}

// startDaemon starts the DHCP daemon, and waits until it is ready. Its steps do not wait for turns yet. No other process holds its socket for it,
// as systemd does: a call that comes while there is no daemon is to find none.
func (s *stage) startDaemon() error {
	const socket = "@histories"
	ready, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: socket})
	if err != nil {
		return err
	}
	defer ready.Close()
	told := make(chan error, 1)
	go func() {
		_, err := ready.Read(make([]byte, 1))
		told <- err
	}()

	d := newDaemon(actor{name: daemonVerb, verb: daemonVerb}, false)
	d.env = []string{"NOTIFY_SOCKET=" + socket}
	d.begun, s.daemon = true, d
	d.start(s.program, s.said)
	for {
		select {
		case n := <-s.said: // the first step tells its process
			n.of.observe(n)
			if d.ended {
				return fmt.Errorf("the DHCP daemon ended: %s", d)
			}
			if err := d.setFree(); err != nil {
				return err
			}
		case err := <-told:
			return err
		}
	}
}

// daemonOf is the player of an actor: the DHCP daemon that runs, whose steps wait for their turns from now on, or one that comes
// later.
func (p *play) daemonOf(a actor) (*player, error) {
	if p.daemon == nil {
		return nil, fmt.Errorf("the chain %s has no DHCP daemon", p.script.chain)
	}
	if a.after != "" {
		return newDaemon(a, p.script.impatient), nil
	}
	p.daemon.actor, p.daemon.impatient = a, p.script.impatient
	clear(p.daemon.made)
	clear(p.daemon.used)
	p.daemon.free.Store(false)
	return p.daemon, nil
}

// listens reports whether a DHCP daemon does.
func listens() bool {
	if _, err := os.Lstat(rpc.DefaultSocket); err != nil {
		return false
	}
	all, err := os.ReadFile("/proc/thread-self/net/unix")
	const accepting = "00010000"
	return err == nil && slices.ContainsFunc(strings.Split(string(all), "\n"), func(line string) bool {
		// ffff8880: 00000002 00000000 00010000 0001 01 4711 /run/cni/dhcp.sock
		word := strings.Fields(line)
		return len(word) == 8 && word[3] == accepting && word[7] == rpc.DefaultSocket
	})
}

// asking notes that a call is about to ask the DHCP daemon. DEL and GC do without one.
func (p *play) asking(each *player, s *step) {
	each.asks = each.verb != daemonVerb && strings.HasPrefix(s.name, connectsDaemon)
	if !each.asks {
		return
	}
	each.asked = true
	if !listens() && slices.Contains([]string{"add", "check", "repair"}, each.verb) {
		each.excused = true
	}
}

// unanswered notes that a DHCP daemon dies: who has asked it may fail.
func (p *play) unanswered() {
	p.noDaemon = true
	for _, each := range p.players {
		if each.asks && !each.ended {
			each.excused = true
		}
	}
}

// answers waits for what calls do that the DHCP daemon may have answered.
func (p *play) answers() error {
	for _, each := range p.players {
		if each.asks {
			if err := p.awaitPlayer(each); err != nil {
				return err
			}
		}
	}
	return nil
}

// idle reports whether a player goes on only after another one: a call that asks the DHCP daemon, which waits for its turn,
// and the daemon itself, when no call asks it. While a server is about to answer, the daemon seems to be idle, too.
func (p *play) idle(each *player) bool {
	const looks = 2
	sleeps := func() bool { return p.silent >= looks && each.pid != 0 && each.asleep() }
	if each.verb == daemonVerb {
		return sleeps()
	}
	if !each.asked || !p.daemon.stopped && p.daemon.next() == nil {
		return false
	}
	return each.asks || sleeps()
}

// unnoted reports a lease of a container whose DEL succeeded, and that the next DHCP daemon is not told to end.
func (p *play) unnoted(c *container) error {
	if p.filled { // which left no room for a note, and the lease ends with its link
		return nil
	}
	left := leases(c)
	told := func(path string) bool { return strings.HasSuffix(path, dhcp.NoteSuffix) }
	if len(left) == 0 || slices.ContainsFunc(left, told) {
		return nil
	}
	return failure{"a lease is released, or the next DHCP daemon is told", c.id + " is deleted, and left are\n" +
		strings.Join(left, "\n")}
}

// leases are the files of a container's leases, and of the note that it was deleted. What a daemon has not finished, the next
// one removes.
func leases(c *container) []string {
	paths, _ := filepath.Glob(filepath.Join(dhcp.StateDir, "*"+c.hash+"*"))
	return slices.DeleteFunc(paths, func(path string) bool { return strings.HasSuffix(path, ".new") })
}

// finishDaemon has a DHCP daemon run that waits for no turns, and waits until it has handled what was deleted while there was none.
func (p *play) finishDaemon() error {
	if p.daemon == nil {
		return nil
	}
	if p.daemon.ended {
		if err := p.startDaemon(); err != nil {
			return failure{"the DHCP daemon starts", err.Error()}
		}
	} else if err := p.daemon.setFree(); err != nil {
		return err
	}
	go func() { // a step that was on its way
		for n := range p.said {
			if n.step != nil {
				_ = n.step.held.Answer(0)
			}
		}
	}()
	if p.daemon.stopped {
		if err := p.daemon.goOn(); err != nil {
			return err
		}
	}
	for _, c := range p.containers {
		if err := p.released(c); err != nil {
			return err
		}
	}
	p.noDaemon, p.seen = false, seen{}
	return nil
}

// released waits until no lease of a container is left, if it is deleted.
func (p *play) released(c *container) error {
	const (
		pause = 20 * time.Millisecond
		never = 500 // looks at a daemon that does nothing
	)
	for asleep := 0; c.state == absent && len(leases(c)) > 0; <-time.After(pause) {
		if asleep++; !p.daemon.asleep() {
			asleep = 0
		}
		if asleep > never {
			return failure{"the next DHCP daemon releases what was deleted while there was none", c.id + " is deleted, and left are\n" +
				strings.Join(leases(c), "\n")}
		}
	}
	return nil
}
