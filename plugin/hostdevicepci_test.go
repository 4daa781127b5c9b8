package plugin_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// A card is a PCI network card, which is in the namespace that the kernel itself brings such devices back to.
type pciCard struct {
	*testing.T
	id, mac, dir string
	ns           *kernel.NS
}

func newCard(t *testing.T, id, mac string) *pciCard {
	t.Helper()
	nstest.NeedMachine(t) // a card of that number on another would be somebody's
	dir, err := filepath.EvalSymlinks("/sys/bus/pci/devices/" + id)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := kernel.Open("/proc/1/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	return &pciCard{t, id, mac, dir, ns}
}

// await waits for a link of the host.
func (c *pciCard) await(is func(*rtnl.Link) bool) (found *rtnl.Link) {
	c.Helper()
	err := rtnl.Await(c.ns, c.Context(), nstest.Patience(c), []uint{rtnl.LinkEvents}, func() (bool, error) {
		links, err := rtnl.Links(c.ns)
		for _, l := range links {
			if is(l) {
				found = l
			}
		}
		return found != nil, err
	})
	if err != nil {
		c.Fatalf("the link of %s: %v; there is\n%s", c.id, err, nstest.RunIn(c, c.ns.Path, "ip", "addr"))
	}
	return found
}

// link is the card's, as itself.
func (c *pciCard) link() *rtnl.Link {
	c.Helper()
	return c.await(func(l *rtnl.Link) bool { return l.Kind == "" && l.MAC.String() == c.mac })
}

// arrive waits until the kernel has brought the card back, whatever it is called.
func (c *pciCard) arrive() {
	c.Helper()
	c.await(func(l *rtnl.Link) bool {
		dir, err := filepath.EvalSymlinks(filepath.Join("/sys/bus", l.ParentBus, "devices", l.ParentDevice))
		return l.ParentBus != "" && err == nil && strings.HasPrefix(dir, c.dir)
	})
}

func (c *pciCard) show() string {
	return fieldsOf(nstest.RunIn(c, c.ns.Path, "sh", "-c",
		"ip -o addr show dev "+c.link().Name+"; ip -o link show dev "+c.link().Name))
}

// TestHostDevicePCI moves PCI cards into containers that end in every way.
//
// clause: K8 P12 P22
func TestHostDevicePCI(t *testing.T) {
	c := newCard(t, "0000:00:10.0", "52:54:00:00:00:00")
	name := c.link().Name
	was := c.link()
	nstest.RunIn(t, c.ns.Path, "sh", "-ec", "ip link set "+name+
		" up mtu 1400 alias storage; ip addr add 203.0.113.16/24 dev "+name)
	t.Cleanup(func() {
		nstest.RunIn(t, c.ns.Path, "ip", "addr", "del", "203.0.113.16/24", "dev", name)
		_ = rtnl.SetLink(c.ns, name, rtnl.LinkChange{MTU: was.MTU, Down: !was.Up})
	})
	before := c.show()
	back := func(when string) {
		t.Helper()
		if after := c.show(); after != before {
			t.Errorf("%s:\n%s\nbefore:\n%s", when, after, before)
		}
	}
	path := c.dir
	if all, err := filepath.Glob(c.dir + "/virtio*"); err == nil && len(all) > 0 {
		path = all[0]
	}
	for _, keys := range []string{
		`"runtimeConfig":{"deviceID":"` + c.id + `"}`,
		`"pciBusID":"` + c.id + `"`,
		`"kernelpath":"` + path + `"`,
		`"hwaddr":"` + c.mac + `"`,
		`"device":"` + name + `"`,
	} {
		r := newRunner(t, chain{"pci", []string{`"type":"host-device",` + keys + "," + hostLocal4}, nil})
		r.host = c.ns.Path
		a := &attachment{id: "c1", netns: nstest.NewNS(t)}
		r.must("status", r.status())
		r.must("add", r.add(a))
		if f := interfaceOf(t, a.prev, "eth0"); f.PciID != c.id || f.MAC != c.mac || f.MTU != 1400 || f.Sandbox != a.netns {
			t.Errorf("%s: interface %+v", keys, f)
		}
		r.must("check", r.check(a))
		wantCode(t, keys, r.add(&attachment{id: "c2", netns: nstest.NewNS(t)}), spec.CodeConfig,
			"life-pci/c1/eth0 has it, as eth0, in "+a.netns)
		r.must("status in use", r.status())
		r.must("del", r.del(a))
		back(keys)
		r.must("del again", r.del(a))
		back(keys + ", twice")

		// The namespace ends, and the kernel brings the card back under the container's name, as it is by then.
		for end, do := range map[string]func(a *attachment) error{
			"DEL": func(a *attachment) error { return r.del(&attachment{id: a.id, netns: a.netns}) },
			"GC":  func(*attachment) error { return r.gc() },
			"another ADD": func(*attachment) error {
				c.arrive()
				b := &attachment{id: "c9", netns: nstest.NewNS(t)}
				return errors.Join(r.add(b), r.check(b), r.del(b), r.gc())
			},
		} {
			a := &attachment{id: "c3", netns: nstest.NewNS(t)}
			r.must("add", r.add(a))
			nstest.RunIn(t, a.netns, "sh", "-ec",
				"ip link set eth0 mtu 1300; ip link set eth0 down; ip link set eth0 address 02:00:00:00:00:0b name eth7")
			if end == "GC" { // the name is taken, so that the kernel makes one up
				nstest.RunIn(t, c.ns.Path, "ip", "link", "add", "eth7", "type", "bridge")
			}
			if err := nstest.RemoveNS(a.netns); err != nil {
				t.Fatal(err)
			}
			r.must(end, do(a))
			if left, err := filepath.Glob("/run/cni/fairlead/memory/device.*"); err != nil || len(left) > 0 {
				t.Logf("%s: the kernel takes its time", end) // as it may, and the next GC finds the card
				c.arrive()
				r.must("gc", r.gc())
			}
			if end == "GC" {
				nstest.RunIn(t, c.ns.Path, "ip", "link", "del", "eth7")
			}
			back(keys + ", " + end + " of a container that is gone")
		}
	}
}

// TestHostDevicePCIUnbound: a card without a driver is refused in these words, and DEL of it succeeds.
func TestHostDevicePCIUnbound(t *testing.T) {
	c := newCard(t, "0000:00:11.0", "52:54:00:00:00:01")
	c.link()
	driver, err := filepath.EvalSymlinks(c.dir + "/driver")
	if err != nil {
		t.Fatal(err)
	}
	r := newRunner(t, chain{"pci", []string{`"type":"host-device","pciBusID":"` + c.id + `",` + hostLocal4}, nil})
	r.host = c.ns.Path
	held := &attachment{id: "c2", netns: nstest.NewNS(t)}
	r.must("add", r.add(held))
	if err := os.WriteFile(driver+"/unbind", []byte(c.id), 0); err != nil {
		t.Fatal(err)
	}
	r.must("del of a card that was pulled out", r.del(held))
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	wantCode(t, "unbound", r.add(a), spec.CodeConfig, `pciBusID: "`+c.id+`": no driver has the device`)
	if err := r.status(); err == nil || !strings.Contains(err.Error(), "no driver has the device") {
		t.Errorf("status: %v", err)
	}
	r.must("del", r.del(a))
	if err := os.WriteFile(driver+"/bind", []byte(c.id), 0); err != nil {
		t.Fatal(err)
	}
	c.link()
	r.must("gc", r.gc())
	r.must("add after the driver is back", r.add(a))
	if _, err := net.ParseMAC(interfaceOf(t, a.prev, "eth0").MAC); err != nil {
		t.Error(err)
	}
	r.must("del", r.del(a))
	c.link()
}
