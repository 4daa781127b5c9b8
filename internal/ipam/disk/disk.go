// Package disk stores leases in a directory of the host, in the format of the reference's host-local. It finds an
// owner's lease or a free address without reading the other leases.
package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// DefaultDir has the leases of all networks, unless the configuration names another directory.
const DefaultDir = "/var/lib/cni/networks"

// A Store is an ipam.Allocator over one folder with a directory for each network. Other processes may
// work on the directory at the same time, the reference's host-local included.
//
// Release and Sweep need nothing but DataDir.
//
// A network's directory holds what the reference puts there and nothing else. An index of it, which may
// be deleted at any time, is DataDir/.fairlead-index/NETWORK. What outlives a boot, reservations and sticky
// addresses, is DataDir/.fairlead-kept/NETWORK. The reference knows nothing of it.
type Store struct {
	DataDir   string         // default: DefaultDir
	Sets      []ipam.Set     // complete; an owner gets an address from each
	Requested []netip.Addr   // what the owner asks for
	Reserved  []netip.Prefix // given to who asks for one of them by name
	Sticky    *Sticky        // nil: no address is remembered
	Cooldown  time.Duration  // for how long a released address rests while others are free
	Netns     string         // the path of the owner's namespace, written down beside the lease
	Results   string         // the runtime's cache of results; default: /var/lib/cni/results
	Log       *slog.Logger   // default: slog.Default()

	// Granted returns Sets, where another program sets and changes them. It is called with the network's lock held, so
	// that who changed them knows, once he had that lock, that no call uses the former ones. Verify does not need them:
	// it takes every address of a result as one of the store's. Nil: Sets stay as they are.
	Granted func() ([]ipam.Set, error)

	vanished func(o spec.Owner, netns string) error // of Judge
	since    int64                                  // of Since
}

var _ ipam.Allocator = (*Store)(nil)

// refreshSets reads Sets again if they are from a file that another program writes.
func (s *Store) refreshSets() (err error) {
	if s.Granted != nil {
		s.Sets, err = s.Granted()
	}
	return err
}

func (s *Store) open(ctx context.Context, network string, create bool) (*directory, error) {
	path, err := s.path(network)
	if err != nil {
		return nil, err
	}
	d, err := openDirectory(ctx, path, create)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return nil, spec.Errorf(spec.CodeTryAgain, "leases of network %s: another call has locked them: %w",
			network, err)
	}
	if err != nil {
		return nil, spec.Errorf(spec.CodeIO, "leases of network %s: %w", network, err)
	}
	if d == nil {
		return nil, nil
	}
	d.rest, d.boot, d.now, d.wall, d.log = s.Cooldown, thisBoot(), clockNow(), time.Now().Unix(), s.Log
	if d.log == nil {
		d.log = slog.Default()
	}
	if err := d.openIndex(); err != nil {
		d.close()
		return nil, spec.Errorf(spec.CodeIO, "leases of network %s: %w", network, err)
	}
	return d, nil
}

// Since implements ipam.Witness. Changes by programs of Fairlead do not count. It is 0 for an address that was asked
// for by name, because another container may have had that address before.
func (s *Store) Since() int64 { return s.since }

// path returns the directory of the network's leases.
func (s *Store) path(network string) (string, error) {
	if network == "" || strings.ContainsRune("._-", rune(network[0])) || strings.ContainsAny(network, "/\x00") {
		return "", spec.Errorf(spec.CodeConfig, "name: %q cannot name a network", network)
	}
	if len(network) > longestName {
		return "", errNoPath{spec.Errorf(spec.CodeConfig,
			"name: the name has %d bytes, and the directory of its leases can have at most %d: choose a shorter name",
			len(network), longestName)}
	}
	if strings.ContainsRune(s.DataDir, 0) {
		return "", errNoPath{spec.Errorf(spec.CodeConfig, "ipam.dataDir: %q: a path has no zero byte", s.DataDir)}
	}
	return filepath.Join(cmp.Or(s.DataDir, DefaultDir), network), nil
}

// longestName is NAME_MAX, the maximum length of a file name in bytes.
const longestName = 255

// errNoPath means that a network can have no leases, because its name or dataDir cannot be a path.
type errNoPath struct{ error }

func (e errNoPath) Unwrap() error { return e.error }

// none reports whether err, from opening a network's directory, proves that the network has no lease.
func none(err error) bool {
	return errors.As(err, &errNoPath{}) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENAMETOOLONG)
}

// text returns the content of o's lease files.
func text(o spec.Owner) string { return strings.TrimSpace(o.ContainerID) + "\r\n" + o.IfName }

