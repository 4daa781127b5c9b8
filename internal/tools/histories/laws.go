package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"golang.org/x/sys/unix"
)

// starts notes that a call has begun.
func (p *play) starts(each *player) {
	if c := p.containers[each.object]; c != nil && each.verb != "check" {
		each.uncertain = c.state == unclear // a DEL that was to come before failed
		each.excused = each.excused || each.uncertain && each.verb == "add"
		c.state = unclear
	}
	if each.verb == daemonVerb {
		p.daemon = each
	}
}

// event does what an actor does to the host.
func (p *play) event(a actor) error {
	excuse := func(verbs ...string) {
		p.crowded = true
		for _, each := range p.players {
			if slices.Contains(verbs, each.verb) && !each.ended {
				each.excused = true
			}
		}
	}
	switch a.verb {
	case "kill":
		victim := p.player(a.object)
		if !victim.ended && slices.Contains([]string{"add", "del", "gc", daemonVerb}, victim.verb) { // it leaves half a container
			excuse("repair")
		}
		if !victim.ended && victim.verb == daemonVerb {
			p.unanswered()
		}
		victim.kill()
		p.crowded = true
		return p.end(victim)
	case "stop":
		if victim := p.player(a.object); !victim.ended {
			for _, s := range victim.pending { // which it makes before it stops
				p.asking(victim, s)
			}
			return victim.stop()
		}
	case "continue":
		if victim := p.player(a.object); !victim.ended {
			return errors.Join(victim.goOn(), p.awaitPlayer(victim))
		}
	case "flush":
		excuse("add", "check", "repair", "gc")
		return p.flush()
	case "unlink":
		excuse("add", "check", "repair")
		c := p.containers[a.object]
		c.linkCut = true
		return p.unlink(c)
	case "full":
		excuse("add", "check", "repair", "gc", agentVerb)
		p.filled = true
		return disks().Fill()
	case "room":
		return disks().Empty()
	case "reboot":
		excuse("add", "check", "repair", "gc", "del")
		for _, each := range p.players {
			each.kill()
			if err := p.end(each); err != nil {
				return err
			}
		}
		p.late = nil
		return p.reboot(p.script.chain, func(c *container) bool {
			return slices.ContainsFunc(p.players, func(each *player) bool {
				return !each.ended && p.containers[each.object] == c
			})
		})
	}
	return nil
}

// ends judges a call that has ended, and what it made of its container.
func (p *play) ends(each *player) error {
	c := p.containers[each.object]
	failed := each.err != nil
	// A call that was killed, or had no room, may have an address that another one was to get.
	noAddress := p.crowded && exitOf(each.err) == app.ExitTryAgain && !each.leased()
	if failed && !each.killed && !each.excused && !noAddress {
		return failure{"a call succeeds beside others", each.String()}
	}
	switch {
	case each.verb == "add" && failed && !each.killed && !each.left() && !each.uncertain:
		c.state = absent
		return p.deleted(c)
	case each.verb == "add" && !failed:
		cut, flushed := c.linkCut, c.flushed
		if err := p.attach(c); err != nil {
			return err
		}
		c.linkCut, c.flushed = cut && each.excused, flushed && each.excused
	case (each.verb == "del" || each.verb == "gc" && c != nil) && !failed:
		c.state = absent
		return cmp.Or(p.unnoted(c), p.deleted(c))
	case each.verb == "repair":
		if each.killed {
			p.unretracted = true
		}
		return p.deleted(slices.Collect(maps.Values(p.containers))...)
	}
	return nil
}

// deleted reports what is left of containers that are absent. A repair makes the rules of all attachments in one
// transaction, for which it holds no container's lock, and in the end retracts those of containers that are deleted
// meanwhile. So while one runs, nothing is looked at, and nor is it after one that was killed: GC takes what that left.
func (p *play) deleted(all ...*container) error {
	repairs := func(each *player) bool { return each.verb == "repair" && each.begun && !each.ended }
	if p.unretracted || slices.ContainsFunc(p.players, repairs) {
		return nil
	}
	for _, c := range all {
		if c.state != absent {
			continue
		}
		if err := p.gone(c); err != nil {
			return err
		}
	}
	return nil
}

