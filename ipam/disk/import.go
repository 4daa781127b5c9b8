package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// Read reads lease files as the reference writes them, and where it is a store's directory what is kept beside it.
func (s *Store) Read(path string) (*ipam.Book, error) {
	d := &directory{path: path, now: clockNow(), boot: thisBoot()}
	var err error
	if d.fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(d.fd)
	d.x = newIndex("", 0, 0)
	b := &ipam.Book{}
	if b.Leases, err = s.leases(d, "", &b.Problems); err != nil {
		return nil, err
	}
	for i := range b.Leases {
		b.Leases[i].State = ipam.Unknown
	}
	if b.Reserved, err = d.reservations(); err != nil {
		b.Problems = append(b.Problems, err.Error())
	}
	b.Sticky = d.bindings(&b.Problems)
	return b, nil
}

// Import adds leases and what is kept. It compares under the lock, and before anything is changed.
func (s *Store) Import(ctx context.Context, network string, b *ipam.Book, force, dry bool) (*ipam.Book, error) {
	path, err := s.path(network)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); dry && errors.Is(err, fs.ErrNotExist) {
		return s.missing(&directory{path: path, fd: -1}, b, force)
	}
	var added *ipam.Book
	err = s.change(ctx, network, func(d *directory) (failed error) {
		if added, failed = s.missing(d, b, force); failed != nil || dry {
			return failed
		}
		d.unsign()
		defer func() {
			for _, l := range added.Leases {
				if failed != nil {
					failed = errors.Join(failed, d.drop(slot{key: keyOf("lease", leaseText(l)), addr: l.Address}, 0))
				}
			}
		}()
		for i, l := range added.Leases {
			if err := d.lodge(l); err != nil {
				added.Leases = added.Leases[:i] // which go again
				return err
			}
		}
		var list []kept
		for _, k := range added.Sticky {
			list = append(list, kept{k.Address, record{Key: k.Key, IfName: k.IfName, TTL: k.Seconds, Since: k.Since.Unix()}, 0})
		}
		if err := d.keep(list...); err != nil {
			return err
		}
		if len(added.Reserved) == 0 {
			return nil
		}
		have, err := d.reservations()
		if err == nil {
			err = d.reserve(append(have, added.Reserved...))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return added, nil
}

// missing is what of b is not there. What contradicts what is there is an error.
func (s *Store) missing(d *directory, b *ipam.Book, force bool) (*ipam.Book, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	add := &ipam.Book{}
	within := func(a netip.Addr) {
		r, ok := s.find(a)
		switch {
		case force || len(s.Sets) == 0:
		case !ok:
			bad("%s is of none of the network's ranges (%s)", a, describe(s.Sets))
		case a == r.Gateway:
			bad("%s is the gateway of %s", a, r.Subnet)
		}
	}
	seen := map[netip.Addr]string{}
	for _, l := range b.Leases {
		text := leaseText(l)
		if !l.Address.IsValid() || l.Address.Zone() != "" || l.Address.Is4In6() || garbage(text) || len(text) > 1<<16 {
			bad("lease %s of %q: no address, or no owner", l.Address, holder(text))
			continue
		}
		if was, ok := seen[l.Address]; ok && was != text {
			bad("%s is there for %s and for %s", l.Address, holder(was), holder(text))
		}
		if seen[l.Address] == text {
			continue
		}
		seen[l.Address] = text
		within(l.Address)
		have, err := d.read(l.Address)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EBADF), errors.Is(err, errGarbage):
			add.Leases = append(add.Leases, l)
		case err != nil:
			bad("%w", err)
		case have.text != text:
			bad("%s is in use by %s, and not by %s", l.Address, holder(have.text), holder(text))
		}
	}
	for _, k := range b.Sticky {
		r := record{Key: k.Key, IfName: k.IfName}
		if !k.Address.IsValid() || k.Address.Zone() != "" || k.Address.Is4In6() || k.Key == "" || k.Seconds < 0 || k.Seconds > century || k.Since.Unix() < 0 {
			bad("sticky address %s of %q: is not whole", k.Address, k.Key)
			continue
		}
		within(k.Address)
		if have, _, err := d.readRecord(k.Address); err != nil {
			add.Sticky = append(add.Sticky, k)
		} else if have.stickyKey() != r.stickyKey() {
			bad("%s is held for %s, and not for %s", k.Address, have.Key, k.Key)
		}
	}
	have, err := d.reservations()
	if err != nil {
		errs = append(errs, err)
	}
	for _, r := range b.Reserved {
		if !r.Prefix.IsValid() || r.Prefix != r.Prefix.Masked() {
			bad("reserved %q: is no subnet", r.Prefix)
			continue
		}
		if !force && len(s.Sets) > 0 && !slices.ContainsFunc(s.Sets, func(set ipam.Set) bool { return len(ipam.Clip(set.After(netip.Addr{}), r.Prefix)) > 0 }) {
			bad("reserved %s is of none of the network's ranges (%s)", r.Prefix, describe(s.Sets))
		}
		i := slices.IndexFunc(have, func(was ipam.Reservation) bool { return was.Prefix == r.Prefix })
		if i < 0 {
			add.Reserved = append(add.Reserved, r)
		} else if have[i].For != r.For {
			bad("%s is reserved for %q, and not for %q", r.Prefix, have[i].For, r.For)
		}
	}
	if len(errs) > 0 {
		return nil, spec.Errorf(spec.CodeConfig, "nothing is imported: %w", errors.Join(errs...))
	}
	return add, nil
}

// lodge makes the lease file of somebody who got the address elsewhere. In which boot is not known.
func (d *directory) lodge(l ipam.Lease) error {
	text := leaseText(l)
	if _, err := d.read(l.Address); errors.Is(err, errGarbage) {
		if err := d.removeGarbage(l.Address); err != nil {
			return err
		}
	}
	f, err := d.draft(text)
	if err != nil {
		return err
	}
	defer f.discard()
	s := slot{key: keyOf("lease", text), addr: l.Address, kind: kindLease}.seal(f.stamp)
	d.x.add(s)
	if err := d.publish(f, l.Address); err != nil {
		d.x.remove(s.key, l.Address)
		return err
	}
	d.x.mark(l.Address, taken)
	return nil
}
