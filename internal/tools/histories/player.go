package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// A player is an actor of a history that runs. Its steps wait until the schedule lets it go on.
type player struct {
	actor
	program   string   // empty: fairlead
	args      []string // nil: an event
	env       []string
	begun     bool
	ended     bool
	killed    bool
	stopped   bool
	free      atomic.Bool // its steps do not wait for turns
	asks      bool        // it waits for an answer of the DHCP daemon
	asked     bool        // it has asked that
	uncertain bool        // what an earlier call made of its container was unclear when it began
	impatient bool        // see script
	excused   bool        // something happened that it may fail of
	err       error
	said      bytes.Buffer
	complaint bytes.Buffer
	pid       int
	pending   []*step
	locking   []*step // locks that it was let take, and may wait for in the kernel
	steps     int
	made      map[string]int      // steps by name
	used      map[string]bool     // objects of its steps
	crucial   map[string][]string // crucial steps, and their objects
	read      sync.Map            // files of the state that it has opened to read
}

func newPlayer(a actor, impatient bool) *player {
	return &player{actor: a, impatient: impatient, made: map[string]int{}, used: map[string]bool{},
		crucial: map[string][]string{}}
}

// news is what a player does next: it waits before a step, or has ended.
type news struct {
	of   *player
	step *step
	err  error
}

// start runs a player's program, which says what it does on the channel.
func (p *player) start(program string, said chan<- news) {
	cmd := exec.Command(program, p.args...)
	// Signals of Go's scheduler would interrupt calls, and several threads make the order of calls differ.
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1")
	cmd.Env = append(cmd.Env, p.env...)
	cmd.Stdout, cmd.Stderr = &p.said, &p.complaint
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	go func() {
		err := nstest.WithHeld(cmd, func(h *nstest.Held) error {
			var s *step
			if !p.free.Load() {
				s = stepOf(h)
			}
			if s == nil {
				if path := reads(h); path != "" {
					p.read.Store(path, true)
				}
				return h.Answer(0)
			}
			said <- news{of: p, step: s}
			return nil
		}, calls()...)
		said <- news{of: p, err: err}
	}()
}

// observe notes what a player does.
func (p *player) observe(n news) {
	p.asks = false
	if n.step == nil {
		p.ended, p.err, p.pending, p.locking = true, n.err, nil, nil
		return
	}
	p.locking = slices.DeleteFunc(p.locking, func(s *step) bool { return s.held.PID == n.step.held.PID })
	objects := n.step.objects()
	for _, object := range objects {
		p.used[object] = true
	}
	p.made[n.step.name]++
	n.step.name = fmt.Sprintf("%s %d", n.step.name, p.made[n.step.name])
	if n.step.crucial() {
		p.crucial[n.step.name] = objects
	}
	p.pending = append(p.pending, n.step)
	if p.pid == 0 {
		p.pid = processGroup(n.step.held.PID)
	}
}

// processGroup is the group of a process or a thread, and 0 for one that is not there any more.
func processGroup(pid int) int {
	group, err := unix.Getpgid(pid)
	if err != nil {
		return 0
	}
	return group
}

// next is the first step that would not wait for a lock.
func (p *player) next() *step {
	for _, s := range p.pending {
		if s.turn && p.impatient || !s.blocked() {
			return s
		}
	}
	return nil
}

// runs reports whether a player goes on by itself: it has no step that waits for its turn, and waits for no lock of
// another player. For a lock of its own it waits while another thread of it goes on.
func (p *player) runs() bool {
	return !p.ended && !p.stopped && p.next() == nil && len(p.waits()) == 0
}

// asleep reports whether no thread of a player could do anything. A thread for which there is only no processor, as
// under load, does not sleep.
func (p *player) asleep() bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.pid))
	for _, path := range threads {
		b, err := os.ReadFile(path)
		if err != nil {
			return false // it has just ended
		}
		_, state, _ := strings.Cut(string(b), ") ")
		if !strings.HasPrefix(state, "S") && !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return true
}

// waits are the processes of others that hold locks which the player waits for.
func (p *player) waits() (pids []int) {
	for _, s := range slices.Concat(p.pending, p.locking) {
		holders := s.blockedBy()
		own := slices.ContainsFunc(holders, func(pid int) bool { return processGroup(pid) == p.pid })
		if !own {
			pids = append(pids, holders...)
		}
	}
	return pids
}

// at is the step that a player is about to make, also one that waits for a lock; "" where it has ended or not begun.
func (p *player) at() string {
	if s := p.next(); s != nil {
		return s.name
	}
	if len(p.pending) > 0 {
		return p.pending[0].name
	}
	return ""
}

// answer lets a step be made.
func (p *player) answer(s *step) error {
	for i, other := range p.pending {
		if other == s {
			p.pending = append(p.pending[:i:i], p.pending[i+1:]...)
		}
	}
	p.steps++
	if s.turn && p.impatient && s.blocked() { // as if it had waited for too long
		return s.held.Answer(unix.ENOLCK)
	}
	if s.wait != nil {
		p.locking = append(p.locking, s)
	}
	return s.held.Answer(0)
}

// kill ends the program of a player that has begun, and what it runs.
func (p *player) kill() {
	if p.pid > 0 && !p.ended {
		p.killed = true
		_ = unix.Kill(-p.pid, unix.SIGKILL)
	}
}

// left reports whether an ADD says that its roll-back failed.
func (p *player) left() bool {
	b := p.complaint.Bytes()
	var failed struct{ Left bool }
	begin := max(bytes.LastIndex(b, []byte("\n{")), 0) // behind what is logged
	return json.Unmarshal(b[begin:], &failed) == nil && failed.Left
}

// leased reports whether a player has made leases of both families: then it lacks no address, and what it was given is free.
func (p *player) leased() bool {
	var v4, v6 bool
	for name := range p.made {
		text, _ := strings.CutPrefix(name, "link /var/lib/cni/networks/"+network+"/")
		if a, err := netip.ParseAddr(text); err == nil {
			v4, v6 = v4 || a.Is4(), v6 || a.Is6()
		}
	}
	return v4 && v6
}

// exitOf is the exit status that an error has, or -1.
func exitOf(err error) int {
	exit, isExit := errors.AsType[*exec.ExitError](err)
	if !isExit {
		return -1
	}
	return exit.ExitCode()
}

// stop lets a player make the steps before which it waits, and stops its processes with SIGSTOP.
func (p *player) stop() error {
	p.stopped = true
	if err := unix.Kill(-p.pid, unix.SIGSTOP); err != nil {
		return err
	}
	return p.release()
}

// setFree lets a player go on without turns.
func (p *player) setFree() error {
	p.free.Store(true)
	return p.release()
}

// release lets a player make the steps before which it waits.
func (p *player) release() error {
	for len(p.pending) > 0 {
		if err := p.answer(p.pending[0]); err != nil {
			return err
		}
	}
	return nil
}

// goOn continues a player that was stopped.
func (p *player) goOn() error {
	p.stopped = false
	return unix.Kill(-p.pid, unix.SIGCONT)
}

func (p *player) String() string {
	return fmt.Sprintf("%s (fairlead %s): %v\n%s%s", p.name, strings.Join(p.args, " "), p.err, p.said.String(),
		strings.TrimSpace(p.complaint.String()))
}
