package disk

import (
	"cmp"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A Sticky gives owners that have the same key, one after the other, the same addresses.
type Sticky struct {
	Key    string        // the owner's; empty: it has none
	TTL    time.Duration // for how long after its release an address goes to others only where nothing else is free
	Parts  int           // of how many parts every key of the network is made; 0: not said
	OldKey string        // the form that earlier keys of the same meaning have in records; empty: the same as Key
}

// has reports whether a reservation is for the key of c's owner.
func (c *call) has(r ipam.Reservation) bool {
	return c.key() != "" && (r.For == c.key() || c.Sticky.OldKey != "" && r.For == c.Sticky.OldKey)
}

// key returns the sticky key of o, or an empty string.
func (c *call) key() string {
	if c.Sticky == nil {
		return ""
	}
	return c.Sticky.Key
}

// barred returns an error if the address that c's owner asks for, or had, is reserved for another key.
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
			c.d.log.Warn("the addresses that are reserved for the key are in use",
				"owner", c.o.String(), "key", r.For, "reserved",
				r.Prefix)
		}
	}
	found := c.d.bound(c.key(), c.o.IfName)
	if c.Sticky.OldKey != "" {
		found = append(found, c.d.bound(c.Sticky.OldKey, c.o.IfName)...)
	}
	for _, b := range found {
		if r, ok := set.Find(b.addr); !ok || b.addr == r.Gateway {
			continue
		}
		if err := c.barred(b.addr); err != nil {
			c.d.log.Warn("a sticky address cannot be allocated again",
				"owner", c.o.String(), "key", c.key(), "cause", err)
			continue
		}
		by, err := c.seize(i, b.addr)
		if by != "" {
			c.d.log.Warn("the sticky address is in use, so this owner gets another one",
				"owner", c.o.String(), "key", c.key(), "address", b.addr, "by", holder(by))
			if e := c.d.entry(b.addr, by); e.key == 0 || e.key == b.keyNumber() { // one of the same key, who keeps it
				c.second = append(c.second, i)
			}
			continue
		}
		return b.addr, err == nil, err
	}
	return netip.Addr{}, false, nil
}

// bound returns the addresses that a key had last, the latest first. It removes entries of the index that have no
// record.
func (d *directory) bound(stickyKey, ifName string) (found []persistent) {
	want := record{Key: stickyKey, IfName: ifName}
	for _, v := range d.x.get(want.keyName()) {
		a, err := netip.ParseAddr(v)
		if err != nil {
			continue
		}
		r, err := d.readRecord(a)
		switch {
		case errors.Is(err, errGarbage):
			_ = d.forget(a, want) // it counts for nothing in any case
		case err != nil || r.key() != want.key():
			d.x.remove(want.keyName(), a)
		default:
			found = append(found, persistent{a, r})
		}
	}
	// After a power cut there may be one that was removed.
	slices.SortStableFunc(found, func(a, b persistent) int { return cmp.Compare(b.Since, a.Since) })
	return found
}

// remember records the addresses that the owner's key has now, and removes them from the records of other keys.
func (c *call) remember() error {
	if c.Sticky == nil {
		return nil
	}
	var write []persistent
	given := map[netip.Addr]bool{}
	mine := record{Key: c.key(), IfName: c.o.IfName, TTL: int64(c.Sticky.TTL / time.Second)}
	for _, g := range c.given {
		given[g.addr] = true
		r, err := c.d.readRecord(g.addr)
		switch {
		case c.key() == "" || slices.Contains(c.second, g.set):
			if err == nil || errors.Is(err, errGarbage) { // another owner's, who was away for too long
				if err := c.d.forget(g.addr, r); err != nil {
					return spec.Errorf(spec.CodeIO, "%w", err)
				}
			}
			continue
		case err == nil && r.key() == mine.key() && r.TTL == mine.TTL:
			continue // the file is as it was; the release says when its time begins
		case err == nil && r.key() != mine.key():
			c.d.x.remove(r.keyName(), g.addr)
		}
		write = append(write, persistent{g.addr, mine.fresh(c.d)})
	}
	if err := c.d.persist(write...); err != nil {
		return spec.Errorf(spec.CodeIO, "record the sticky addresses of %q: %w", c.key(), err)
	}
	if len(write) == 0 {
		return nil
	}
	for _, b := range c.d.bound(c.key(), c.o.IfName) { // what the key had before
		i := slices.IndexFunc(c.Sets, func(set ipam.Set) bool { _, ok := set.Find(b.addr); return ok })
		if !given[b.addr] && !slices.Contains(c.second, i) {
			if err := c.d.forget(b.addr, b.record); err != nil {
				c.d.log.Warn("the record of an earlier sticky address could not be removed", "cause", err)
			}
		}
	}
	if c.d.x.prune <= 0 {
		if err := c.d.scanRecords(); err != nil {
			c.d.log.Warn("records of expired sticky addresses could not be removed", "cause", err)
		}
	}
	return nil
}

// rested records that the leases of these addresses were released. The time to live of sticky ones begins.
func (d *directory) rested(addrs []netip.Addr) {
	if unix.Access(keptPath(d.path), unix.F_OK) != nil {
		return
	}
	var list []persistent
	for _, a := range addrs {
		if r, err := d.readRecord(a); err == nil {
			list = append(list, persistent{a, r.fresh(d)})
		}
	}
	if err := d.persist(list...); err != nil { // a DEL goes on (clause P12); this boot's index knows all the same
		d.log.Warn("the release of a sticky address could not be recorded", "cause", err)
	}
}

// scanRecords adds all records to the index, and removes expired ones. It runs again when as many new records were
// written as it had left, so that the cost of a record does not depend on their number.
func (d *directory) scanRecords() error {
	path := keptPath(d.path)
	names, err := list(unix.AT_FDCWD, path)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	left := 0
	for _, name := range names {
		if strings.HasPrefix(name, newPrefix) {
			_ = unix.Unlink(filepath.Join(path, name)) // what a call that was killed did not finish
		}
		a, err := netip.ParseAddr(name)
		if err != nil || a.String() != name {
			continue
		}
		if d.scanRecord(a) {
			left++
		}
	}
	d.x.prune = max(fewRecords, left)
	return nil
}

const fewRecords = 256 // which it is not worth to look through for those whose time has run out

// scanRecord adds the record of a to the index, and reports whether it is kept.
func (d *directory) scanRecord(a netip.Addr) bool {
	r, err := d.readRecord(a)
	if err != nil && !errors.Is(err, errGarbage) {
		d.log.Warn("the record of a sticky address cannot be read", "cause", err)
		return true
	}
	if err == nil && (d.x.word(a) == taken || r.left(d) > 0) {
		d.hold(persistent{a, r})
		return true
	}
	if err != nil {
		d.log.Warn("removing the record of a sticky address, because it cannot be read", "cause", err)
	}
	if err := d.forget(a, r); err != nil {
		d.log.Warn("the record of an expired sticky address could not be removed", "cause", err)
		return true
	}
	return false
}
