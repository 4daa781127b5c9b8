package link

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// clause: P10 P12 P14
func TestVeth(t *testing.T) {
	for name, master := range map[string]string{"bridged": "cni0", "point to point": ""} {
		t.Run(name, func(t *testing.T) {
			w := contract.NewWorld(t)
			contract.Must(t, w, Bridge{Name: "cni0"}, Bridge{Name: "other"})
			v := testVeth(contract.Owner, master)
			v.MTU, v.MAC, v.HostMAC = 1400, "02:00:00:00:00:01", "02:00:00:00:00:02"
			v.Hairpin, v.Isolated = master != "", master != ""
			breakers := []contract.Breakage{
				contract.Break("container end gone", contract.In(w, "ip link del eth0"), "link eth0: link does not exist"),
				contract.Break("container end down", contract.In(w, "ip link set eth0 down"), "state is down"),
				contract.Break("container end's address", contract.In(w, "ip link set eth0 address 02:00:00:00:00:99"),
					"address is 02:00:00:00:00:99"),
				contract.Break("host end down", contract.On(w, "ip link set "+v.Host+" down"), "host state is down"),
				contract.Break("host end's address", contract.On(w, "ip link set "+v.Host+" address 02:00:00:00:00:99"),
					"host address is 02:00:00:00:00:99"),
				contract.Break("host end's mtu", contract.On(w, "ip link set "+v.Host+" mtu 1300"), "host mtu is 1300"),
				contract.Break("another pair", contract.In(w, "ip link set eth0 name was0",
					"ip link add eth0 address 02:00:00:00:00:01 up type veth peer name x"), "not the two ends of one pair"),
				contract.Break("another type", contract.In(w, "ip link del eth0", "ip link add eth0 type bridge"),
					"type is bridge"),
			}
			if master != "" {
				breakers = append(breakers,
					contract.Break("master", contract.On(w, "ip link set "+v.Host+" master other"), "master is other"),
					contract.Break("no master", contract.On(w, "ip link set "+v.Host+" nomaster"), "master is none"),
					contract.Break("hairpin", contract.On(w, "bridge link set dev "+v.Host+" hairpin off"), "hairpin is false"),
					contract.Break("isolated", contract.On(w, "bridge link set dev "+v.Host+" isolated off"), "isolated is false"))
			} else {
				breakers = append(breakers, contract.Break("accept_ra",
					contract.On(w, "sysctl -qw net.ipv6.conf."+v.Host+".accept_ra=2"), "accept_ra is 2"))
			}
			contract.Terms{Once: true, Repair: func(t *testing.T) {
				for _, l := range []string{"eth0", "was0"} {
					if _, err := rtnl.LinkByName(w.Container, l); err == nil {
						contract.Container(t, w, "ip link del %s", l)
					}
				}
				contract.Must(t, w, v)
			}}.Test(t, w, v, breakers...)
		})
	}
}

