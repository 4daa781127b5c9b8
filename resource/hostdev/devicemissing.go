package hostdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/spelling"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// missing says that the host has no such device, why not, and which it has.
func (d Device) missing(w *kernel.World) error {
	if name := d.inContainer(w); name != "" {
		return spec.Errorf(spec.CodeConfig,
			"%s: %q: is in the container already, as %s, and there is no record that it was moved; move it back, or "+
				"name another device", d.Key, d.value(), name)
	}
	if dir, err := d.dir(); err == nil && dir != "" {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			driver := driverOf(dir)
			_, err := os.Lstat(filepath.Join(dir, "subsystem"))
			if driver == "" && err == nil { // else it is no device
				return spec.Errorf(spec.CodeConfig,
					"%s: %q: no driver has the device; bind it to one (for user space vfio-pci, uio_pci_generic or "+
						"igb_uio)", d.Key, d.value())
			}
			if driver != "" {
				return spec.Errorf(spec.CodeConfig,
					"%s: %q: its driver, %s, shows no network link of it on the host; it may be in another network "+
						"namespace", d.Key, d.value(), driver)
			}
		}
	}
	names, err := d.others(w)
	if err != nil {
		return err
	}
	there := ""
	if len(names) > 0 {
		there = "; there is " + resource.SomeOf(names)
	}
	near, ok := spelling.Nearest(d.value(), names)
	if !ok && d.ID != "" { // most people leave out the domain, as lspci does
		near, ok = spelling.Nearest("0000:"+d.ID, names)
	}
	if ok {
		there += fmt.Sprintf("; did you mean %q?", near)
	}
	return spec.Errorf(spec.CodeConfig, "%s: %q: no such device on the host%s", d.Key, d.value(), there)
}

// inContainer is the name of the device's link in the container, if that has it.
func (d Device) inContainer(w *kernel.World) string {
	if w.Container == nil {
		return ""
	}
	links, err := rtnl.Links(w.Container)
	if err != nil {
		return ""
	}
	dir, dirErr := d.dir()
	for _, l := range links {
		switch {
		case l.Name == "lo":
		case d.Link != "" && (l.Name == d.Link || l.Alias == d.Link),
			d.MAC != "" && l.MAC.String() == resource.MACText(d.MAC),
			d.Link == "" && d.MAC == "" && dirErr == nil && below(dir, containerDir(l)):
			return l.Name
		}
	}
	return ""
}

// others are the devices that there are, in the words of the key by which this one was asked for.
func (d Device) others(w *kernel.World) (names []string, err error) {
	if d.ID == "" {
		links, err := rtnl.Links(w.Host)
		if err != nil {
			return nil, err
		}
		for _, l := range links {
			name := l.Name
			switch {
			case l.Name == "lo":
				continue
			case d.MAC != "":
				if name = l.MAC.String(); name == "" || slices.Contains(names, name) {
					continue
				}
			case d.Path != "":
				if name = dirOf(l); name == "" {
					continue
				}
			}
			names = append(names, name)
		}
		return names, nil
	}
	all, err := filepath.Glob(filepath.Join(sysBus, "pci/devices/*"))
	for _, p := range all {
		// network controllers
		if class, err := os.ReadFile(filepath.Join(p, "class")); err == nil &&
			strings.HasPrefix(string(class), "0x02") {
			names = append(names, filepath.Base(p))
		}
	}
	if d.Bus == "" {
		aux, auxErr := filepath.Glob(filepath.Join(sysBus, "auxiliary/devices/*"))
		err = errors.Join(err, auxErr)
		for _, p := range aux {
			names = append(names, filepath.Base(p))
		}
	}
	return names, err
}

// agree is nil if another way to say which device says l, too.
func (d Device) agree(w *kernel.World, by Device, l *rtnl.Link) error {
	other, err := d.find(w)
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return d.missing(w)
	case err != nil:
		return err
	case other.Index != l.Index:
		return spec.Errorf(spec.CodeConfig, "%s: %q: is %s, and %s says %s; leave one of them out", d.Key, d.value(),
			other.Name, by.Key, l.Name)
	}
	return nil
}
