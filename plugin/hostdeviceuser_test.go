package plugin_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// TestHostDeviceUserspace: a device that a program in user space is to drive stays where it is. The result has its
// addresses and its place; nothing of it is given to a link. No such device is needed: what is looked at is a
// directory with a driver, which is put over /sys/bus.
//
// clause: K8 P11 P12
func TestHostDeviceUserspace(t *testing.T) {
	const id = "0000:03:00.0"
	if err := unix.Mount("tmpfs", "/sys/bus", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount("/sys/bus", unix.MNT_DETACH) })
	for _, dir := range []string{"/sys/bus/pci/devices/" + id, "/sys/bus/pci/drivers/vfio-pci",
		"/sys/bus/pci/drivers/virtio-pci"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bind := func(driver string) {
		t.Helper()
		link := "/sys/bus/pci/devices/" + id + "/driver"
		_ = os.Remove(link)
		if err := os.Symlink("/sys/bus/pci/drivers/"+driver, link); err != nil {
			t.Fatal(err)
		}
	}
	bind("vfio-pci")
	for _, keys := range []string{`"pciBusID":"` + id + `"`, `"runtimeConfig":{"deviceID":"` + id + `"}`} {
		r := newRunner(t, chain{"userspace", []string{`"type":"host-device",` + keys + "," + hostLocal}, nil})
		a := &attachment{id: "c1", netns: nstest.NewNS(t)}
		r.must("first add", r.add(a))
		r.must("first del", r.del(a))
		before := state(t)
		r.must("status", r.status())
		r.must("add", r.add(a))
		res, err := spec.DecodeResult(a.prev, spec.V110)
		r.must("decode", err)
		if f := res.Interfaces; len(f) != 1 || f[0] != (spec.Interface{Name: "eth0", Sandbox: a.netns, PciID: id}) ||
			len(res.IPs) != 2 || *res.IPs[0].Interface != 0 || len(res.Routes) != 2 {
			t.Errorf("result %s", a.prev)
		}
		if out := nstest.RunIn(t, a.netns, "ip", "-br", "link"); strings.Contains(out, "eth0") {
			t.Errorf("in the container: %s", out)
		}
		r.must("check", r.check(a))
		b := &attachment{id: "c2", netns: nstest.NewNS(t)}
		wantCode(t, "a second container", r.add(b), spec.CodeConfig, "life-userspace/c1/eth0 has it, in "+a.netns)
		r.must("del of the second", r.del(b))
		r.must("status in use", r.status())

		bind("virtio-pci")
		if err := r.check(a); err == nil || !strings.Contains(err.Error(),
			"device "+id+" has no driver for user space any more") {
			t.Errorf("another driver has it: %v", err)
		}
		r.must("del", r.del(a))
		r.must("del again", r.del(a))
		same(t, "del", before)
		wantCode(t, "a driver without a link", r.add(b), spec.CodeConfig,
			"its driver, virtio-pci, shows no network link of it on the host")
		bind("vfio-pci")

		r.must("add", r.add(a))
		if err := nstest.RemoveNS(a.netns); err != nil {
			t.Fatal(err)
		}
		r.must("add after the container is gone", r.add(b))
		r.must("check", r.check(b))
		r.must("gc", r.gc())
		same(t, "gc", before)
		if _, err := os.Stat(filepath.Join("/sys/bus/pci/devices", id)); err != nil {
			t.Fatal(err)
		}
	}
}
