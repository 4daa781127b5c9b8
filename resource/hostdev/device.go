package hostdev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Device selects a network device of the host. The first field that is not empty counts.
type Device struct {
	Key  string // the configuration's, for errors
	Link string // its name
	MAC  string
	Path string // below /sys/devices, of what has it as its net/
	Bus  string // pci, or empty: pci or auxiliary
	ID   string // on that bus
}

// String returns the device's name in a plan.
func (d Device) String() string {
	switch {
	case d.Link != "":
		return "host/" + d.Link
	case d.MAC != "":
		return "host device address " + resource.MACText(d.MAC)
	case d.Path != "":
		return "host device at " + d.Path
	case d.ID != "":
		return resource.Line("host device", d.Bus, d.ID)
	}
	return "the host"
}

func (d Device) value() string { return cmp.Or(d.Link, d.MAC, d.Path, d.ID) }

const sysBus = "/sys/bus"

// dir is the device's directory below /sys/devices, empty for one that is said by name or address.
func (d Device) dir() (string, error) {
	switch {
	case d.Link != "" || d.MAC != "":
		return "", nil
	case d.Path != "":
		return filepath.EvalSymlinks(d.Path)
	}
	dir, err := filepath.EvalSymlinks(filepath.Join(sysBus, "pci/devices", d.ID))
	if err != nil && d.Bus == "" {
		if aux, auxErr := filepath.EvalSymlinks(filepath.Join(sysBus, "auxiliary/devices", d.ID)); auxErr == nil {
			return aux, nil
		}
	}
	return dir, err
}

// DeviceAt returns the ways in which a path below /sys/devices selects a device. The path is that of the device, or
// that of its link below the device's net/, where /sys/class/net leads. A virtual link belongs to no device.
func DeviceAt(key, path string) []Device {
	dir, name := filepath.Split(strings.TrimSuffix(path, "/"))
	device, isNet := strings.CutSuffix(dir, "/net/")
	switch {
	case !isNet || name == "" || !strings.HasPrefix(path, devicesDir) ||
		filepath.Clean(dir) != strings.TrimSuffix(dir, "/"):
		return []Device{{Key: key, Path: path}}
	case device == devicesDir+"virtual":
		return []Device{{Key: key, Link: name}}
	}
	return []Device{{Key: key, Path: device}, {Key: key, Link: name}}
}

const devicesDir = "/sys/devices/"

// dirOf is the directory of the device that a link of the host is of, empty for a virtual one. The buses' directories
// are the same in every namespace; /sys/class/net shows one namespace only, and is for Linux before 5.14.
func dirOf(l *rtnl.Link) string {
	if l.Kind == "" && (l.ParentDevice == "" || l.ParentBus == "") {
		dir, _ := filepath.EvalSymlinks(filepath.Join("/sys/class/net", l.Name, "device"))
		return dir
	}
	return containerDir(l)
}

// below reports whether a link's device is that of a directory: virtio has a device of its own on the PCI device.
func below(dir, link string) bool {
	return dir != "" && (link == dir || filepath.Dir(link) == dir && strings.HasPrefix(filepath.Base(link), "virtio"))
}

// pciID is the PCI address of the device in a directory, which it may stand on.
func pciID(dir string) string {
	for range 3 {
		base := filepath.Base(dir)
		if _, err := os.Lstat(filepath.Join(sysBus, "pci/devices", base)); err == nil && strings.Count(base, ":") == 2 {
			return base
		}
		dir = filepath.Dir(dir)
	}
	return ""
}

// UserspaceDriver returns the driver of the PCI device with that address if the driver is for programs in user space,
// and "" otherwise.
func UserspaceDriver(id string) string {
	switch driver := driverOf(filepath.Join(sysBus, "pci/devices", id)); driver {
	case "vfio-pci", "uio_pci_generic", "igb_uio":
		return driver
	}
	return ""
}