// oldText returns what older versions of the reference wrote: only the container.
func oldText(o spec.Owner) string { return strings.TrimSpace(o.ContainerID) }

// held returns the leases whose files name o, in either format. Index entries that the files contradict are removed.
// A program that writes a lease anew changes the file and not the directory. So the index may know the lease in the
// other format.
func (d *directory) held(o spec.Owner) ([]entry, error) {
	var found []entry
	names := []string{ownerName(text(o)), ownerName(oldText(o))}
	known := slices.AppendSeq(slices.Collect(d.x.leases(names[0])), d.x.leases(names[1]))
	for _, e := range known {
		l, err := d.read(e.addr)
		switch {
		case err == nil && (l.text == text(o) || l.text == oldText(o)):
			if e.stamp != l.stamp {
				e = entry{owner: e.owner, addr: e.addr, stamp: l.stamp}
			}
			found = append(found, e)
		case err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, errGarbage):
			d.x.remove(e.owner, e.addr)
		default:
			return nil, spec.Errorf(spec.CodeIO, "%w", err)
		}
	}
	return found, nil
}

// drop removes a lease file and its index entry. Word is the new state of the address.
func (d *directory) drop(e entry, word uint32) error {
	if err := d.unlink(e.addr); err != nil {
		return spec.Errorf(spec.CodeIO, "%w", err)
	}
	d.x.remove(e.owner, e.addr)
	d.x.mark(e.addr, word)
	return nil
}

// Release removes the leases of o (clauses P12, P13). It creates nothing for a network that was never used.
func (s *Store) Release(ctx context.Context, o spec.Owner) error {
	return s.Decline(ctx, o, netip.Addr{})
}

// Decline is like Release, and o's sticky key does not keep the address a.
func (s *Store) Decline(ctx context.Context, o spec.Owner, a netip.Addr) error {
	d, err := s.open(ctx, o.Network, false)
	if d == nil && none(err) {
		return nil
	}
	if d == nil {
		return err
	}
	defer d.close()
	found, err := d.held(o)
	if slices.ContainsFunc(found, func(e entry) bool { return e.addr == a }) {
		r, rerr := d.readRecord(a)
		if rerr == nil {
			rerr = d.forget(a, r)
		}
		if !errors.Is(rerr, fs.ErrNotExist) && !errors.Is(rerr, errGarbage) { // which hold no address
			err = errors.Join(err, rerr)
		}
	}
	return errors.Join(err, d.giveBack(found, uint32(d.now)))
}

// giveBack removes leases. Addresses of sticky keys are held for them; word is the new state of the others.
func (d *directory) giveBack(leases []entry, word uint32) error {
	var errs []error
	var gone []netip.Addr
	for _, l := range leases {
		if err := d.drop(l, word); err != nil {
			errs = append(errs, err)
			continue
		}
		gone = append(gone, l.addr)
	}
	d.rested(gone)
	return errors.Join(errs...)
}

// Sweep removes the leases of network whose owner is not in valid (clause P22). A lease in the old format, which has no
// interface, is valid if its container is.
func (s *Store) Sweep(ctx context.Context, network string, valid []spec.Owner) error {
	d, err := s.open(ctx, network, false)
	if d == nil && none(err) {
		return nil
	}
	if d == nil {
		return err
	}
	defer d.close()
	if !d.fresh { // here the truth is worth more than the time
		if err := d.scan(); err != nil {
			return spec.Errorf(spec.CodeIO, "leases of network %s: %w", network, err)
		}
	}
	keep := map[string]bool{}
	for _, o := range valid {
		keep[ownerName(text(o))] = true
		keep[ownerName(oldText(o))] = true
	}
	dead := slices.DeleteFunc(d.found, func(e entry) bool { return keep[e.owner] })
	for _, e := range dead {
		d.log.Info("removing the lease of an attachment that is gone", "network", network, "address", e.addr)
	}
	return d.giveBack(dead, uint32(d.now))
}

