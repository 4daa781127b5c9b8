package disk

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A Sticky has owners that come under one key, one after the other, get the same addresses.
type Sticky struct {
	Key    string        // the owner's; empty: it has none
	TTL    time.Duration // for how long after its release an address goes to others only where nothing else is free
	Parts  int           // of how many parts every key of the network is made; 0: not said
	Former string        // what Key was in former days, and nobody's Key is now; empty: the same
}

// has reports whether a reservation is for c's owner by its key.
func (c *call) has(r ipam.Reservation) bool {
	return c.key() != "" && (r.For == c.key() || c.Sticky.Former != "" && r.For == c.Sticky.Former)
}

// key is what o comes under; empty where it has no key.
func (c *call) key() string {
	if c.Sticky == nil {
		return ""
	}
	return c.Sticky.Key
}

// barred reports why c's owner cannot have an address that it asks for, or had: it is somebody else's by reservation.
func (c *call) barred(a netip.Addr) error {
	for _, r := range c.reserved {
		if r.For != "" && !c.has(r) && r.Prefix.Contains(a) {
			return spec.Errorf(spec.CodeConfig, "address %s is reserved for %s", a, r.For)
		}
	}
	return nil
}

// promised finds the address of set i that is reserved for the owner's key, or that the key had last.
func (c *call) promised(i int, set ipam.Set) (netip.Addr, bool, error) {
	if c.key() == "" {
		return netip.Addr{}, false, nil
	}
	c.promise = true
	defer func() { c.promise = false }()
	for _, r := range c.reserved {
		if !c.has(r) {
			continue
		}
		if order := ipam.Clip(set.After(c.d.last(i)), r.Prefix); len(order) > 0 {
			a, err := c.next(i, set, order)
			if err == nil || !errors.Is(err, ipam.ErrExhausted) {
				return a, err == nil, err
			}
			c.d.log.Warn("what is reserved for the key is in use", "owner", c.o.String(), "key", r.For, "reserved", r.Prefix)
		}
	}
	found := c.d.bound(c.key(), c.o.IfName)
	if c.Sticky.Former != "" {
		found = append(found, c.d.bound(c.Sticky.Former, c.o.IfName)...)
	}
	for _, s := range found {
		if r, ok := set.Find(s.addr); !ok || s.addr == r.Gateway {
			continue
		}
		if err := c.barred(s.addr); err != nil {
			c.d.log.Warn("a sticky address is not given again", "owner", c.o.String(), "key", c.key(), "cause", err)
			continue
		}
		by, err := c.seize(i, s.addr)
		if by != "" {
			c.d.log.Warn("the sticky address is in use, so this owner gets another one", "owner", c.o.String(), "key", c.key(), "address", s.addr, "by", holder(by))
			if s.netns == 0 || s.netns == ownerNumber(by) { // one of the same key, who keeps it
				c.second = append(c.second, i)
			}
			continue
		}
		return s.addr, err == nil, err
	}
	return netip.Addr{}, false, nil
}

// bound are the addresses that a key had last. What the index has, and its files do not bear out, is dropped.
func (d *directory) bound(stickyKey, ifName string) (found []slot) {
	k := record{Key: stickyKey, IfName: ifName}.stickyKey()
	newest := int64(-1)
	for _, s := range d.x.lookup(k) {
		if s.kind != kindSticky {
			continue
		}
		r, _, err := d.readRecord(s.addr)
		if err != nil || r.stickyKey() != k {
			d.x.removeKind(kindSticky, k, s.addr)
			continue
		}
		if found = append(found, s); r.Since > newest { // after a power cut there may be one that was removed
			newest = r.Since
			found[0], found[len(found)-1] = s, found[0]
		}
	}
	return found
}

// remember writes down the addresses that the owner's key has now, and that nobody else's key has them.
func (c *call) remember() error {
	if c.Sticky == nil {
		return nil
	}
	var write []kept
	given, me := map[netip.Addr]bool{}, ownerNumber(text(c.o))
	for _, g := range c.given {
		given[g.addr] = true
		r, _, err := c.d.readRecord(g.addr)
		mine := record{Key: c.key(), IfName: c.o.IfName, TTL: int64(c.Sticky.TTL / time.Second)}
		switch {
		case c.key() == "" || slices.Contains(c.second, g.set):
			if err == nil || errors.Is(err, errGarbage) { // somebody else's, who was away for too long
				if err := c.d.forget(g.addr, r); err != nil {
					return spec.Errorf(spec.CodeIO, "%w", err)
				}
			}
			continue
		case err == nil && r.stickyKey() == mine.stickyKey() && r.TTL == mine.TTL:
			c.d.index(kept{g.addr, r, me}) // the file is as it was; the release says when its time begins
			continue
		case err == nil && r.stickyKey() != mine.stickyKey():
			c.d.x.removeKind(kindSticky, r.stickyKey(), g.addr)
		}
		write = append(write, kept{g.addr, mine.fresh(c.d), me})
	}
	if err := c.d.keep(write...); err != nil {
		return spec.Errorf(spec.CodeIO, "remember the addresses of %q: %w", c.key(), err)
	}
	if len(write) == 0 {
		return nil
	}
	for _, s := range c.d.bound(c.key(), c.o.IfName) { // what the key had before
		i := slices.IndexFunc(c.Sets, func(set ipam.Set) bool { _, ok := set.Find(s.addr); return ok })
		if !given[s.addr] && !slices.Contains(c.second, i) {
			if err := c.d.forget(s.addr, record{Key: c.key(), IfName: c.o.IfName}); err != nil {
				c.d.log.Warn("a former sticky address stays remembered", "cause", err)
			}
		}
	}
	c.d.prune()
	return nil
}

