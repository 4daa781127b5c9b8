// Package tap makes tap devices, also under an SELinux label. Package rtnl reads and changes existing taps.
package tap

import (
	"fmt"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// A Device describes a tap to make. A tap is a link whose frames a program, such as a hypervisor, reads and writes
// through a file.
type Device struct {
	Name         string
	MultiQueue   bool    // several files at a time
	Owner, Group *uint32 // who may open it; nil: each user who may do so at all
	Label        string  // the context of SELinux that it is made in; empty: this program's
}

const tunDevice = "/dev/net/tun"

// Add makes a tap in the namespace and calls finish to set it up. Until finish succeeds, the tap is not persistent:
// it disappears if this program ends. Frames have neither packet information nor a virtio header, as with ip(8). The
// error is ErrLinkExists if a link of that name exists.
func Add(ns *kernel.NS, t Device, finish func() error) error {
	fd := -1
	// The file belongs to the namespace that it is opened in, whichever process has it.
	err := ns.Do(func() (err error) {
		fd, err = unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
		return err
	})
	switch {
	case netlink.Is(err, unix.ENOENT, unix.ENODEV, unix.ENXIO):
		return fmt.Errorf("add tap %s: open %s: %w (load the module tun, or let this container have the device: c 10 "+
			"200)",
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
		if _, there := rtnl.IndexOf(ns, t.Name); there == nil && netlink.Is(err, unix.EBUSY, unix.EEXIST, unix.EINVAL) {
			err = rtnl.ErrLinkExists
		}
		return fmt.Errorf("add tap %s: %w", t.Name, err)
	}
	for _, access := range []struct {
		what string
		req  uint
		id   *uint32
	}{{"owner", unix.TUNSETOWNER, t.Owner}, {"group", unix.TUNSETGROUP, t.Group}} {
		if access.id == nil {
			continue
		}
		if err := unix.IoctlSetInt(fd, access.req, int(*access.id)); err != nil {
			return fmt.Errorf("set %s %d of tap %s: %w", access.what, *access.id, t.Name, err)
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

// HasSELinux reports whether SELinux is enabled on this host.
func HasSELinux() bool {
	var st unix.Statfs_t
	err := unix.Statfs("/sys/fs/selinux", &st)
	return err == nil && uint32(st.Type) == unix.SELINUX_MAGIC
}
