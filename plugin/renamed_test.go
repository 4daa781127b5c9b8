package plugin_test

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/spec"
)

// A container that is not valid any more, and lives on, keeps no link, whatever it has made of its name.
//
// clause: P22
func TestGCRenamed(t *testing.T) {
	for _, c := range chains {
		if len(c.breaks) == 0 || !hasRenamed(c.chain) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			r := c.runner(t)
			withoutBridges(t)
			a := &attachment{id: "c1", netns: nstest.NewNS(t)}
			r.must("add", r.add(a))
			renamed.run(t, a)
			r.must("gc", r.gc("c1"))
			left := func() bool { return strings.Contains(nstest.RunIn(t, a.netns, "ip", "-br", "link"), "net9") }
			if !left() {
				t.Error("gc took what is valid")
			}
			r.must("gc of all", r.gc())
			if left() {
				t.Error("gc of all left net9")
			}
			r.must("del", r.del(a))
		})
	}
}

func hasRenamed(c chain) bool {
	for _, b := range c.breaks {
		if b.what == renamed.what && b.say == renamed.say {
			return true
		}
	}
	return false
}

// Whoever is root in a container writes what he likes on his interface: neither DEL nor GC leaves it to him, and
// neither takes that of another attachment of the container for it.
func TestForgedMark(t *testing.T) {
	for _, c := range chains {
		if !hasRenamed(c.chain) || len(c.plugins) > 1 || strings.Contains(c.plugins[0], `"bridge"`) || strings.Contains(c.plugins[0], `"ptp"`) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			r := c.runner(t)
			alien := identity.Tag(spec.Owner{Network: "elsewhere", ContainerID: "c9", IfName: "eth0"})
			second := identity.Tag(spec.Owner{Network: r.network(), ContainerID: "c1", IfName: "eth0"})
			for _, forgery := range []string{
				"ip link set eth0 alias '" + alien + "'",
				"ip link set eth0 alias '" + alien + "' group 0; ip link set eth0 down; ip link set eth0 name net9",
				"ip link set eth0 alias '' group 0; ip link set eth0 down; ip link set eth0 name net9; ip link add eth0 type bridge; ip link set eth0 alias '" +
					second + "'",
			} {
				for _, remove := range []func(*attachment) error{r.del, func(*attachment) error { return r.gc() }} {
					a := &attachment{id: "c1", netns: nstest.NewNS(t)}
					r.must("add", r.add(a))
					nstest.RunIn(t, a.netns, "sh", "-ec", forgery)
					// DEL of what was never attached, as after an ADD that was refused because the name is taken.
					refused := &attachment{id: "c2", netns: a.netns, network: a.network}
					r.must("del of another", r.del(refused))
					there := func() bool {
						out := nstest.RunIn(t, a.netns, "sh", "-c",
							"ip -d -br link show type macvlan; ip -br link show type macvtap; ip -br link show type ipvlan; ip -br link show type vlan; ip -br link show type dummy; ip -br tuntap")
						return strings.TrimSpace(out) != ""
					}
					if !there() {
						t.Errorf("the DEL of another took the link, after %s", forgery)
					}
					r.must("remove", remove(a))
					if there() {
						t.Errorf("the link is left, after %s", forgery)
					}
					r.must("del", r.del(a))
				}
			}
		})
	}
}
