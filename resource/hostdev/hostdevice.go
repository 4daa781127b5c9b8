package hostdev

import (
	"context"
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/internal/kernel/machine"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

func (h HostDevice) final(f spec.Interface) plan.Resource {
	h.MAC, h.MTU = f.MAC, f.MTU
	return h
}

// A HostDevice is a network device of the host that is moved into the container and renamed. Its alias is its old
// name, as with the reference's plugin. The rest of its former state is recorded and restored.
type HostDevice struct {
	Owner  spec.Owner
	Name   string // in the container
	Device Device
	Also   []Device // other ways by which the configuration says which: they have to be the same one
	MAC    string   // to be verified: what the chain's result has
	MTU    int      // likewise

	Attached bool // for DEL: there is a result that shows that the container got it
}

func (h HostDevice) String() string {
	from := "moved from " + h.Device.String()
	for _, d := range h.Also {
		from += ", which is " + d.String()
	}
	return resource.Line("link cont/"+h.Name, from, resource.Opt("mtu", h.MTU),
		resource.Opt("address", resource.MACText(h.MAC)))
}

// Traits implements resource.Describer.
func (h HostDevice) Traits() resource.Traits {
	return resource.Traits{
		Ifaces: []resource.Iface{{Where: resource.Container, Name: h.Name}},
		Tell:   h.tell, Final: h.final,
	}
}

// tell says the PCI address.
func (h HostDevice) tell(w *kernel.World, res *spec.Result) error {
	r, known, err := recallDevice(w, h.Owner)
	if f := resource.InContainer(res, h.Name); f != nil && known && r.Dir != "" {
		f.PciID = pciID(r.Dir)
	}
	return err
}

// Ensure implements plan.Resource. If the container has a link of that name, Ensure always fails and changes nothing
// (P10).
func (h HostDevice) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	if w.Container == nil {
		return false, kernel.ErrNoNamespace
	}
	if _, err := rtnl.IndexOf(w.Container, h.Name); err == nil {
		return false, rtnl.NameTaken(h.Name)
	} else if !errors.Is(err, rtnl.ErrNoLink) {
		return false, err
	}
	unlock, err := record.Lock(ctx, deviceLock)
	if err != nil {
		return false, err
	}
	defer unlock()
	l, err := h.take(ctx, w)
	if err != nil {
		return false, err
	}
	if err := h.Device.stays(l); err != nil {
		return false, err
	}
	if _, _, text, ok := identity.ParseTag(l.Alias); ok {
		return false, spec.Errorf(spec.CodeConfig, "%s: %q: is a link of %s, made for it; name a device of the host",
			h.Device.Key, h.Device.value(), text)
	}
	r, err := h.record(w, l)
	if err == nil {
		err = r.chooseIndex(w, l.Index)
	}
	if err != nil {
		return false, errors.Join(err, w.Store.Delete(deviceMemory, h.Owner))
	}
	// For people only, and given here: before Linux 6.6 an altname that is given in there is left in a table of there.
	_ = rtnl.AddAltName(w.Host, l.Name, resource.AltName(h.Owner))
	m := rtnl.LinkChange{To: w.Container, Rename: h.Name, Index: r.Is.Index, Alias: l.Name, Up: true}
	err = rtnl.MoveLink(w.Host, l.Index, m)
	for n := 1; n < 4 && errors.Is(err, unix.EBUSY); n++ { // a link in there took that index meanwhile
		if err = r.chooseIndex(w, r.Is.Index+n); err == nil {
			m.Index = r.Is.Index
			err = rtnl.MoveLink(w.Host, l.Index, m)
		}
	}
	if err == nil {
		err = r.arrived(w, h.Name)
	}
	if err == nil {
		return true, nil
	}
	if errors.Is(err, unix.EINVAL) {
		err = spec.Errorf(spec.CodeConfig, "%s: %q: the kernel lets %s, %s, not leave its namespace: %w", h.Device.Key,
			h.Device.value(), l.Name, resource.KindOf(l), err)
	}
	_, back := r.release(context.WithoutCancel(ctx), w)
	return false, errors.Join(err, back)
}

// take is the device's link on the host. One that was left by a container that is gone becomes itself first.
func (h HostDevice) take(ctx context.Context, w *kernel.World) (*rtnl.Link, error) {
	if err := h.yield(ctx, w); err != nil {
		return nil, err
	}
	l, err := h.Device.find(w)
	if errors.Is(err, rtnl.ErrNoLink) {
		err = h.Device.missing(w)
	}
	for _, d := range h.Also {
		if err == nil {
			err = d.agree(w, h.Device, l)
		}
	}
	return l, err
}

// held says who has the device; nil if its container is gone, or has lost it.
func (r DeviceRecord) held(w *kernel.World, d Device) error {
	in, err := r.container(w)
	if err != nil || in == nil {
		return err
	}
	if in != w.Container {
		defer in.Close()
	}
	l, err := r.find(w, in)
	if err != nil {
		return err
	}
	if l == nil && !r.Userspace {
		return nil
	}
	as := ""
	if l != nil {
		as = ", as " + l.Name
	}
	return spec.Errorf(spec.CodeConfig, "%s: %q: %s has it%s, in %s; a device is for one container", d.Key, d.value(),
		r.ownerText(), as, r.Netns).HeldBy(r.ownerText())
}

// yield releases the device, and what the attachment has, of containers that are gone, or says which one has it.
func (h HostDevice) yield(ctx context.Context, w *kernel.World) error {
	records, err := DeviceRecords(w)
	if err != nil {
		return err
	}
	for _, r := range records {
		if !h.Device.is(r) && r.Owner != h.Owner {
			continue
		}
		if err := r.yield(ctx, w, h); err != nil {
			return err
		}
	}
	return nil
}

