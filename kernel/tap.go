package kernel

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// A Tap is what AddTap makes: a link whose frames a program reads and writes by a file, as a hypervisor does.
type Tap struct {
	Name         string
	MultiQueue   bool    // several files at a time
	Owner, Group *uint32 // who may open it; nil: anybody who may do so at all
	Label        string  // the context of SELinux that it is made in; empty: this program's
}

const tunDevice = "/dev/net/tun"

// AddTap makes a tap in the namespace. What finish does to it belongs to its making: until that has succeeded the
// link goes as soon as this program ends, and afterwards it is to stay. Frames have neither the packet information
// nor the header of virtio, as ip(8) makes it. Where a link of its name is there already, the error is
// ErrLinkExists.
func (ns *NS) AddTap(t Tap, finish func() error) error {
	fd := -1
	// The file belongs to the namespace that it is opened in, whoever has it.
	err := ns.Do(func() (err error) {
		fd, err = unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
		return err
	})
	switch {
	case is(err, unix.ENOENT, unix.ENODEV, unix.ENXIO):
		return fmt.Errorf("add tap %s: open %s: %w (load the module tun, or let this container have the device: c 10 200)",
			t.Name, tunDevice, err)
	case err != nil:
		return fmt.Errorf("add tap %s: open %s: %w", t.Name, tunDevice, err)
	}
	defer unix.Close(fd)
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_TUN_EXCL) // the last: never open one that is there
	if t.MultiQueue {
		flags |= unix.IFF_MULTI_QUEUE
	}
	if t.Label != "" {
		err = attachAs(t.Label, fd, t.Name, flags)
	} else {
		err = attach(fd, t.Name, flags)
	}
	if err != nil {
		if _, there := ns.Index(t.Name); there == nil && is(err, unix.EBUSY, unix.EEXIST, unix.EINVAL) {
			err = ErrLinkExists
		}
		return fmt.Errorf("add tap %s: %w", t.Name, err)
	}
	for _, who := range []struct {
		what string
		req  uint
		id   *uint32
	}{{"owner", unix.TUNSETOWNER, t.Owner}, {"group", unix.TUNSETGROUP, t.Group}} {
		if who.id == nil {
			continue
		}
		if err := unix.IoctlSetInt(fd, who.req, int(*who.id)); err != nil {
			return fmt.Errorf("set %s %d of tap %s: %w", who.what, *who.id, t.Name, err)
		}
	}
	if err := finish(); err != nil {
		return err
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("keep tap %s: %w", t.Name, err)
	}
	return nil
}

// TunData is what the kernel tells of a link of kind tun (Linux 4.20).
type TunData struct {
	Tap          bool // it carries frames, not packets
	Owner, Group *uint32
	MultiQueue   bool
	PacketInfo   bool // each frame comes with its flags and protocol
	VNetHeader   bool // each frame comes with the header of virtio
	Persist      bool
}

// The attributes of a tun link, and IFF_TAP among the types.
const (
	tunOwner = 1 + iota
	tunGroup
	tunType
	tunPI
	tunVNetHdr
	tunPersist
	tunMultiQueue
)

// set takes one attribute.
func (d *TunData) set(attr uint16, v []byte) {
	on := len(v) > 0 && v[0] != 0
	switch attr {
	case tunOwner, tunGroup:
		id := u32(v)
		if attr == tunOwner {
			d.Owner = &id
		} else {
			d.Group = &id
		}
	case tunType:
		d.Tap = len(v) > 0 && v[0] == unix.IFF_TAP
	case tunPI:
		d.PacketInfo = on
	case tunVNetHdr:
		d.VNetHeader = on
	case tunPersist:
		d.Persist = on
	case tunMultiQueue:
		d.MultiQueue = on
	}
}

// HasSELinux reports whether this host is labelled by SELinux.
func HasSELinux() bool {
	var st unix.Statfs_t
	err := unix.Statfs("/sys/fs/selinux", &st)
	return err == nil && uint32(st.Type) == unix.SELINUX_MAGIC
}