// Verify compares the lease files with the addresses of prev that belong to the store's sets (clause P15). It takes no
// lock, because lease files appear and disappear in one step.
func (s *Store) Verify(ctx context.Context, o spec.Owner, prev *spec.Result) error {
	path, err := s.path(o.Network)
	if err != nil {
		return err
	}
	if prev == nil {
		return spec.Errorf(spec.CodeConfig, "prevResult: is missing: CHECK compares the configuration with it")
	}
	var errs []error
	ours := 0
	d := &directory{path: path}
	d.fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(d.fd)
	}
	for _, ip := range prev.IPs {
		a := ip.Address.Addr().Unmap()
		if _, ok := s.find(a); !ok && s.Granted == nil {
			continue
		}
		ours++
		if d.fd >= 0 {
			var l lease
			if l, err = d.read(a); err == nil && l.text != text(o) && l.text != oldText(o) {
				held := spec.Difference{Kind: ipam.KindLease, Object: a.String(), File: path, Field: "holder",
					Got: holder(l.text)}
				errs = append(errs, held.Saying(fmt.Errorf("lease %s: %w by %s", a, ipam.ErrHeld, holder(l.text))))
			}
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			errs = append(errs, spec.Difference{Kind: ipam.KindLease, Object: a.String(), File: path, Got: spec.Absent,
				Text: fmt.Sprintf("lease %s: is missing in %s", a, path)})
		case err != nil:
			errs = append(errs, spec.Errorf(spec.CodeIO, "lease %s: %w", a, err))
		}
	}
	if ours == 0 {
		return spec.DiffersBy("prevResult", "no address of prevResult is in %s", describe(s.Sets))
	}
	return errors.Join(errs...)
}

func (s *Store) find(a netip.Addr) (ipam.Range, bool) {
	for _, set := range s.Sets {
		if r, ok := set.Find(a); ok {
			return r, true
		}
	}
	return ipam.Range{}, false
}

func describe(sets []ipam.Set) string {
	names := make([]string, len(sets))
	for i, s := range sets {
		names[i] = s.String()
	}
	return strings.Join(names, ", ")
}

// Status returns nil if each set has a free address, or one whose container is gone (clause P21). Addresses in their
// cooldown count as free.
func (s *Store) Status(ctx context.Context, network string) error {
	d, err := s.open(ctx, network, false)
	if err != nil {
		return spec.Errorf(spec.CodeUnavailable, "%w", err)
	}
	if d != nil {
		defer d.close()
	}
	if err := s.refreshSets(); err != nil {
		return spec.Errorf(spec.CodeUnavailable, "%w", err)
	}
	if len(s.Sets) == 0 {
		return noRanges()
	}
	if d == nil {
		return s.writable()
	}
	_, reserved, err := s.reserved(d)
	if err != nil {
		return spec.Errorf(spec.CodeUnavailable, "%w", err)
	}
	var errs []error
	for i, set := range s.Sets {
		if _, how := d.x.free(reserved.Cut(set.After(d.last(i))), d.now, 0); how != nowhere {
			continue
		}
		if gone, unknown := s.stale(d, network, set); len(gone) == 0 {
			errs = append(errs, exhausted(spec.CodeUnavailable, network, set, reserved, unknown))
		}
	}
	return errors.Join(errs...)
}

// writable reports whether the network's directory can be made.
func (s *Store) writable() error {
	dir, err := s.path("x")
	for err == nil {
		dir = filepath.Dir(dir)
		err = unix.Access(dir, unix.W_OK|unix.X_OK)
		if err == nil || dir == "/" || !errors.Is(err, unix.ENOENT) {
			break
		}
		err = nil
	}
	if err != nil {
		return spec.Errorf(spec.CodeUnavailable, "%w", &fs.PathError{Op: "write to", Path: dir, Err: err})
	}
	return nil
}

// Room returns how many more owners can get addresses: the number of free addresses in the fullest set, and the size of
// that set.
func (s *Store) Room(ctx context.Context, network string) (free, size ipam.Count, err error) {
	d, err := s.open(ctx, network, false)
	if err != nil {
		return free, size, err
	}
	reserved := ipam.Union(s.Reserved)
	if d != nil {
		defer d.close()
		if _, reserved, err = s.reserved(d); err != nil {
			return free, size, err
		}
	}
	if err := s.refreshSets(); err != nil {
		return free, size, err
	}
	for i, set := range s.Sets {
		left := reserved.Size(set)
		if d != nil {
			u, err := d.census(set, reserved, 0, 0)
			if err != nil {
				return free, size, spec.Errorf(spec.CodeIO, "leases of network %s: %w", network, err)
			}
			left = left.Sub(u.Used)
		}
		if i == 0 || left.Less(free) {
			free, size = left, reserved.Size(set)
		}
	}
	return free, size, nil
}

// reserved returns the reservations of the configuration and of the administrator.
func (s *Store) reserved(d *directory) ([]ipam.Reservation, ipam.Reserved, error) {
	list, err := d.reservations()
	if err != nil {
		return nil, nil, spec.Errorf(spec.CodeIO, "%w", err)
	}
	all := slices.Clone(s.Reserved)
	for _, r := range list {
		all = append(all, r.Prefix)
	}
	return list, ipam.Union(all), nil
}