// yield releases the device of a container that is gone, or says who has it.
func (r DeviceRecord) yield(ctx context.Context, w *kernel.World, h HostDevice) error {
	if err := r.held(w, h.Device); err != nil {
		return err
	}
	away, err := r.release(ctx, w)
	// By now the host has another one of that name. What one of no bus was under, its own container has deleted, or
	// hides for good.
	if _, here := h.Device.find(w); here == nil && (r.Owner != h.Owner || r.Dir == "") {
		return err
	}
	if err == nil && away {
		return spec.Errorf(spec.CodeConfig,
			"%s: %q: %s had it, and the kernel has not brought it back from %s, whose processes may be alive",
			h.Device.Key, h.Device.value(), r.ownerText(), r.Netns).
			HeldBy(r.ownerText())
	}
	return err
}

// Verify implements plan.Resource.
func (h HostDevice) Verify(_ context.Context, w *kernel.World) error {
	r, known, err := recallDevice(w, h.Owner)
	if err != nil {
		return err
	}
	ns, l, err := resource.Container.Link(w, h.Name)
	if errors.Is(err, rtnl.ErrNoLink) && known {
		links, lerr := rtnl.Links(ns)
		if now := r.InContainer(links); lerr == nil && now != nil {
			err = spec.Difference{Field: "name", Want: h.Name, Got: now.Name}.Saying(
				fmt.Errorf("%w; it is called %s now", err, now.Name))
		}
	}
	if err != nil {
		return err
	}
	var is resource.Drift
	switch {
	case known:
		is.Want("alias", r.Link, l.Alias)
		if dir := containerDir(l); r.Dir != "" && dir != "" {
			is.Want("device", r.Dir, dir)
		}
		if l.Kind != r.Kind {
			is.Add(spec.DiffersBy("device", "is %s, not the device", resource.KindOf(l)))
		} else if r.Is != nil && (l.Index != r.Is.Index || !r.same(l)) {
			is.Add(spec.DiffersBy("device", "is another link, not the device"))
		}
	case h.Device.Link != "":
		is.Want("alias", h.Device.Link, l.Alias)
	}
	is.WantIfSet("address", resource.MACText(h.MAC), l.MAC)
	is.WantIfSet("mtu", h.MTU, l.MTU)
	is.WantUp("state", l)
	return is.Err()
}

// Remove implements plan.Remover.
func (h HostDevice) Remove(ctx context.Context, w *kernel.World) error {
	_, known, err := recallDevice(w, h.Owner)
	if err != nil {
		return err
	}
	if !known {
		if _, in, _, err := h.byReference(w); err != nil {
			return err
		} else if in == nil {
			return w.Store.Delete(deviceMemory, h.Owner)
		}
	}
	unlock, err := record.Lock(ctx, deviceLock)
	if err != nil {
		return err
	}
	defer unlock()
	r, known, err := recallDevice(w, h.Owner)
	if err != nil {
		return err
	}
	if known {
		_, err := r.release(ctx, w)
		return err
	}
	r, in, l, err := h.byReference(w)
	if err != nil || in == nil {
		return err
	}
	if in != w.Host {
		if l, err = r.bring(w, in, l); err != nil || l == nil {
			return err
		}
	}
	return r.restore(w, l)
}

// A UserspaceDevice is a device of the host for a program in the container that drives it itself. The device is not
// moved.
type UserspaceDevice struct {
	Owner spec.Owner
	Name  string // that the runtime has for it
	ID    string // its PCI address
	Key   string
}

func (u UserspaceDevice) String() string {
	return resource.Line("device", u.ID, "for user space as cont/"+u.Name)
}

// Traits implements resource.Describer.
func (u UserspaceDevice) Traits() resource.Traits {
	return resource.Traits{
		Ifaces: []resource.Iface{{Where: resource.Container, Name: u.Name, Unseen: true}},
		Tell:   u.tell,
	}
}

// tell says the PCI address.
func (u UserspaceDevice) tell(_ *kernel.World, res *spec.Result) error {
	if f := resource.InContainer(res, u.Name); f != nil {
		f.PciID = u.ID
	}
	return nil
}

func (u UserspaceDevice) device() HostDevice {
	return HostDevice{Owner: u.Owner, Name: u.Name, Device: Device{Key: u.Key, ID: u.ID, Bus: "pci"}}
}

// Ensure implements plan.Resource.
func (u UserspaceDevice) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	if w.Container == nil {
		return false, kernel.ErrNoNamespace
	}
	if err := u.bound(); err != nil {
		return false, err
	}
	unlock, err := record.Lock(ctx, deviceLock)
	if err != nil {
		return false, err
	}
	defer unlock()
	h := u.device()
	if err := h.yield(ctx, w); err != nil {
		return false, err
	}
	r := DeviceRecord{Owner: u.Owner, Netns: w.Container.Path, Userspace: true}
	var errs [3]error
	r.Boot, errs[0] = machine.BootID()
	r.NS, errs[1] = w.Container.Identity()
	r.Dir, errs[2] = h.Device.dir()
	if err := errors.Join(errs[:]...); err != nil {
		return false, err
	}
	return true, w.Store.PutSynced(deviceMemory, u.Owner, r)
}

func (u UserspaceDevice) bound() error {
	if UserspaceDriver(u.ID) == "" {
		return fmt.Errorf("device %s has no driver for user space any more", u.ID)
	}
	return nil
}

// Verify implements plan.Resource.
func (u UserspaceDevice) Verify(context.Context, *kernel.World) error { return u.bound() }

// Remove implements plan.Remover.
func (u UserspaceDevice) Remove(ctx context.Context, w *kernel.World) error {
	return u.device().Remove(ctx, w)
}
