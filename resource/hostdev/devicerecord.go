package hostdev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/kernel/machine"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

const (
	deviceMemory = "device" // kind of its records
	deviceLock   = "host-device"

	// deviceLimit is how long a device is waited for that the kernel brings back from a namespace that is gone.
	deviceLimit = 5 * time.Second
)

// A DeviceRecord says what state a device had on the host, and which attachment has it.
type DeviceRecord struct {
	Owner     spec.Owner
	Boot      string          // a device is itself again after the next one
	NS        kernel.Identity // of the container's namespace, and
	Netns     string          // its path
	Userspace bool            // nothing was moved
	Dir       string          // see Device.dir; empty for a virtual one
	Is        *deviceIdentity // nil in the records of earlier versions
	deviceState
}

func (r DeviceRecord) ownerText() string { return r.Owner.String() }

// record describes a link of the host before it is moved.
func (h HostDevice) record(w *kernel.World, l *rtnl.Link) (r DeviceRecord, err error) {
	r = DeviceRecord{Owner: h.Owner, Netns: w.Container.Path, Dir: dirOf(l), Is: identityOf(l)}
	if r.Boot, err = machine.BootID(); err != nil {
		return r, err
	}
	if r.NS, err = w.Container.Identity(); err != nil {
		return r, err
	}
	r.deviceState, err = deviceStateOf(w, l)
	return r, err
}

// DeviceRecords returns the records of the current boot.
func DeviceRecords(w *kernel.World) (records []DeviceRecord, err error) {
	all, err := resource.DecodeRecords[DeviceRecord](w.Store.All(deviceMemory))
	if err != nil || len(all) == 0 {
		return nil, err
	}
	boot, err := machine.BootID()
	for _, r := range all {
		if r.Boot == boot {
			records = append(records, r)
		}
	}
	slices.SortFunc(records, func(a, b DeviceRecord) int { return strings.Compare(a.ownerText(), b.ownerText()) })
	return records, err
}

// recallDevice is an owner's record, if it is of this boot.
func recallDevice(w *kernel.World, o spec.Owner) (r DeviceRecord, known bool, err error) {
	if known, err = w.Store.Get(deviceMemory, o, &r); !known || err != nil {
		return r, false, err
	}
	boot, err := machine.BootID()
	return r, r.Boot == boot, err
}

// find is the device's link in the container, or nil.
func (r DeviceRecord) find(w *kernel.World, in *kernel.NS) (*rtnl.Link, error) {
	links, err := rtnl.Links(in)
	if err != nil {
		return nil, err
	}
	if r.Is != nil && r.Is.In == nil {
		r.expect(w, in)
	}
	return r.InContainer(links), nil
}

// InContainer returns the link of the device among the links of the container, or nil. A record of an earlier version
// identifies the link only by the device below it, which root in the container cannot take away. If there is no such
// device, the link with the recorded name and kind counts.
func (r DeviceRecord) InContainer(links []*rtnl.Link) *rtnl.Link {
	if r.Userspace {
		return nil
	}
	if r.Is != nil {
		return r.identified(links)
	}
	for _, is := range []func(l *rtnl.Link) bool{
		func(l *rtnl.Link) bool { return r.Dir != "" && containerDir(l) == r.Dir },
		func(l *rtnl.Link) bool {
			return l.Alias == r.Link || slices.Contains(l.AltNames(), resource.AltName(r.Owner))
		},
		func(l *rtnl.Link) bool { return r.Dir == "" && l.Name == r.Owner.IfName && !resource.OwnVRF(l) },
	} {
		for _, l := range links {
			if l.Kind == r.Kind && is(l) {
				return l
			}
		}
	}
	return nil
}

// onHost is the device's link, or nil: under its own name, or as the kernel brought it back.
func (r DeviceRecord) onHost(w *kernel.World) (*rtnl.Link, error) {
	links, err := rtnl.Links(w.Host)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		switch {
		case !r.home(l):
		case r.Dir != "" && dirOf(l) == r.Dir, r.cameHome(l),
			r.Dir == "" && (l.Alias == r.Link || slices.Contains(l.AltNames(), resource.AltName(r.Owner))),
			r.Dir == "" && l.Name == r.Link && l.Alias == r.Alias && l.MAC.String() == r.MAC:
			return l, nil
		}
	}
	return nil, nil
}

// container is the namespace that the device was moved to, if that is still there. The caller closes what is not w's.
func (r DeviceRecord) container(w *kernel.World) (*kernel.NS, error) {
	if w.Container != nil {
		if same, err := w.Container.Is(r.NS); err != nil || same {
			return w.Container, err
		}
	}
	return kernel.Reopen(r.Netns, r.NS)
}

// returns reports whether there will be a device again that no container has: a card comes back after its namespace's
// end, and a VLAN is made again. What else was virtual ended with the namespace.
func (r DeviceRecord) returns() bool {
	if r.Userspace || r.VLAN != nil {
		return true
	}
	_, err := os.Lstat(r.Dir)
	return r.Dir != "" && err == nil
}

