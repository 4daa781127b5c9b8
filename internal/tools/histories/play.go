package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A play is a history under way.
type play struct {
	*stage
	script  *script
	players []*player
	random  *rand.Rand
	before  []string
	turns   []turn    // as they were taken
	late    []*player // have ended and were not looked at yet
	silent  int       // looks, one after the other, that brought no news
	quiet   int       // of these, those that saw no player do anything
	steps   int
	untried int  // places of a duel
	crowded bool // an address may be a container's that does not live, or leaves

	noDaemon    bool // there was none for some time, so leases and notes may be left for the next one
	filled      bool // a disk was full for some time, and had no room for such a note
	unretracted bool // a repair was killed that may have made rules of a container that was deleted meanwhile
}

// A failure is a law that a history breaks.
type failure struct {
	Law, Text string
}

func (f failure) Error() string { return f.Law + ": " + f.Text }

// An outcome is what became of a history.
type outcome struct {
	Failure *failure
	Turns   []string
	Steps   int
	Untried int    // places where no duel of the kind was interrupted yet
	Error   string // of the play, not of what it tests
}

// perform plays a script in this host.
func perform(program string, s *script) (o outcome) {
	p := &play{script: s, crowded: s.exceedsRoom(), random: rand.New(rand.NewPCG(s.seed, 2))}
	err := p.perform(program)
	for _, t := range p.turns {
		o.Turns = append(o.Turns, strings.TrimSuffix("turn "+t.actor+" until "+t.until, " until "))
	}
	o.Steps, o.Untried = p.steps, p.untried
	for _, each := range p.players {
		each.kill()
	}
	p.stop()
	if f, broken := err.(failure); broken {
		o.Failure = &f
	} else if err != nil {
		o.Error = err.Error()
	}
	return o
}

func (p *play) perform(program string) (err error) {
	if p.stage, err = newStage(program, p.script.chain); err != nil {
		return err
	}
	if err := p.prelude(); err != nil {
		return err
	}
	for _, a := range p.script.actors {
		player := newPlayer(a, p.script.impatient)
		switch a.verb {
		case agentVerb:
			player.program, player.args = agentOf(program), agentArgs(a.object)
		case daemonVerb:
			if player, err = p.daemonOf(a); err != nil {
				return err
			}
		case "add", "del", "check", "gc", "repair":
			var c *container
			if a.object != "" {
				if c, err = p.container(a.object); err != nil {
					return err
				}
			}
			player.args, player.env = p.args(a.verb, c)
		}
		p.players = append(p.players, player)
	}
	for _, each := range p.players { // the list of valid attachments is complete now
		if each.verb == "gc" {
			each.args, each.env = p.args("gc", p.containers[each.object])
		}
	}
	if err := p.acts(); err != nil {
		return err
	}
	return p.epilogue()
}

// prelude attaches what is attached before, on a host that has had an attachment already, unless it is fresh.
func (p *play) prelude() (err error) {
	known := filepath.Join(filepath.Dir(p.program), p.script.chain+".baseline")
	text, err := os.ReadFile(known)
	unknown := errors.Is(err, fs.ErrNotExist)
	if err != nil && !unknown {
		return err
	}
	if !p.script.fresh || unknown {
		if err := p.life(); err != nil {
			return err
		}
	}
	p.before = strings.Split(string(text), "\n")
	if unknown {
		if p.before, err = p.whole(); err == nil {
			err = replace(known, strings.Join(p.before, "\n"))
		}
		if err != nil {
			return err
		}
	}
	for _, id := range p.script.attached {
		c, err := p.container(id)
		if err == nil {
			err = p.call("add", c)
		}
		if err == nil {
			err = p.attach(c)
		}
		if err != nil {
			return err
		}
	}
	if p.script.flushed {
		return p.flush()
	}
	return nil
}

// flush does what an operator does by mistake: it removes the packet filter of the host, which the history made for itself.
func (p *play) flush() error {
	for _, c := range p.containers {
		c.flushed = true
	}
	return exec.Command("nft", "flush", "ruleset").Run()
}

