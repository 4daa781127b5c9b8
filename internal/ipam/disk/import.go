package disk

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/fairlead-cni/fairlead/ipam"
	"golang.org/x/sys/unix"
)

// Read reads lease files in the reference's format. If path is the directory of a Store, it also reads the sticky
// addresses and reservations.
func (s *Store) Read(path string) (*ipam.Book, error) {
	d := &directory{path: path, now: clockNow(), boot: thisBoot()}
	var err error
	if d.fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(d.fd)
	d.x = openIndex("")
	b := &ipam.Book{From: path}
	if b.Leases, err = s.leases(d, "", nil, &b.Problems); err != nil {
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

// Import adds leases, sticky addresses and reservations. It takes the lock and compares everything before it changes
// anything.
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
		d.x.since = Uptime() // the owners of these addresses did not get them here
		d.dirty = true
		done := ipam.Book{}
		defer func() {
			if failed != nil {
				failed = errors.Join(failed, d.undo(done))
			}
		}()
		for _, l := range added.Leases {
			if err := d.lodge(l); err != nil {
				return err
			}
			done.Leases = append(done.Leases, l)
		}
		var list []persistent
		for _, k := range added.Sticky {
			r := record{Key: k.Key, IfName: k.IfName, TTL: k.Seconds, Since: min(k.Since.Unix(), d.wall)}
			list = append(list, persistent{k.Address, r})
		}
		done.Sticky = added.Sticky // some of which may be there where not all are
		if err := d.persist(list...); err != nil || len(added.Reserved) == 0 {
			return err
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

// undo removes what a failed import has added.
func (d *directory) undo(done ipam.Book) (err error) {
	for _, l := range done.Leases {
		err = errors.Join(err, d.drop(entryOf(l), 0))
	}
	for _, k := range done.Sticky {
		err = errors.Join(err, d.forget(k.Address, record{Key: k.Key, IfName: k.IfName}))
	}
	return err
}

// lodge makes the lease file of an owner that got the address elsewhere. Its boot is unknown.
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
	e := entryOf(l)
	e.stamp = f.stamp
	d.x.lease(e)
	if err := d.publish(f, l.Address); err != nil {
		d.x.remove(e.owner, l.Address)
		return err
	}
	d.x.mark(l.Address, taken)
	return nil
}