// rested writes down that the leases of these addresses are given back: for sticky ones their time begins.
func (d *directory) rested(addrs []netip.Addr) {
	if unix.Access(keptPath(d.path), unix.F_OK) != nil {
		return
	}
	var list []kept
	for _, a := range addrs {
		if r, _, err := d.readRecord(a); err == nil {
			list = append(list, kept{a, r.fresh(d), noOwner})
		}
	}
	if err := d.keep(list...); err != nil { // a DEL goes on (clause P12); this boot's index knows all the same
		d.log.Warn("when a sticky address was given back is not on the disk", "cause", err)
		for _, k := range list {
			d.x.mark(k.addr, d.holdWord(k.record))
		}
	}
}

// prune removes records whose time has run out, when there are twice as many records as it left the last time: so a
// record costs the same however many there were.
func (d *directory) prune() {
	var all []slot
	if d.x.sticky < fewSticky || d.x.sticky < 2*d.x.pruned {
		return
	}
	d.x.all(func(s slot) {
		if s.kind == kindSticky {
			all = append(all, s)
		}
	})
	d.x.pruned = uint32(len(all) - d.expire(all))
}

// expire removes those of the records whose time has run out, and counts them.
func (d *directory) expire(all []slot) (n int) {
	for _, s := range all {
		if d.x.word(s.addr) == taken {
			continue
		}
		r, _, err := d.readRecord(s.addr)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			d.x.removeKind(kindSticky, s.key, s.addr)
		case err != nil || r.left(d) > 0:
			continue
		default:
			if err := d.forget(s.addr, r); err != nil {
				d.log.Warn("a sticky address whose time has run out stays remembered", "cause", err)
				continue
			}
		}
		n++
	}
	return n
}

// scanKept tells a new index what is kept. Old is the one before, of this boot, or nil.
func (d *directory) scanKept(old *index) error {
	path := keptPath(d.path)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	names, err := (&directory{path: path, fd: fd}).list()
	if err != nil {
		return err
	}
	known := map[netip.Addr]slot{}
	if old != nil {
		old.all(func(s slot) {
			if s.kind == kindSticky {
				known[s.addr] = s
			}
		})
	}
	for _, name := range names {
		a, err := netip.ParseAddr(name)
		if strings.HasPrefix(name, newPrefix) {
			_ = unix.Unlinkat(fd, name, 0) // what a call that was killed did not finish
		}
		if err != nil || a.String() != name || a.Zone() != "" || a.Is4In6() {
			continue
		}
		if s, ok := known[a]; ok {
			var st unix.Stat_t
			held := old.word(a)
			same := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && s.of(stamp(&st))
			if word := d.x.word(a); same && (word == taken || word == 0 && isHold(held) && d.now.left(held) > 0) {
				d.x.add(s)
				if word == 0 {
					d.x.mark(a, held)
				}
				continue
			}
		}
		d.scanRecord(a)
	}
	d.x.pruned = d.x.sticky
	return nil
}

// scanRecord tells the index what is remembered of a.
func (d *directory) scanRecord(a netip.Addr) {
	r, stamp, err := d.readRecord(a)
	if errors.Is(err, errGarbage) {
		d.log.Warn("removing what was remembered of a sticky address, for it cannot be read", "cause", err)
		_ = d.forget(a, r) // it counts for nothing in any case
		return
	}
	if err != nil {
		d.log.Warn("what was remembered of a sticky address cannot be read", "cause", err)
		return
	}
	word := d.x.word(a)
	if word != taken {
		left := r.left(d)
		if word != 0 && !isHold(word) { // somebody else removed the lease; since then it rests
			left = max(left, time.Duration(r.TTL)*time.Second-d.now.since(word))
		}
		if left <= 0 {
			if err := d.forget(a, r); err != nil {
				d.log.Warn("a sticky address whose time has run out stays remembered", "cause", err)
			}
			return
		}
		d.x.mark(a, d.now.held(left))
	}
	by := uint64(noOwner)
	if word == taken {
		by = 0
	}
	d.x.add(slot{key: r.stickyKey(), addr: a, kind: kindSticky, netns: by}.seal(stamp))
}
