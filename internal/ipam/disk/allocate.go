package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
)

// Allocate allocates one address from each set for o. It prefers, in this order: the address that o had in an earlier
// boot, the one that it asks for, one that is reserved for its sticky key, the one that its key had last, and the next
// one in order. If Allocate fails, it releases what it allocated and keeps what o had before.
func (s *Store) Allocate(ctx context.Context, o spec.Owner) (*spec.Result, error) {
	if err := s.refreshSets(); err != nil { // before the network's directory is made
		return nil, err
	}
	if len(s.Sets) == 0 {
		return nil, noRanges()
	}
	if _, err := ipam.Assign(s.Sets, s.Requested); err != nil {
		return nil, err
	}
	d, err := s.open(ctx, o.Network, true)
	if err != nil {
		return nil, err
	}
	defer d.close()
	if err := s.refreshSets(); err != nil {
		return nil, err
	}
	want, err := ipam.Assign(s.Sets, s.Requested)
	if err != nil {
		return nil, err
	}
	c := &call{Store: s, d: d, o: o}
	if c.reserved, c.back, err = s.reserved(d); err != nil {
		return nil, err
	}
	if err := c.lookAtOwn(); err != nil {
		return nil, err
	}
	var ips []spec.IP
	for i, set := range s.Sets {
		a, err := c.address(i, set, want[i])
		if err != nil {
			return nil, errors.Join(err, c.undo())
		}
		r, _ := set.Find(a)
		ips = append(ips, spec.IP{Address: netip.PrefixFrom(a, r.Subnet.Bits()), Gateway: r.Gateway})
		c.given = append(c.given, gift{a, i})
	}
	if err := c.remember(); err != nil {
		return nil, errors.Join(err, c.undo())
	}
	c.adopt()
	if s.since = d.x.since; len(s.Requested) > 0 {
		s.since = 0
	}
	return &spec.Result{IPs: ips}, nil
}

func noRanges() error {
	return spec.Errorf(spec.CodeConfig, "ipam: has no range: want subnet or ranges")
}

// exhausted returns the error for a set without a free address: all addresses that are not reserved are in use, and no
// container that has one is proven to be gone.
func exhausted(code spec.Code, network string, set ipam.Set, reserved ipam.Reserved, unknown int) error {
	size, more := reserved.Size(set), ""
	if n := set.Size().Sub(size); !n.IsZero() {
		more = ", and " + n.String() + " are reserved"
	}
	hint := fmt.Sprintf("All %s containers that have one are alive (`fairlead ipam ls %s`): detach one and try "+
		"again, or configure a larger range.", size, network)
	if unknown > 0 {
		more += fmt.Sprintf("; the state of %d of the containers is unknown (fairlead ipam ls %s)", unknown, network)
		hint = fmt.Sprintf("The containers of %s leases are alive, and the state of %d is unknown: `fairlead ipam ls "+
			"%[3]s` lists them, "+
			"and `fairlead ipam release %[3]s ADDRESS --force` removes the lease of one that is gone.",
			size.Sub(ipam.CountOf(uint64(unknown))), unknown, network)
	}
	return spec.Errorf(code, "%s: %w in %s: %s of %s are in use%s", set.Path, ipam.ErrExhausted, set, size, size,
		more).WithHint(hint)
}

// inUse returns the error for an address that another owner has. A lease file that names no attachment was written by
// another program.
func inUse(network string, a netip.Addr, text string) error {
	id, ifName, _ := strings.Cut(text, "\r\n")
	by := spec.Owner{Network: network, ContainerID: strings.TrimSpace(id), IfName: ifName}
	err := spec.Errorf(spec.CodeTryAgain, "requested address %s is in use by %s", a, holder(text))
	if spec.ValidContainerID(by.ContainerID) == nil && spec.ValidIfName(by.IfName) == nil {
		return err.HeldBy(by.String())
	}
	return err.WithHint(fmt.Sprintf("If that container is gone, `fairlead ipam release %s %s --force` ends its "+
		"lease; `fairlead ipam show %[2]s` says what is known.", network, a))
}