// What a pair is born with, and what it is marked with.
func TestVethMarks(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Must(t, w, Bridge{Name: "cni0"})
	v := testVeth(contract.Owner, "cni0")
	v.Down = true
	contract.Must(t, w, v)
	if err := v.Verify(t.Context(), w); err != nil {
		t.Error(err)
	}
	h, err := rtnl.LinkByName(w.Host, v.Host)
	if err != nil {
		t.Fatal(err)
	}
	c, err := rtnl.LinkByName(w.Container, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	if c.Up || !h.Up || h.Alias != identity.Tag(contract.Owner) || h.Group != identity.LinkGroup("net") ||
		c.MAC.String() != identity.MAC("cont", contract.Owner).String() ||
		h.MAC.String() != identity.MAC("host", contract.Owner).String() {
		t.Errorf("container %+v\nhost %+v", c, h)
	}
	if out := contract.Host(t, w, "ip link show net:c1:eth0"); !strings.Contains(out, v.Host) {
		t.Errorf("by its other name: %s", out)
	}
	if v := contract.Sysctl(t, w.Host, "net/ipv6/conf/"+v.Host+"/disable_ipv6"); v != "1" {
		t.Errorf("disable_ipv6 is %s", v)
	}
	contract.Must(t, w, Up{Link: "eth0"})
	v.Down = false
	if err := v.Verify(t.Context(), w); err != nil {
		t.Error(err)
	}
}

// clause: P10 P11
func TestVethInTheWay(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Must(t, w, Bridge{Name: "cni0"})
	v := testVeth(contract.Owner, "cni0")
	refused := func(t *testing.T, want string) {
		t.Helper()
		before := contract.State(t, w)
		_, err := v.Ensure(t.Context(), w)
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, rtnl.ErrLinkExists) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if after := contract.State(t, w); after != before {
			t.Errorf("changed: %s", contract.Difference(before, after))
		}
	}
	t.Run("a link in the container", func(t *testing.T) {
		contract.Container(t, w, "ip link add eth0 type bridge")
		refused(t, "in the container: eth0: an interface of that name exists already")
		contract.Container(t, w, "ip link del eth0")
	})
	t.Run("somebody else's link on the host", func(t *testing.T) {
		contract.Host(t, w, "ip link add %s type veth peer name x", v.Host)
		refused(t, "already exists on the host and was not made for this attachment")
		if err := v.Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
		if _, err := rtnl.LinkByName(w.Host, v.Host); err != nil {
			t.Errorf("removed somebody else's: %v", err)
		}
		contract.Host(t, w, "ip link del %s", v.Host)
	})
	t.Run("its own, under another name", func(t *testing.T) {
		contract.Must(t, w, v)
		contract.Container(t, w, "ip link set eth0 down")
		contract.Container(t, w, "ip link set eth0 name net0")
		refused(t, "already leads into the container")
		contract.Container(t, w, "ip link del net0")
	})
	t.Run("a leftover of another namespace is replaced", func(t *testing.T) {
		old := *w
		old.Container = contract.OpenNS(t)
		contract.Must(t, &old, v)
		contract.Must(t, w, v)
		if err := v.Verify(t.Context(), w); err != nil {
			t.Error(err)
		}
		if _, err := rtnl.LinkByName(old.Container, "eth0"); !errors.Is(err, rtnl.ErrNoLink) {
			t.Errorf("the former one: %v", err)
		}
	})
	t.Run("no bridge", func(t *testing.T) {
		v := testVeth(spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth1"}, "none0")
		if _, err := v.Ensure(t.Context(), w); !errors.Is(err, rtnl.ErrNoLink) {
			t.Error(err)
		}
		v.Master, v.MAC = "cni0", "01:00:00:00:00:01"
		if _, err := v.Ensure(t.Context(), w); err == nil {
			t.Error("a multicast address: no error")
		}
		if _, err := rtnl.LinkByName(w.Host, v.Host); !errors.Is(err, rtnl.ErrNoLink) {
			t.Errorf("left behind: %v", err)
		}
	})
}

// clause: P12
func TestVethRemove(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Must(t, w, Bridge{Name: "cni0"}, Bridge{Name: "other"})
	v := testVeth(contract.Owner, "cni0")
	nowhere := &kernel.World{Host: w.Host}
	t.Run("without the container", func(t *testing.T) {
		contract.Must(t, w, v)
		for range 2 {
			if err := v.Remove(t.Context(), nowhere); err != nil {
				t.Error(err)
			}
		}
		if _, err := rtnl.LinkByName(w.Container, "eth0"); !errors.Is(err, rtnl.ErrNoLink) {
			t.Error(err)
		}
	})
	t.Run("without the bridge", func(t *testing.T) {
		contract.Must(t, w, testVeth(contract.Owner, "other"))
		contract.Host(t, w, "ip link del other")
		if err := testVeth(contract.Owner, "other").Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
		if _, err := rtnl.LinkByName(w.Host, v.Host); !errors.Is(err, rtnl.ErrNoLink) {
			t.Error(err)
		}
	})
	t.Run("renamed", func(t *testing.T) {
		contract.Must(t, w, v)
		contract.Host(t, w, "ip link set %s down", v.Host)
		contract.Host(t, w, "ip link set %s name mine", v.Host)
		if err := v.Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
		if _, err := rtnl.LinkByName(w.Host, "mine"); !errors.Is(err, rtnl.ErrNoLink) {
			t.Error(err)
		}
	})

	// What the reference plugins leave: veth and 8 hex digits, no mark.
	reference := func(name, master string) {
		t.Helper()
		contract.Host(t, w, "ip link add %s %s type veth peer name eth0 netns %s", name, master, w.Container.Path)
	}
	for _, c := range []struct {
		name, link, master, mine string
		removed                  bool
	}{
		{"the reference's", "veth0a1b2c3d", "master cni0", "cni0", true},
		{"the reference's, of another bridge", "veth0a1b2c3d", "", "cni0", false},
		{"the reference's, point to point", "veth0a1b2c3d", "", "", true},
		{"somebody else's, point to point", "tun0", "", "", false},
		{"a port, for a point to point network", "veth0a1b2c3d", "master cni0", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			reference(c.link, c.master)
			if err := testVeth(contract.Owner, c.mine).Remove(t.Context(), nowhere); err != nil {
				t.Error(err)
			}
			if _, err := rtnl.LinkByName(w.Host, c.link); err != nil {
				t.Errorf("removed without the container: %v", err)
			}
			if err := testVeth(contract.Owner, c.mine).Remove(t.Context(), w); err != nil {
				t.Error(err)
			}
			if _, err := rtnl.LinkByName(w.Host, c.link); errors.Is(err, rtnl.ErrNoLink) != c.removed {
				t.Errorf("removed: %v, want %v", err, c.removed)
			}
			if !c.removed {
				contract.Host(t, w, "ip link del %s", c.link)
			}
		})
	}
	t.Run("another attachment's of ours", func(t *testing.T) {
		other := testVeth(spec.Owner{Network: "other", ContainerID: "c1", IfName: "eth0"}, "cni0")
		contract.Must(t, w, other)
		if err := v.Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
		if err := other.Verify(t.Context(), w); err != nil {
			t.Error(err)
		}
	})
}