// gone reports what is left of a container.
func (p *play) gone(c *container) error {
	left, err := p.mentions(c)
	if p.noDaemon {
		left = slices.DeleteFunc(left, func(line string) bool { return strings.HasPrefix(line, "file "+dhcp.StateDir) })
	}
	if err == nil && len(left) > 0 {
		err = failure{"nothing is owned by nobody", c.id + " is deleted, and left are\n" + strings.Join(left, "\n")}
	}
	return err
}

// laws looks at what has to hold after each step.
func (p *play) laws(each *player, what touched) error {
	if what == nothing {
		return nil
	}
	if what == files {
		if err := p.granted(); err != nil {
			return err
		}
	}
	withLink := what == links || what == files && len(p.services) > 0 // the daemon ends the lease of a link that is gone
	for id, c := range p.containers {
		lives := c.state == attached && !(withLink && c.linkCut) && !(what == rules && c.flushed)
		if !lives || id == each.object && each.verb != "check" {
			continue
		}
		now, err := p.own(c, what)
		if err != nil {
			return err
		}
		if diff := difference(c.view[what], now); diff != "" {
			return failure{"what a living container has is untouched", fmt.Sprintf("%s, by %s:%s", c.id, each.name, diff)}
		}
	}
	if what != links {
		return nil
	}
	of, err := p.addresses()
	for a, who := range of {
		if len(who) > 1 {
			return failure{"no two have one address", fmt.Sprint(a, " is of ", who)}
		}
	}
	return err
}

// epilogue repairs what was damaged, deletes what is unclear, and collects all.
func (p *play) epilogue() error {
	if err := disks().Empty(); err != nil {
		return err
	}
	if err := p.finishDaemon(); err != nil {
		return err
	}
	damaged := false
	for _, c := range p.containers {
		damaged = damaged || c.state == attached && (c.flushed || c.linkCut)
	}
	if damaged {
		err := p.run([]string{"repair"}, nil)
		if err != nil && exitOf(err) != app.ExitFault { // a link that was cut stays so
			return failure{"repair restores what was damaged", err.Error()}
		}
	}
	if err := p.afterReboot(); err != nil {
		return err
	}
	for _, c := range p.containers {
		switch {
		case c.state == unclear:
			if err := p.call("del", c); err != nil {
				return failure{"DEL succeeds after a call that failed", err.Error()}
			}
			c.state = absent
		case c.state == attached && !c.linkCut:
			if err := p.call("check", c); err != nil {
				return failure{"CHECK of a living container succeeds", err.Error()}
			}
		}
	}
	if err := p.deleted(slices.Collect(maps.Values(p.containers))...); err != nil {
		return err
	}
	if err := p.collect(); err != nil {
		return failure{"GC with nothing valid succeeds", err.Error()}
	}
	after, err := p.whole()
	if err != nil {
		return err
	}
	// What all share may be gone, and a bridge that stays may be half made: the next ADD makes it where it is needed.
	more := slices.DeleteFunc(only(p.before, after), func(line string) bool {
		name, isLink := strings.CutPrefix(line, "link ")
		name, _, _ = strings.Cut(name, " ")
		return isLink && slices.ContainsFunc(p.before, func(l string) bool { return strings.HasPrefix(l, "link "+name+" ") })
	})
	if len(more) > 0 {
		return failure{"GC with nothing valid leaves the host as it was", strings.Join(more, "\n")}
	}
	return cmp.Or(p.givenBack(), p.unlocked())
}

// afterReboot attaches as many containers as the network has room for. No call has deleted those before the reboot, whose
// leases no container has any more.
func (p *play) afterReboot() error {
	if p.reboots == 0 {
		return nil
	}
	free := room
	for _, c := range p.containers {
		if c.state == attached {
			free--
		}
	}
	for n := range free {
		c, err := p.container(fmt.Sprint("new", n))
		if err == nil {
			err = p.call("add", c)
		}
		if err != nil {
			return failure{"a host takes containers after a reboot", err.Error()}
		}
		if err := p.attach(c); err != nil {
			return err
		}
	}
	return nil
}

// unlocked reports locks that outlive everybody.
func (p *play) unlocked() error {
	for _, dir := range []string{"/run/cni/fairlead", "/var/lib/cni/networks/" + network} {
		entries, err := os.ReadDir(dir)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			var st unix.Stat_t
			if unix.Stat(filepath.Join(dir, e.Name()), &st) != nil {
				continue
			}
			if found, _ := locks(&st); len(found) > 0 {
				return failure{"a lock is free when its holder is dead", filepath.Join(dir, e.Name()) + " is locked"}
			}
		}
	}
	return nil
}