// A call is the state of one call of Allocate.
type call struct {
	*Store
	d       *directory
	o       spec.Owner
	own     []entry // what o held before
	former  []entry // … in an earlier boot
	adopted []entry // … and keeps
	made    []lodged
	given   []gift
	promise bool  // the address is this owner's own, not the next one
	second  []int // the sets whose sticky address another owner of the key has

	reserved []ipam.Reservation
	back     ipam.Reserved // all that is given only by name
}

// A lodged is a lease that this call made, and the earlier index entry of its address.
type lodged struct {
	entry
	word uint32
}

// A gift is an address and the number of its set.
type gift struct {
	addr netip.Addr
	set  int
}

// lookAtOwn finds the leases that o has already.
func (c *call) lookAtOwn() error {
	found, err := c.d.held(c.o)
	for _, l := range found {
		if c.outlived(c.d, c.o.Network, l) {
			c.former = append(c.former, l)
		} else {
			c.own = append(c.own, l)
		}
	}
	return err
}

// address allocates the address of set i for o.
func (c *call) address(i int, set ipam.Set, want netip.Addr) (netip.Addr, error) {
	for _, l := range c.own {
		// As in the reference, who asks for a second address of a set by name gets it.
		if _, ok := set.Find(l.addr); ok && (!want.IsValid() || want == l.addr) {
			return l.addr, fmt.Errorf("%s already has %s (%s): ADD was called twice without a DEL",
				c.o, l.addr, set.Path)
		}
	}
	for _, l := range c.former {
		if r, ok := set.Find(l.addr); ok && l.addr != r.Gateway && (!want.IsValid() || want == l.addr) &&
			c.barred(l.addr) == nil {
			c.adopted = append(c.adopted, l)
			return l.addr, nil
		}
	}
	if want.IsValid() {
		if err := c.barred(want); err != nil {
			return want, spec.AsError(fmt.Errorf("requested %w", err), 0).WithHint(ipam.Asked)
		}
		by, err := c.seize(i, want)
		if by != "" {
			err = inUse(c.o.Network, want, by)
		}
		return want, err
	}
	if a, ok, err := c.promised(i, set); ok || err != nil {
		return a, err
	}
	return c.next(i, set, c.back.Cut(set.After(c.d.last(i))))
}