// TestPortNeedsNoIPv6: a port of a bridge has none, and whether one has it is no difference, for former versions left
// it on.
func TestPortNeedsNoIPv6(t *testing.T) {
	for master, want := range map[string]string{"cni0": "1", "": "0"} {
		w := contract.NewWorld(t)
		v := testVeth(contract.Owner, master)
		if master != "" {
			contract.Must(t, w, Bridge{Name: master})
		}
		contract.Must(t, w, v)
		key := "net/ipv6/conf/" + v.Host + "/disable_ipv6"
		if got := contract.Sysctl(t, w.Host, key); got != want {
			t.Errorf("with master %q, disable_ipv6 is %s, want %s", master, got, want)
		}
		if out := contract.Host(t, w, "ip -6 route show table all dev %s", v.Host); master != "" && out != "" {
			t.Errorf("the host has routes for it: %s", out)
		}
		for _, state := range []string{"0", "1"} {
			contract.Host(t, w, "sysctl -qw %s=%s", key, state)
			if err := v.Verify(t.Context(), w); err != nil {
				t.Errorf("with master %q, verify of disable_ipv6=%s: %v", master, state, err)
			}
			if changed, err := v.Traits().Fix(t.Context(), w); changed || err != nil {
				t.Errorf("with master %q, fix of disable_ipv6=%s: changed %v, error %v", master, state, changed, err)
			}
			if got := contract.Sysctl(t, w.Host, key); got != state {
				t.Errorf("with master %q, disable_ipv6 is %s after fix, was %s", master, got, state)
			}
		}
	}
}

// TestPortNeedsNoLinkLocal: the kernel is told to make no address for a port of a bridge, which nobody talks to by
// itself.
func TestPortNeedsNoLinkLocal(t *testing.T) {
	for master, want := range map[string]string{"cni0": "1", "": "0"} {
		w := contract.NewWorld(t)
		v := testVeth(contract.Owner, master)
		if master != "" {
			contract.Must(t, w, Bridge{Name: master})
		}
		contract.Must(t, w, v)
		if got := contract.Sysctl(t, w.Host, "net/ipv6/conf/"+v.Host+"/addr_gen_mode"); got != want {
			t.Errorf("with master %q, addr_gen_mode is %s, want %s", master, got, want)
		}
	}
}