// replace puts a file in its place in one step, because others read it.
func replace(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), "baseline")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close(), os.Rename(f.Name(), path))
}

// life attaches a container and takes it down again.
func (p *play) life() error {
	c, err := p.container("warm")
	if err != nil {
		return err
	}
	defer delete(p.containers, "warm")
	for _, verb := range []string{"add", "del"} {
		if err := p.call(verb, c); err != nil {
			return failure{"a call without others succeeds", err.Error()}
		}
	}
	if err := p.collect(); err != nil {
		return failure{"a call without others succeeds", err.Error()}
	}
	return nil
}

// attach remembers what a container has.
func (p *play) attach(c *container) (err error) {
	c.state, c.linkCut, c.flushed, c.view = attached, false, false, view{}
	for _, what := range []touched{links, rules, files} {
		if c.view[what], err = p.own(c, what); err != nil {
			return err
		}
	}
	return nil
}

// acts lets the players go on until all have ended.
func (p *play) acts() error {
	if len(p.script.turns) == 0 {
		return p.byChance()
	}
	for _, t := range p.script.turns {
		i := slices.IndexFunc(p.players, func(each *player) bool { return each.name == t.actor })
		each := p.players[i]
		if each.begun { // the daemon may be about to begin a step
			if err := p.awaitPlayer(each); err != nil {
				return err
			}
		}
		for each.verb == "continue" && !p.ready(each) && !each.ended {
			if err := p.listen(); err != nil {
				return err
			}
		}
		for p.ready(each) && (!each.begun || each.at() != t.until) {
			if err := p.step(each); err != nil {
				return err
			}
		}
	}
	for { // what the turns leave open
		i := slices.IndexFunc(p.players, p.ready)
		if i < 0 {
			if over, err := p.waiting(); over || err != nil {
				return err
			}
			continue
		}
		if err := p.step(p.players[i]); err != nil {
			return err
		}
	}
}

func (p *play) byChance() (err error) {
	var schedule *schedule
	if err := p.learn(func(k *known) { schedule = newSchedule(p.players, p.random, k, p.script) }); err != nil {
		return err
	}
	p.untried = schedule.untried
	defer func() {
		err = cmp.Or(err, p.learn(func(k *known) { schedule.tell(k) }))
	}()
	for {
		var ready []*player
		for _, each := range p.players {
			if p.ready(each) {
				ready = append(ready, each)
			}
		}
		if len(ready) == 0 {
			if over, err := p.waiting(); over || err != nil {
				return err
			}
			continue
		}
		if err := p.step(schedule.next(ready)); err != nil {
			return err
		}
	}
}

// learn changes what the histories of this chain and kind have told so far. Several play at a time.
func (p *play) learn(change func(*known)) error {
	path := filepath.Join(filepath.Dir(p.program), p.script.teaches()+".known")
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	k := newKnown()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &k)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return err
	}
	change(&k)
	text, err = json.Marshal(k)
	return errors.Join(err, replace(path, string(text)))
}

// ready reports whether a player can go on.
func (p *play) ready(each *player) bool {
	switch {
	case each.ended || each.stopped:
		return false
	case each.begun:
		return each.next() != nil
	case each.verb == "kill" || each.verb == "stop": // what has not begun cannot be killed
		return p.player(each.object).begun
	case each.verb == "continue":
		return p.player(each.after).ended && p.longStopped()
	case each.after != "":
		return p.player(each.after).ended
	}
	return true
}

// longStopped reports whether all who wait for a player that was stopped had the time to pass it by. Those who wait for a
// lock of package record do so after a second.
func (p *play) longStopped() bool {
	const looks = 150
	others := func(each *player) bool {
		return each.begun && !each.ended && !each.stopped && each.verb != daemonVerb
	}
	return p.silent >= looks || !slices.ContainsFunc(p.players, others)
}

func (p *play) player(name string) *player {
	for _, each := range p.players {
		if each.name == name {
			return each
		}
	}
	return nil
}

