package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

var _ ipam.Ledger = (*Store)(nil)

// Networks returns the networks that have a directory of leases, or of sticky addresses and reservations.
func (s *Store) Networks(context.Context) ([]string, error) {
	dir, err := s.path("x")
	if err != nil {
		return nil, err
	}
	dir = filepath.Dir(dir)
	var names []string
	for _, d := range []string{dir, filepath.Join(dir, keptDir)} {
		entries, err := os.ReadDir(d)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, spec.Errorf(spec.CodeIO, "%w", err)
		}
		for _, e := range entries {
			if e.IsDir() && spec.ValidName(e.Name()) == nil {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Look reads the directory itself, not the index.
func (s *Store) Look(ctx context.Context, network string, only ...netip.Addr) (*ipam.Book, error) {
	d, err := s.open(ctx, network, false)
	if err != nil {
		return nil, err
	}
	b := &ipam.Book{Configured: s.Reserved, Keyed: s.Sticky != nil}
	if b.Keyed {
		b.KeyParts = s.Sticky.Parts
	}
	if err := s.refreshSets(); err != nil {
		b.Problems = append(b.Problems, err.Error())
	}
	b.Sets = s.Sets
	reserved := ipam.Union(s.Reserved)
	if d == nil {
		d = &directory{x: openIndex("")}
	} else {
		defer d.close()
		if b.Leases, err = s.leases(d, network, only, &b.Problems); err != nil {
			return nil, spec.Errorf(spec.CodeIO, "leases of network %s: %w", network, err)
		}
		var all ipam.Reserved
		if b.Reserved, all, err = s.reserved(d); err != nil {
			b.Problems = append(b.Problems, err.Error())
		} else {
			reserved = all
		}
		b.Sticky = d.bindings(&b.Problems)
	}
	if len(only) > 0 {
		return b, nil
	}
	for _, set := range s.Sets {
		u, err := d.census(set, reserved, d.now, d.rest)
		if err != nil {
			return nil, spec.Errorf(spec.CodeIO, "leases of network %s: %w", network, err)
		}
		free := reserved.Size(set)
		u.Path, u.Range, u.Size = set.Path, set.String(), set.Size()
		u.Reserved, u.Available = u.Size.Sub(free), free.Sub(u.Used)
		u.Used = u.Used.Add(ipam.CountOf(uint64(len(slices.DeleteFunc(slices.Clone(b.Leases), func(l ipam.Lease) bool {
			_, ok := set.Find(l.Address)
			return !ok || !reserved.Contains(l.Address)
		})))))
		b.Uses = append(b.Uses, u)
	}
	return b, nil
}

// leases reads the lease files of these addresses, or of all.
func (s *Store) leases(d *directory, network string, addrs []netip.Addr, problems *[]string) ([]ipam.Lease, error) {
	if len(addrs) == 0 {
		var err error
		if addrs, err = listAddresses(d.fd, "."); err != nil {
			return nil, err
		}
	}
	var all []ipam.Lease
	for _, a := range addrs {
		f, err := d.read(a)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			*problems = append(*problems, err.Error())
			continue
		}
		l := ipam.Lease{Address: a, State: ipam.Unknown}
		l.ContainerID, l.IfName, _ = strings.Cut(f.text, "\r\n")
		l.State, l.Why = s.state(d, network, d.entry(a, f.text), f)
		all = append(all, l)
	}
	return all, nil
}

// Judge keeps vanished for those who ask what is gone.
func (s *Store) Judge(vanished func(o spec.Owner, netns string) error) { s.vanished = vanished }

// state returns what is known about the container of the lease in file f with the index entry e. The container is gone
// if the lease is of an earlier boot, or if its namespace in the runtime's cache no longer exists. Nothing else is
// proof, in particular not the age of the file: it shows when the lease was made, not whether its container is alive.
func (s *Store) state(d *directory, network string, e entry, f lease) (state, why string) {
	if d.boot == 0 { // a host that does not tell boots apart proves nothing
		return ipam.Unknown, ""
	}
	if e.stamp != f.stamp {
		e.boot, e.netns = 0, 0
	}
	if e.boot != 0 && e.boot != d.boot {
		return ipam.Gone, "of an earlier boot"
	}
	netns, ok := namespaceOf(cmp.Or(s.Results, "/var/lib/cni/results"), network, e, f)
	if !ok {
		return ipam.Unknown, ""
	}
	if state = pathState(netns); state == ipam.Gone {
		return ipam.Gone, "its namespace " + netns + " is no more"
	}
	if state == ipam.Alive && s.vanished != nil {
		id, ifName, _ := strings.Cut(f.text, "\r\n")
		if err := s.vanished(spec.Owner{Network: network, ContainerID: id, IfName: ifName}, netns); err != nil {
			return ipam.Gone, "its namespace " + netns + " is no more, and another is there"
		}
	}
	return state, ""
}

// bindings reads the addresses that sticky keys had last.
func (d *directory) bindings(problems *[]string) []ipam.Binding {
	entries, err := os.ReadDir(keptPath(d.path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		*problems = append(*problems, err.Error())
	}
	var all []ipam.Binding
	for _, e := range entries {
		a, err := netip.ParseAddr(e.Name())
		if err != nil {
			continue
		}
		r, err := d.readRecord(a)
		if err != nil {
			*problems = append(*problems, err.Error())
			continue
		}
		all = append(all, ipam.Binding{Address: a, Key: r.Key, IfName: r.IfName, Seconds: r.TTL,
			Since: time.Unix(r.Since, 0).UTC(), Until: time.Unix(d.wall, 0).Add(r.left(d))})
	}
	slices.SortFunc(all, func(a, b ipam.Binding) int { return a.Address.Compare(b.Address) })
	return all
}

// Reserve stores the reservation.
func (s *Store) Reserve(ctx context.Context, network string, r ipam.Reservation) error {
	return s.change(ctx, network, func(d *directory) error {
		list, err := d.reservations()
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(was ipam.Reservation) bool { return was.Prefix == r.Prefix })
		return d.reserve(append(list, r))
	})
}

// Unreserve removes the reservation.
func (s *Store) Unreserve(ctx context.Context, network string, p netip.Prefix) error {
	return s.change(ctx, network, func(d *directory) error {
		list, err := d.reservations()
		if err != nil {
			return err
		}
		left := slices.DeleteFunc(slices.Clone(list), func(r ipam.Reservation) bool { return r.Prefix == p })
		if len(left) == len(list) {
			return fmt.Errorf("%s is not reserved", p)
		}
		return d.reserve(left)
	})
}

// Forget removes the record of a sticky address.
func (s *Store) Forget(ctx context.Context, network string, a netip.Addr) error {
	return s.change(ctx, network, func(d *directory) error {
		r, err := d.readRecord(a)
		if err != nil && !errors.Is(err, errGarbage) {
			return err
		}
		return d.forget(a, r)
	})
}

// Drop removes the lease, as DEL does.
func (s *Store) Drop(ctx context.Context, network string, l ipam.Lease) error {
	return s.change(ctx, network, func(d *directory) error {
		f, err := d.read(l.Address)
		if err != nil {
			return err
		}
		if f.text != leaseText(l) {
			return fmt.Errorf("%s now belongs to %s", l.Address, holder(f.text))
		}
		return d.giveBack([]entry{entryOf(l)}, uint32(d.now))
	})
}

// entryOf returns as much of l's index entry as is needed to remove it.
func entryOf(l ipam.Lease) entry { return entry{owner: ownerName(leaseText(l)), addr: l.Address} }

func leaseText(l ipam.Lease) string {
	if l.IfName == "" {
		return l.ContainerID
	}
	return l.ContainerID + "\r\n" + l.IfName
}

// Reclaim removes leases of containers that are gone. It checks under the lock, so that no lease is removed that was
// made meanwhile.
func (s *Store) Reclaim(ctx context.Context, network string, dry bool) (gone []ipam.Lease, err error) {
	d, err := s.open(ctx, network, false)
	if d == nil {
		return nil, err
	}
	defer d.close()
	var problems []string
	all, err := s.leases(d, network, nil, &problems)
	if err != nil {
		return nil, spec.Errorf(spec.CodeIO, "leases of network %s: %w", network, err)
	}
	var entries []entry
	for _, l := range all {
		if l.State == ipam.Gone {
			gone = append(gone, l)
			entries = append(entries, entryOf(l))
		}
	}
	if dry {
		return gone, nil
	}
	return gone, d.giveBack(entries, uint32(d.now))
}

// Leased returns the addresses that have leases. It does not wait for calls that allocate or release some.
func (s *Store) Leased(network string) ([]netip.Addr, error) {
	path, err := s.path(network)
	if err != nil {
		return nil, err
	}
	leased, err := listAddresses(unix.AT_FDCWD, path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, spec.Errorf(spec.CodeIO, "leases of network %s: %w", network, err)
	}
	return leased, nil
}

// Withdraw calls change, which takes prefixes away from what Granted says, unless one of their addresses has a lease.
// No call allocates meanwhile. Leases of containers that are gone end before that.
func (s *Store) Withdraw(ctx context.Context, network string, leaving []netip.Prefix,
	change func() error) (busy bool, err error) {
	if _, err := s.Reclaim(ctx, network, false); err != nil {
		return false, err
	}
	err = s.change(ctx, network, func(d *directory) error {
		leased, err := listAddresses(d.fd, ".")
		if err != nil {
			return err
		}
		busy = slices.ContainsFunc(leased, func(a netip.Addr) bool {
			return slices.ContainsFunc(leaving, func(p netip.Prefix) bool { return p.Contains(a) })
		})
		if busy {
			return nil
		}
		return change()
	})
	return busy, err
}

// change runs f with the lock of the network's directory, which is made if it does not exist.
func (s *Store) change(ctx context.Context, network string, f func(*directory) error) error {
	d, err := s.open(ctx, network, true)
	if err != nil {
		return err
	}
	defer d.close()
	err = f(d)
	if err != nil && !errors.As(err, new(*spec.Error)) {
		err = spec.Errorf(spec.CodeIO, "network %s: %w", network, err)
	}
	return err
}
