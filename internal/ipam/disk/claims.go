package disk

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// missing returns the parts of b that the directory lacks. A part that contradicts the directory, or another part of b,
// is an error.
func (s *Store) missing(d *directory, b *ipam.Book, force bool) (*ipam.Book, error) {
	if err := s.refreshSets(); err != nil {
		return nil, err
	}
	c := claims{s: s, d: d, b: b, force: force, had: map[string]string{}}
	add := &ipam.Book{}
	for i, l := range b.Leases {
		if c.lease(b.Path("leases", i, l.Address.String()), l) {
			add.Leases = append(add.Leases, l)
		}
	}
	for i, k := range b.Sticky {
		if c.binding(b.Path("sticky", i, k.Address.String()), k) {
			add.Sticky = append(add.Sticky, k)
		}
	}
	have, err := d.reservations()
	if err != nil {
		c.errs = append(c.errs, err)
	}
	for i, r := range b.Reserved {
		if c.reservation(b.Path("reserved", i, r.Prefix.String()), r, have) {
			add.Reserved = append(add.Reserved, r)
		}
	}
	if len(c.errs) > 0 {
		return nil, spec.Errorf(spec.CodeConfig, "nothing is imported: %w", errors.Join(c.errs...))
	}
	return add, nil
}

// claims checks the parts of a book one after the other.
type claims struct {
	s     *Store
	d     *directory
	b     *ipam.Book
	force bool
	had   map[string]string // who or what was claimed → where, and as what
	errs  []error

	leased []netip.Addr
}

func (c *claims) bad(path, format string, args ...any) bool {
	c.errs = append(c.errs, fmt.Errorf("%s: "+format, append([]any{path}, args...)...))
	return false
}

// within reports whether the network allocates the address.
func (c *claims) within(path string, a netip.Addr) bool {
	r, ok := c.s.find(a)
	switch {
	case c.force || len(c.s.Sets) == 0:
	case !ok:
		return c.bad(path, "%s %w (%s)", a, ipam.ErrOutside, describe(c.s.Sets))
	case a == r.Gateway:
		return c.bad(path, "%s is the gateway of %s", a, r.Subnet)
	}
	return true
}

// onlyAddress reports whether subject has no other address in the set of a. With force it always succeeds.
func (c *claims) onlyAddress(path, subject, name string, a netip.Addr) bool {
	i := slices.IndexFunc(c.s.Sets, func(set ipam.Set) bool { _, ok := set.Find(a); return ok })
	return c.force || i < 0 || c.once(path, fmt.Sprint(subject, " in set ", i), a.String(), func(at string) string {
		return fmt.Sprintf(
			"%s is a second address of %s for %s, whose first is in %s: want one; ipam import --force takes both",
			a, c.s.Sets[i], name, at)
	})
}

// once reports whether what is claimed for the first time. A second claim by the same owner is ignored; one by another
// owner is an error.
func (c *claims) once(path, what, value string, contradiction func(before string) string) bool {
	before, ok := c.had[what]
	if !ok {
		c.had[what] = path + "\x00" + value
		return true
	}
	at, was, _ := strings.Cut(before, "\x00")
	if was != value {
		c.bad(path, "%s", contradiction(at))
	}
	return false
}

// possible returns an error if no container can have the address.
func possible(a netip.Addr) error {
	switch {
	case !a.IsValid():
		return errors.New("there is no address")
	case a.Zone() != "" || a.Is4In6():
		return fmt.Errorf("address %s: want a plain IPv4 or IPv6 address", a)
	case ipam.NoHost(netip.PrefixFrom(a, a.BitLen())) != "":
		return fmt.Errorf("address %s is not the address of a host", a)
	}
	return nil
}

// nameable returns an error if no call can name the owner, so that no DEL would ever remove its lease.
func nameable(l ipam.Lease) error {
	if l.ContainerID == "" {
		return errors.New("no owner: containerID is empty")
	}
	if len(l.ContainerID) > 1<<16 {
		return fmt.Errorf("containerID: %d bytes: want %d at most", len(l.ContainerID), 1<<16)
	}
	if err := spec.ValidContainerID(l.ContainerID); err != nil {
		return fmt.Errorf("containerID: %w", err)
	}
	if l.IfName == "" { // files of former versions do not say it
		return nil
	}
	if err := spec.ValidIfName(l.IfName); err != nil {
		return fmt.Errorf("ifname: %w", err)
	}
	return nil
}

// lease reports whether a lease must be added.
func (c *claims) lease(path string, l ipam.Lease) bool {
	text := leaseText(l)
	if err := cmp.Or(possible(l.Address), nameable(l)); err != nil {
		return c.bad(path, "lease %s of %q: %w", l.Address, holder(text), err)
	}
	if !c.once(path, "address "+l.Address.String(), text, func(at string) string {
		return fmt.Sprintf("%s is %s's, and another's in %s: want one owner", l.Address, holder(text), at)
	}) || !c.within(path, l.Address) {
		return false
	}
	// Files of former versions do not say the interface, of which a container may have several.
	if l.IfName != "" && !c.onlyAddress(path, "owner "+text, holder(text), l.Address) {
		return false
	}
	have, err := c.d.read(l.Address)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EBADF), errors.Is(err, errGarbage):
		return true
	case err != nil:
		return c.bad(path, "%w", err)
	case have.text != text:
		return c.bad(path, "%s %w by %s, and not by %s", l.Address, ipam.ErrTaken, holder(have.text), holder(text))
	}
	return false
}