func driverOf(dir string) string {
	driver, err := filepath.EvalSymlinks(filepath.Join(dir, "driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(driver)
}

// find is the device's link on the host, or ErrNoLink.
func (d Device) find(w *kernel.World) (*rtnl.Link, error) {
	if d.Link != "" {
		return rtnl.LinkByName(w.Host, d.Link)
	}
	dir, err := d.dir()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", rtnl.ErrNoLink, err)
	}
	links, err := rtnl.Links(w.Host)
	if err != nil {
		return nil, err
	}
	var found []*rtnl.Link
	for _, l := range links {
		if d.MAC != "" && l.MAC.String() == resource.MACText(d.MAC) || d.MAC == "" && below(dir, dirOf(l)) {
			found = append(found, l)
		}
	}
	if d.MAC != "" { // bridges, bonds and VLANs have the address of what is below them
		cards := slices.DeleteFunc(slices.Clone(found), func(l *rtnl.Link) bool {
			return l.Kind == "bridge" || l.Kind == "bond" || l.Kind == "team" || l.Kind == "vlan" ||
				l.Kind == "macvlan" ||
				l.Kind == "ipvlan"
		})
		if len(cards) > 0 {
			found = cards
		}
	}
	switch len(found) {
	case 0:
		return nil, rtnl.ErrNoLink
	case 1:
		return found[0], nil
	}
	var names []string
	for _, l := range found {
		names = append(names, l.Name)
	}
	if d.MAC == "" && d.Path == "" { // of a card with several ports at one address, the first one
		return found[0], nil
	}
	return nil, spec.Errorf(spec.CodeConfig, "%s: %q: is that of %s; name one of them by device", d.Key, d.value(),
		strings.Join(names, " and "))
}

// stays says that the kernel lets a link not leave its namespace. The newest kernels tell which; for the others, it is
// these kinds.
func (d Device) stays(l *rtnl.Link) error {
	switch l.Kind {
	case "bridge", "bond", "team", "vrf", "hsr", "batadv", "openvswitch":
		return spec.Errorf(spec.CodeConfig,
			"%s: %q: is %s, and the kernel lets it not leave its namespace; name a network card, or put a macvlan on "+
				"it", d.Key, d.value(), resource.KindOf(l))
	}
	return nil
}

// is reports whether a record is of this device.
func (d Device) is(r DeviceRecord) bool {
	switch {
	case d.Link != "":
		return r.Link == d.Link
	case d.MAC != "":
		return r.MAC == resource.MACText(d.MAC)
	}
	dir, err := d.dir()
	return err == nil && below(dir, r.Dir)
}

// A KnownDevice requires that a device is on the host, in a container of the network, or under a userspace driver.
// STATUS verifies it.
type KnownDevice struct {
	Device
	Network string
	Also    []Device // other ways by which the configuration says which, as HostDevice has them
}

// String returns a text such as "device host/ens4".
func (k KnownDevice) String() string { return "device " + k.Device.String() }

// Verify implements plan.Requirement.
func (k KnownDevice) Verify(_ context.Context, w *kernel.World) error {
	l, err := k.find(w)
	if err == nil {
		errs := []error{k.stays(l)}
		for _, d := range k.Also {
			if other, err := d.find(w); err == nil && other.Index != l.Index { // one that is not there says so itself
				errs = append(errs, d.agree(w, k.Device, l))
			}
		}
		return errors.Join(errs...)
	}
	if !errors.Is(err, rtnl.ErrNoLink) {
		return err
	}
	records, err := DeviceRecords(w)
	if err != nil {
		return err
	}
	for _, r := range records {
		if !k.is(r) {
			continue
		}
		var who *spec.Error
		switch err := r.held(w, k.Device); {
		case err != nil && (r.Owner.Network != k.Network || !errors.As(err, &who)):
			return err
		case err != nil || r.returns():
			return nil
		}
	}
	if k.ID != "" && UserspaceDriver(k.ID) != "" {
		return nil
	}
	return k.missing(w)
}

// ValidDevice returns nil if the selection of a device is valid.
func ValidDevice(d Device) error {
	switch {
	case d.Link != "":
		if err := spec.ValidIfName(d.Link); err != nil {
			return spec.Errorf(spec.CodeConfig, "%s: %q: %w", d.Key, d.Link, err)
		}
		if d.Link == "lo" {
			return spec.Errorf(spec.CodeConfig, "%s: \"lo\": stays where it is; name a network device", d.Key)
		}
	case d.MAC != "":
		return resource.ValidMAC(d.Key, d.MAC)
	case d.Path != "":
		if filepath.Clean(d.Path) != strings.TrimSuffix(d.Path, "/") || !strings.HasPrefix(d.Path, devicesDir) {
			return spec.Errorf(spec.CodeConfig,
				"%s: %q: want a path below /sys/devices/, such as /sys/devices/pci0000:00/0000:00:1f.6", d.Key, d.Path)
		}
	case d.ID != "":
		if strings.ContainsAny(d.ID, "/\x00") || d.ID == "." || d.ID == ".." {
			return spec.Errorf(spec.CodeConfig, "%s: %q: want a device's address, such as 0000:00:1f.6", d.Key, d.ID)
		}
	}
	return nil
}