// waiting is called where no player is ready: all have ended, or some thread still runs, or a lock is never given back.
func (p *play) waiting() (over bool, err error) {
	if !slices.ContainsFunc(p.players, func(each *player) bool { return !each.ended && each.verb != daemonVerb }) {
		return true, nil
	}
	if err := p.listen(); err != nil {
		return false, err
	}
	return false, p.judge()
}

// listen waits for what a player does next. It returns without that from time to time, because no event says that a lock
// was given back, and the player that waits for it has to look again.
func (p *play) listen() error {
	const (
		pause = 20 * time.Millisecond
		never = 2 * time.Minute
	)
	select {
	case n := <-p.said:
		p.silent, p.quiet = 0, 0
		n.of.observe(n)
		if n.of.ended {
			p.late = append(p.late, n.of)
		}
		return nil
	case <-time.After(pause):
	}
	p.silent++
	p.quiet++
	awake := func(each *player) bool { return each.begun && !each.ended && !each.asleep() }
	if slices.ContainsFunc(p.players, awake) {
		p.quiet = 0
	}
	if p.quiet < int(never/pause) {
		return nil
	}
	return failure{"no call stands still", p.standstill()}
}

// standstill says of each player what it waits for.
func (p *play) standstill() string {
	var b strings.Builder
	for _, each := range p.players {
		if each.ended {
			continue
		}
		fmt.Fprintf(&b, "%s waits at %q", each.name, each.at())
		for _, pid := range each.waits() {
			i := slices.IndexFunc(p.players, func(other *player) bool { return other.pid == processGroup(pid) })
			holder := "a process that is dead, or no player"
			if i >= 0 {
				holder = p.players[i].name
			}
			fmt.Fprintf(&b, ", for a lock of %s (%d)", holder, pid)
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

// judge looks at the calls that have ended meanwhile.
func (p *play) judge() error {
	for len(p.late) > 0 {
		each := p.late[0]
		p.late = p.late[1:]
		if err := p.ends(each); err != nil {
			return err
		}
	}
	return nil
}

// step lets a player go on by one step, and looks at what that has changed.
func (p *play) step(each *player) error {
	p.steps++
	p.silent, p.quiet = 0, 0
	p.seen = seen{}
	looksAt := nothing
	switch {
	case each.args == nil:
		each.begun, each.ended = true, true
		if err := p.event(each.actor); err != nil {
			return err
		}
	case !each.begun && each.verb == daemonVerb && !p.daemon.ended: // since a reboot
		each.begun, each.ended = true, true
	case !each.begun:
		each.begun = true
		p.starts(each)
		each.start(cmp.Or(each.program, p.program), p.said)
		if err := p.awaitPlayer(each); err != nil {
			return err
		}
	default:
		s := each.next()
		if s == nil { // another thread was faster to take a lock
			return nil
		}
		if looksAt = s.touches; looksAt == files && s.private(p.containers[each.object]) {
			looksAt = nothing
		}
		p.asking(each, s)
		err := each.answer(s)
		if err == nil {
			err = p.awaitPlayer(each)
		}
		if err != nil {
			return err
		}
	}
	if err := p.answers(); err != nil {
		return err
	}
	p.note(each)
	if err := p.judge(); err != nil {
		return err
	}
	return p.laws(each, looksAt)
}

// awaitPlayer waits until a player waits before a step, for a lock or for the DHCP daemon, or has ended. What others do meanwhile is
// noted, too.
func (p *play) awaitPlayer(each *player) error {
	for each.runs() && !p.idle(each) {
		if err := p.listen(); err != nil {
			return err
		}
	}
	return nil
}

// end waits until a player that was killed has ended.
func (p *play) end(each *player) error {
	for each.begun && !each.ended {
		if err := p.listen(); err != nil {
			return err
		}
	}
	return nil
}

// note writes down whose turn it was.
func (p *play) note(each *player) {
	if n := len(p.turns); n > 0 && p.turns[n-1].actor == each.name {
		p.turns[n-1].until = each.at()
		return
	}
	p.turns = append(p.turns, turn{each.name, each.at()})
}