// holdable returns an error if a binding is invalid. A binding with a time in the future counts as new.
func holdable(k ipam.Binding) error {
	ifName := spec.ValidIfName(k.IfName)
	switch err := possible(k.Address); {
	case err != nil:
		return err
	case k.Key == "":
		return errors.New("key: is empty")
	case len(k.Key) > 1<<16:
		return fmt.Errorf("key: %d bytes: want %d at most", len(k.Key), 1<<16)
	case ifName != nil:
		return fmt.Errorf("ifname: %w", ifName)
	case k.Seconds < 0 || k.Seconds > century:
		return fmt.Errorf("ttl: %d: want seconds, from 0 to %d", k.Seconds, int64(century))
	case k.Since.Unix() < 0:
		return fmt.Errorf("since: %s: want a time after 1970", k.Since.Format(time.RFC3339))
	}
	return nil
}

// binding reports whether the binding of a sticky key must be added. Leases are checked before bindings.
func (c *claims) binding(path string, k ipam.Binding) bool {
	r := record{Key: k.Key, IfName: k.IfName}
	if err := holdable(k); err != nil {
		return c.bad(path, "sticky address %s of %.100q: %w", k.Address, k.Key, err)
	}
	subject := k.Key + "\r\n" + k.IfName
	if !c.once(path, "sticky "+k.Address.String(), subject, func(at string) string {
		return fmt.Sprintf("%s is held for %s, and for another in %s: want one key and interface", k.Address, k.Key, at)
	}) || !c.within(path, k.Address) {
		return false
	}
	if !c.onlyAddress(path, "key "+subject, "the key "+k.Key, k.Address) {
		return false
	}
	have, err := c.d.readRecord(k.Address)
	if err == nil && have.key() != r.key() {
		return c.bad(path, "%s is held for %s, and not for %s", k.Address, have.Key, k.Key)
	}
	i := slices.IndexFunc(c.b.Leases, func(l ipam.Lease) bool { return l.Address == k.Address })
	if i >= 0 && c.b.Leases[i].IfName != "" && c.b.Leases[i].IfName != k.IfName && !c.force {
		l := c.b.Leases[i]
		return c.bad(path, "%s is held for interface %q of %s, and %s is the lease of %s; --force takes both",
			k.Address, k.IfName, k.Key, c.b.Path("leases", i, l.Address.String()), holder(leaseText(l)))
	}
	if err == nil {
		return false
	}
	if f, err := c.d.read(k.Address); err == nil && i < 0 {
		return c.bad(path, "%s %w by %s, and cannot be held for %s", k.Address, ipam.ErrTaken, holder(f.text), k.Key)
	}
	return true
}

// reservation reports whether a reservation must be added to the existing ones.
func (c *claims) reservation(path string, r ipam.Reservation, have []ipam.Reservation) bool {
	if !r.Prefix.IsValid() || r.Prefix != r.Prefix.Masked() || r.Prefix.Addr().Is4In6() {
		return c.bad(path, "reserved %q: is not a subnet", r.Prefix)
	}
	if !c.once(path, "reserved "+r.Prefix.String(), r.For, func(at string) string {
		return fmt.Sprintf("%s is reserved for %q, and in %s for another: want one key, or none", r.Prefix, r.For, at)
	}) {
		return false
	}
	i := slices.IndexFunc(have, func(was ipam.Reservation) bool { return was.Prefix == r.Prefix })
	if i >= 0 && have[i].For != r.For {
		return c.bad(path, "%s is reserved for %q, and not for %q", r.Prefix, have[i].For, r.For)
	}
	if i >= 0 || c.force {
		return i < 0
	}
	switch err := ipam.Slip(c.s.Sets, r.Prefix); {
	case errors.Is(err, ipam.ErrOutside):
		return c.bad(path, "reserved %s %w (%s)", r.Prefix, err, describe(c.s.Sets))
	case err != nil:
		return c.bad(path, "reserved %w; --force takes it", err)
	case r.For != "" && c.s.Sticky == nil && len(c.s.Sets) > 0:
		return c.bad(path, "reserved %s is for the key %q, and this network has no sticky keys; --force takes it",
			r.Prefix, r.For)
	}
	for _, a := range c.here() {
		// in the document as it was
		if !r.Prefix.Contains(a) || slices.ContainsFunc(c.b.Leases, func(l ipam.Lease) bool { return l.Address == a }) {
			continue
		}
		if f, err := c.d.read(a); err == nil {
			return c.bad(path, "reserved %s is in use by %s here; --force takes it", a, holder(f.text))
		}
	}
	return true
}

// here returns the addresses of the existing leases.
func (c *claims) here() []netip.Addr {
	if c.leased == nil && c.d.fd >= 0 {
		c.leased, _ = listAddresses(c.d.fd, ".") // what cannot be read is said elsewhere
	}
	return c.leased
}
