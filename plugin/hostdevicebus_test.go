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

// bind gives the card to another driver, as driverctl(8) does; an empty one is that which is made for it.
func (c *pciCard) bind(driver string) {
	c.Helper()
	write := func(path, s string) {
		c.Helper()
		if err := os.WriteFile(path, []byte(s), 0); err != nil {
			c.Fatal(err)
		}
	}
	if _, err := os.Lstat(c.dir + "/driver"); err == nil {
		write(c.dir+"/driver/unbind", c.id)
	}
	write(c.dir+"/driver_override", driver+"\n")
	write("/sys/bus/pci/drivers_probe", c.id)
	if is, err := filepath.EvalSymlinks(c.dir + "/driver"); err != nil || driver != "" && filepath.Base(is) != driver {
		c.Fatalf("the driver of %s is %s, want %s: %v", c.id, is, driver, err)
	}
}

// TestHostDevicePCIUserspace: a driver by which programs in user space drive a card, as it is. The card stays with it,
// and the result has its place and its addresses. vfio-pci takes no card here, for the machine has no IOMMU:
// TestHostDeviceUserspace has it.
//
// clause: K8 P11 P12
func TestHostDevicePCIUserspace(t *testing.T) {
	c := newCard(t, "0000:00:11.0", "52:54:00:00:00:01")
	c.link()
	t.Cleanup(func() {
		c.bind("")
		c.link()
	})
	const driver = "uio_pci_generic"
	nstest.Run(t, "modprobe", driver)
	r := newRunner(t, chain{"pciuser", []string{`"type":"host-device","runtimeConfig":{"deviceID":"` + c.id + `"},` + hostLocal}, nil})
	r.host = c.ns.Path
	c.bind(driver)
	a, b := &attachment{id: "c1", netns: nstest.NewNS(t)}, &attachment{id: "c2", netns: nstest.NewNS(t)}
	r.must("first add", r.add(a))
	r.must("first del", r.del(a))
	before := state(t)
	r.must("status", r.status())
	r.must("add", r.add(a))
	res, err := spec.DecodeResult(a.prev, spec.V110)
	r.must("decode", err)
	if f := res.Interfaces; len(f) != 1 || f[0] != (spec.Interface{Name: "eth0", Sandbox: a.netns, PciID: c.id}) ||
		len(res.IPs) != 2 || len(res.Routes) != 2 {
		t.Errorf("result %s", a.prev)
	}
	if out := nstest.RunIn(t, a.netns, "ip", "-br", "link"); strings.Contains(out, "eth0") {
		t.Errorf("in the container: %s", out)
	}
	r.must("check", r.check(a))
	for _, keys := range []string{`"pciBusID":"` + c.id + `"`, `"kernelpath":"` + c.dir + `"`} {
		wantCode(t, keys, r.with(keys).add(b), spec.CodeConfig, "life-pciuser/c1/eth0 has it, in "+a.netns)
	}
	r.must("del of the second", r.del(b))
	r.must("check after another asked", r.check(a))

	c.bind("") // behind our back
	c.link()
	if err := r.check(a); err == nil || !strings.Contains(err.Error(),
		"device "+c.id+" has no driver for user space any more") {
		t.Errorf("with its own driver again, CHECK says %v", err)
	}
	r.must("del", r.del(a))
	r.must("del again", r.del(a))
	c.bind(driver)
	wantCode(t, "by its path", r.with(`"kernelpath":"`+c.dir+`"`).add(b), spec.CodeConfig, "its driver, "+driver+", shows no network link of it")
	r.must("add", r.add(a))
	r.must("gc", r.gc())
	same(t, "gc", before)
}

// with is the same runtime with other keys of the only plugin.
func (r *runner) with(keys string) *runner {
	other := *r
	other.chain.plugins = []string{`"type":"host-device",` + keys}
	return &other
}

// TestHostDeviceAuxiliary: a device of the auxiliary bus, as the functions of a card have it that are no functions of
// PCI. No emulated card has any, so a real card gets such a name here: the bus's directory has symbolic links to
// devices and nothing else.
//
// clause: K8
func TestHostDeviceAuxiliary(t *testing.T) {
	c := newCard(t, "0000:00:11.0", "52:54:00:00:00:01")
	name := c.link().Name
	all, err := filepath.Glob(c.dir + "/virtio*")
	if err != nil || len(all) > 1 {
		t.Fatal(all, err)
	}
	dir := append(all, c.dir)[0]
	const id = "mlx5_core.sf.4"
	if err := unix.Mount("tmpfs", "/sys/bus/auxiliary", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount("/sys/bus/auxiliary", unix.MNT_DETACH) })
	if err := os.Mkdir("/sys/bus/auxiliary/devices", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, "/sys/bus/auxiliary/devices/"+id); err != nil {
		t.Fatal(err)
	}
	before := c.show()
	r := newRunner(t, chain{"aux", []string{`"type":"host-device","runtimeConfig":{"deviceID":"` + id + `"},` + hostLocal4}, nil})
	r.host = c.ns.Path
	a, b := &attachment{id: "c1", netns: nstest.NewNS(t)}, &attachment{id: "c2", netns: nstest.NewNS(t)}
	wantCode(t, "unknown", r.with(`"runtimeConfig":{"deviceID":"mlx5_core.sf.5"}`).add(a), spec.CodeConfig,
		`runtimeConfig.deviceID: "mlx5_core.sf.5": no such device on the host; there is 0000:00:10.0, 0000:00:11.0, mlx5_core.sf.4; did you mean "mlx5_core.sf.4"?`)
	wantCode(t, "without the domain", r.with(`"pciBusID":"00:11.0"`).add(a), spec.CodeConfig,
		`pciBusID: "00:11.0": no such device on the host; there is 0000:00:10.0, 0000:00:11.0; did you mean "0000:00:11.0"?`)
	r.must("status", r.status())
	r.must("add", r.add(a))
	if f := interfaceOf(t, a.prev, "eth0"); f.PciID != c.id || f.MAC != c.mac || f.Sandbox != a.netns {
		t.Errorf("interface %+v", f)
	}
	r.must("check", r.check(a))
	r.must("status in use", r.status())
	wantCode(t, "by its name", r.add(b), spec.CodeConfig, "life-aux/c1/eth0 has it, as eth0, in "+a.netns)
	wantCode(t, "by its address", r.with(`"pciBusID":"`+c.id+`"`).add(b), spec.CodeConfig, "life-aux/c1/eth0 has it, as eth0, in "+a.netns)
	wantCode(t, "by its link", r.with(`"device":"`+name+`"`).add(b), spec.CodeConfig, "life-aux/c1/eth0 has it, as eth0, in "+a.netns)
	r.must("del", r.del(a))
	if after := c.show(); after != before {
		t.Errorf("after DEL\n%s\nbefore\n%s", after, before)
	}
}