// release gives the device back, wherever it is, and forgets it. A device that is nowhere, and can come back yet, is
// kept in mind: away.
func (r DeviceRecord) release(ctx context.Context, w *kernel.World) (away bool, err error) {
	if r.Userspace {
		return false, w.Store.Delete(deviceMemory, r.Owner)
	}
	l := r.stayed(w)
	if l != nil {
		return r.returned(w, l)
	}
	in, err := r.container(w)
	if err != nil {
		return true, err
	}
	if in != nil {
		if in != w.Container {
			defer in.Close()
		}
		if l, err = r.fetch(w, in); err != nil {
			return true, err
		}
	}
	if l == nil {
		l, err = r.onHost(w)
	}
	// the kernel brings it back some time after the namespace's end
	if err == nil && l == nil && in == nil && r.Kind == "" {
		err = rtnl.Await(w.Host, ctx, deviceLimit, []uint{rtnl.LinkEvents}, func() (ok bool, err error) {
			l, err = r.onHost(w)
			return l != nil, err
		})
		if errors.Is(err, context.DeadlineExceeded) {
			err = nil
		}
	}
	if err == nil && l == nil && in == nil && r.VLAN != nil {
		l, err = r.makeVLAN(ctx, w)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		slog.Warn("the device is in another namespace yet; it is given back when it is not", "device", r.Link,
			"was for", r.ownerText())
		return true, nil
	}
	if err != nil {
		return true, err
	}
	switch {
	case l != nil:
		return r.returned(w, l)
	case in != nil && !r.unplugged():
		r.hidden()
		return true, nil
	case r.Dir != "" && !r.unplugged():
		slog.Warn("the device is nowhere to be seen; it is given back when it is", "device", r.Link,
			"was for", r.ownerText())
		return true, nil
	}
	// it went with its namespace, or with its driver, or was pulled out
	return false, w.Store.Delete(deviceMemory, r.Owner)
}

// fetch brings the device out of a container's namespace, if it is there.
func (r DeviceRecord) fetch(w *kernel.World, in *kernel.NS) (*rtnl.Link, error) {
	l, err := r.find(w, in)
	if err != nil || l == nil {
		return nil, err
	}
	return r.bring(w, in, l)
}

// unplugged reports whether no driver has a link for the device any more: there is a directory of such links while one
// has, in whichever namespace.
func (r DeviceRecord) unplugged() bool {
	_, err := os.Lstat(filepath.Join(r.Dir, "net"))
	return r.Dir != "" && errors.Is(err, fs.ErrNotExist)
}

// returned makes the device on the host what it was, and forgets it.
func (r DeviceRecord) returned(w *kernel.World, l *rtnl.Link) (away bool, err error) {
	if err := r.restore(w, l); err != nil {
		return true, err
	}
	return false, w.Store.Delete(deviceMemory, r.Owner)
}

// bring moves the device from a container to the host, and returns it as it is there. It gets its name and address
// before, so that no program on the host sees another one; alias and group come with the move, so that the call that
// goes on after a kill finds it, and it is not taken for what its container says that it is.
func (r DeviceRecord) bring(w *kernel.World, in *kernel.NS, l *rtnl.Link) (*rtnl.Link, error) {
	foreign := slices.DeleteFunc(l.AltNames(), func(alt string) bool {
		return slices.Contains(r.AltNames, alt) || alt == resource.AltName(r.Owner)
	})
	_ = rtnl.DelAltNames(in, l.Index, foreign...) // one that the host has too would stop the move, which tells
	if l.Name != r.Link && r.Is != nil {          // without that it is known by its name
		if err := rename(in, l, r.Link); err != nil && !errors.Is(err, rtnl.ErrLinkExists) {
			return nil, err
		}
	}
	if mac, err := net.ParseMAC(r.MAC); err == nil && l.MAC.String() != r.MAC {
		_ = rtnl.MoveLink(in, l.Index, rtnl.LinkChange{MAC: mac}) // who cannot now can on the host, or says so there
	}
	// the kernel takes a name before an alias, and may stop there when the link is on the host already
	if l.Alias != r.Link {
		if err := rtnl.SetAlias(in, l.Index, r.Link); err != nil {
			return nil, err
		}
	}
	m := rtnl.LinkChange{To: w.Host, Rename: r.Link, Alias: r.Link, Group: r.group(l)}
	_, err := rtnl.IndexOf(w.Host, r.Link)
	if err != nil {
		err = rtnl.MoveLink(in, l.Index, m)
	} else {
		err = rtnl.ErrLinkExists
	}
	if errors.Is(err, rtnl.ErrLinkExists) {
		slog.Warn("another link of the host has the device's name", "device", r.Link)
		_ = rtnl.DelAltNames(in, l.Index, l.AltNames()...) // or one of those; what it had is given back
		m.Rename = identity.LinkName("dev", r.Owner)       // the owner's own: a link of that name is the one that came
		if err = rtnl.MoveLink(in, l.Index, m); errors.Is(err, rtnl.ErrNoLink) {
			return r.onHost(w)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("give %s back: %w", r.Link, err)
	}
	// All of that went by the index, and root in the container may have given it to another link meanwhile.
	came, err := rtnl.LinkByName(w.Host, m.Rename)
	if err == nil && !r.isThat(came, w, in, l) {
		return nil, r.refuse(w, in, came)
	}
	if err == nil && m.Rename != r.Link && rename(w.Host, came, "dev%d") == nil {
		return rtnl.LinkByIndex(w.Host, came.Index)
	}
	return came, err
}

// containerDir is dirOf for a link of a container, which /sys does not show.
func containerDir(l *rtnl.Link) string {
	if l.ParentBus == "" || l.ParentDevice == "" || l.Kind != "" {
		return ""
	}
	dir, _ := filepath.EvalSymlinks(filepath.Join(sysBus, l.ParentBus, "devices", l.ParentDevice))
	return dir
}