// seize makes a lease for one address. If another owner has the address, by is the text of its lease, and no lease is
// made.
func (c *call) seize(i int, a netip.Addr) (by string, err error) {
	for range 3 { // a lease without an owner goes first
		l, rerr := c.d.read(a)
		switch {
		case errors.Is(rerr, fs.ErrNotExist):
			if err = c.put(i, a); !errors.Is(err, fs.ErrExist) {
				return "", err
			}
		case errors.Is(rerr, errGarbage):
			err = c.d.removeGarbage(a)
		case rerr != nil:
			return "", spec.Errorf(spec.CodeIO, "address %s: %w", a, rerr)
		default:
			e := c.d.entry(a, l.text)
			if !c.outlived(c.d, c.o.Network, e) {
				return l.text, nil
			}
			err = c.reclaim(e)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return "", spec.Errorf(spec.CodeTryAgain, "address %s: other calls keep allocating and releasing it", a)
}

// next makes a lease for the next free address of set i in order.
func (c *call) next(i int, set ipam.Set, order []ipam.Span) (netip.Addr, error) {
	reclaimed, unknown := false, 0
	for {
		a, how := c.d.x.free(order, c.d.now, c.Cooldown)
		if how <= held && !reclaimed {
			var gone []entry
			gone, unknown = c.stale(c.d, c.o.Network, set)
			if err := c.reclaim(gone...); err != nil {
				return a, err
			}
			reclaimed = true
			if len(gone) > 0 {
				continue
			}
		}
		if how == nowhere {
			return a, exhausted(spec.CodeTryAgain, c.o.Network, set, c.back, unknown)
		}
		err := c.put(i, a)
		switch {
		case !errors.Is(err, fs.ErrExist):
			return a, err
		case c.d.fresh:
			c.d.x.mark(a, taken)
		default: // the index is wrong
			if err := c.d.rescan(); err != nil {
				return a, spec.Errorf(spec.CodeIO, "%w", err)
			}
		}
	}
}

// put makes the lease file of a. Everything that can fail is done before the step that makes the file visible. The
// index gets the owner first and the address last, so that a killed call leaves no address that only the index marks as
// used.
func (c *call) put(i int, a netip.Addr) error {
	f, err := c.d.draft(text(c.o))
	if err != nil {
		return spec.Errorf(spec.CodeIO, "%w", err)
	}
	defer f.discard()
	if !c.promise { // others go on where they were
		if err := c.d.setLast(i, a); err != nil {
			return spec.Errorf(spec.CodeIO, "%w", err)
		}
	}
	e := c.entry(a, f.stamp)
	c.d.x.lease(e)
	if err := c.d.publish(f, a); err != nil {
		c.d.x.remove(e.owner, a)
		return spec.Errorf(spec.CodeIO, "%w", err)
	}
	c.made = append(c.made, lodged{e, c.d.x.word(a)})
	c.d.x.mark(a, taken)
	return nil
}

// undo releases what this call allocated.
func (c *call) undo() error {
	var errs []error
	for _, l := range c.made {
		if l.word == taken {
			l.word = 0 // the index was wrong
		}
		errs = append(errs, c.d.drop(l.entry, l.word))
	}
	return errors.Join(errs...)
}

// adopt records that the adopted leases belong to this boot, and removes those that fit into no set.
func (c *call) adopt() {
	for _, l := range c.former {
		if !slices.Contains(c.adopted, l) {
			if err := c.reclaim(l); err != nil {
				c.d.log.Warn("an earlier lease could not be removed", "cause", err)
			}
			continue
		}
		c.d.log.Info("kept the address of an earlier boot", "owner", c.o.String(), "address", l.addr)
		e := c.entry(l.addr, l.stamp)
		e.owner = l.owner // it may be in the old format
		c.d.x.lease(e)
	}
}

// reclaim removes leases whose containers are gone.
func (c *call) reclaim(leases ...entry) error {
	for _, l := range leases {
		c.d.log.Info("removing a lease that outlived its container", "network", c.o.Network, "address", l.addr)
	}
	return c.d.giveBack(leases, 0)
}

// outlived reports whether the container of e is proven to be gone.
func (s *Store) outlived(d *directory, network string, e entry) bool {
	f, err := d.read(e.addr)
	if err != nil || ownerName(f.text) != e.owner {
		return false
	}
	state, _ := s.state(d, network, e, f)
	return state == ipam.Gone
}

// stale returns the leases of set whose containers are proven to be gone, and counts those whose containers are
// unknown. It reads all leases, so it is called only if the set has no free address.
func (s *Store) stale(d *directory, network string, set ipam.Set) (gone []entry, unknown int) {
	all, _ := s.leases(d, network, nil, new([]string)) // what cannot be read is in use
	for _, l := range all {
		if _, ok := set.Find(l.Address); !ok {
			continue
		}
		switch l.State {
		case ipam.Gone:
			gone = append(gone, entryOf(l))
		case ipam.Unknown:
			unknown++
		}
	}
	return gone, unknown
}

// entry returns the index entry for a lease that this call makes.
func (c *call) entry(a netip.Addr, stamp uint32) entry {
	key := uint32(noKey)
	if c.key() != "" {
		key = record{Key: c.key(), IfName: c.o.IfName}.keyNumber()
	}
	return entry{owner: ownerName(text(c.o)), addr: a, stamp: stamp, boot: c.d.boot, netns: netnsOf(c.Netns), key: key}
}

// entry returns the index entry of the lease of a, whose file contains text.
func (d *directory) entry(a netip.Addr, text string) entry {
	for e := range d.x.leases(ownerName(text)) {
		if e.addr == a {
			return e
		}
	}
	return entry{owner: ownerName(text), addr: a}
}

// holder returns the owner that a lease file names, in a form for people. Other programs may have written the file.
func holder(text string) string {
	id, ifName, _ := strings.Cut(text, "\r\n")
	if len(id) > 100 {
		id = id[:100] + "…"
	}
	return strings.TrimSpace(id + " " + ifName[:min(len(ifName), 100)])
}
