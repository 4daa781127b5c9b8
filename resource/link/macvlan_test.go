package link

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// masters makes two links that others can stand on, each one end of a cable.
func masters(t testing.TB, w *kernel.World) {
	t.Helper()
	for _, n := range []string{"ens3", "ens4"} {
		contract.Host(t, w, "ip link add %s mtu 1500 up type veth peer name %s-far mtu 1500", n, n)
		contract.Host(t, w, "ip link set %s-far up", n)
	}
}

// again makes a broken link anew, on a master that is as it was.
func again(w *kernel.World, r plan.Remover) func(*testing.T) {
	return func(t *testing.T) {
		if err := r.Remove(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if l, err := rtnl.LinkByName(w.Container, contract.Owner.IfName); err == nil { // of another kind
			if err := rtnl.DelLink(w.Container, l.Index); err != nil {
				t.Fatal(err)
			}
		}
		contract.Host(t, w, "ip link set ens3 up")
		contract.Must(t, w, r)
	}
}

// sharedBreakers damage what links on masters have in common; like is how ip(8) makes another.
func sharedBreakers(w *kernel.World, s Stacked, kind, like string) []contract.Breakage {
	return []contract.Breakage{
		contract.Break("mtu", contract.In(w, "ip link set eth0 mtu 1300"), "mtu is 1300, want 1400"),
		contract.Break("down", contract.In(w, "ip link set eth0 down"), "state is down, want up"),
		contract.Break("gone", contract.In(w, "ip link del eth0"), "link eth0: link does not exist"),
		contract.Break("master down", contract.On(w, "ip link set ens3 down"), "master ens3 is down"),
		contract.Break("another master", func(t *testing.T) {
			address := ""
			if s.MAC != "" {
				address = "address " + s.MAC
			}
			contract.Container(t, w, "ip link del eth0")
			contract.Host(t, w, "ip link add link ens4 name eth0 %s mtu 1400 netns %s type %s", address,
				strings.TrimPrefix(w.Container.Path, "/run/netns/"), like)
			contract.Container(t, w, "ip link set eth0 up")
		}, "master is ens4, want ens3"),
		contract.Break("another kind", contract.In(w, "ip link del eth0", "ip link add eth0 type bridge"),
			"type is bridge, want "+kind),
	}
}

func TestMacvlan(t *testing.T) {
	for _, c := range []struct{ kind, mode, other string }{
		{"macvlan", "", "vepa"}, {"macvlan", "private", "bridge"}, {"macvlan", "vepa", "private"}, {"macvlan", "passthru",
			""}, {"macvtap", "", "vepa"},
	} {
		t.Run(c.kind+c.mode, func(t *testing.T) {
			nstest.Need(t, c.kind)
			w := contract.NewWorld(t)
			masters(t, w)
			m := Macvlan{Stacked: stacked(contract.Owner, c.kind, "ens3"), Mode: c.mode, Tap: c.kind == "macvtap"}
			m.MTU, m.MAC = 1400, "02:00:00:00:00:0A"
			breakers := []contract.Breakage{contract.Break("address",
				contract.In(w, "ip link set eth0 address 02:00:00:00:00:0b"), "address is 02:00:00:00:00:0b, want 02:00:00:00:00:0a")}
			if c.other != "" {
				breakers = append(breakers, contract.Break("mode", contract.In(w, "ip link set eth0 type "+c.kind+" mode "+c.other),
					"mode is "+c.other+", want "+m.mode()))
			}
			if c.kind+c.mode == "macvlan" { // what the kinds share
				breakers = append(breakers, sharedBreakers(w, m.Stacked, c.kind, "macvlan mode bridge")...)
			}
			contract.Terms{Once: true, Repair: again(w, m)}.Test(t, w, m, breakers...)
		})
	}
}

// TestMacvlanStaysAsItWas: what was there before is nobody's to change, and what DEL may take is ours alone.
func TestMacvlanStaysAsItWas(t *testing.T) {
	nstest.Need(t, "macvlan")
	w := contract.NewWorld(t)
	masters(t, w)
	m := Macvlan{Stacked: stacked(contract.Owner, "macvlan", "ens3")}
	ctx := t.Context()
	refused := func(what string) {
		t.Helper()
		before := contract.State(t, w)
		if changed, err := m.Ensure(ctx, w); changed || !errors.Is(err, rtnl.ErrLinkExists) {
			t.Errorf("%s: changed %v, %v", what, changed, err)
		}
		if after := contract.State(t, w); after != before {
			t.Errorf("%s: %s", what, contract.Difference(before, after))
		}
	}
	stays := func(what string) {
		t.Helper()
		before := contract.State(t, w)
		if err := m.Remove(ctx, w); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if after := contract.State(t, w); after != before {
			t.Errorf("%s: DEL took it: %s", what, contract.Difference(before, after))
		}
	}
	contract.Container(t, w, "ip link add eth0 type bridge")
	refused("a link of another kind")
	stays("a link of another kind")
	contract.Container(t, w, "ip link del eth0")

	for what, o := range map[string]spec.Owner{"another container": {Network: "net", ContainerID: "c2", IfName: "eth0"},
		"another network": {Network: "lan", ContainerID: "c1", IfName: "eth0"}} {
		theirs := Macvlan{Stacked: stacked(o, "macvlan", "ens4")}
		contract.Must(t, w, theirs)
		refused(what)
		stays(what)
		if o.Network != "net" { // killed before it was tagged
			nstest.RunIn(t, w.Container.Path, "ip", "link", "set", "eth0", "alias", "")
			stays(what + ", not tagged yet")
		}
		contract.Container(t, w, "ip link del eth0")
	}

	// Without any mark it is the reference's; with the group alone it is that of an ADD that was killed.
	for _, group := range []uint32{0, identity.LinkGroup("net")} {
		contract.Host(t, w, "ip link add link ens4 name eth0 group %d netns %s type macvlan mode bridge", group,
			strings.TrimPrefix(w.Container.Path, "/run/netns/"))
		refused(fmt.Sprint("group ", group))
		if err := m.Remove(ctx, w); err != nil {
			t.Error(err)
		}
		if out := contract.Container(t, w, "ip -br link"); strings.Contains(out, "eth0") {
			t.Errorf("group %d: %s", group, out)
		}
	}
}

// TestMacvlanOfTheDefaultRoute: a master that nobody named is chosen once, and stays the one that CHECK compares with.
func TestMacvlanOfTheDefaultRoute(t *testing.T) {
	nstest.Need(t, "macvlan")
	w := contract.NewWorld(t)
	masters(t, w)
	m := Macvlan{Stacked: stacked(contract.Owner, "macvlan", "")}
	ctx := t.Context()
	if _, err := m.Ensure(ctx, w); err == nil || !strings.Contains(err.Error(), "no default route") ||
		!strings.Contains(err.Error(), "ens3") {
		t.Errorf("without a default route: %v", err)
	}
	for what, routes := range map[string][]string{
		"IPv4": {"ip addr add 192.0.2.1/24 dev ens4", "ip addr add 2001:db8::1/64 dev ens3",
			"ip -6 route add default via 2001:db8::2", "ip route add default via 192.0.2.2"},
		"the lesser metric": {"ip addr add 192.0.2.1/24 dev ens4", "ip addr add 198.51.100.1/24 dev ens3",
			"ip route add default via 198.51.100.2 metric 20", "ip route add default via 192.0.2.2 metric 10"},
		"several next hops": {"ip addr add 192.0.2.1/24 dev ens4", "ip addr add 198.51.100.1/24 dev ens3",
			"ip route add default nexthop via 192.0.2.2 nexthop via 198.51.100.2"},
		"IPv6 alone": {"ip -6 route add default dev ens4"},
		"no gateway": {"ip route add default dev ens4"},
	} {
		for _, l := range routes {
			contract.Host(t, w, "%s", l)
		}
		contract.Must(t, w, m)
		if out := contract.Host(t, w, "ip link show ens4"); !strings.Contains(contract.Container(t, w, "ip link show eth0"),
			"@if"+strings.SplitN(out, ":", 2)[0]+":") {
			t.Errorf("%s: not on ens4: %s", what, contract.Container(t, w, "ip link show eth0"))
		}
		contract.Host(t, w, "ip route flush table main")
		contract.Host(t, w, "ip -6 route flush default")
		contract.Host(t, w, "ip -6 route add default dev ens3")
		if err := m.Verify(ctx, w); err != nil {
			t.Errorf("%s: another default route is no drift: %v", what, err)
		}
		contract.Host(t, w, "ip link set ens4 down")
		if err := m.Verify(ctx, w); err == nil || !strings.Contains(err.Error(), "master ens4 is down") {
			t.Errorf("%s: %v", what, err)
		}
		contract.Host(t, w, "ip link set ens4 up")
		contract.Host(t, w, "ip -6 route flush default")
		if err := m.Remove(ctx, w); err != nil {
			t.Error(err)
		}
		if records, err := w.Store.Records(linkRecord, contract.Owner.Network); err != nil || len(records) > 0 {
			t.Errorf("%s: still remembered: %v, %v", what, records, err)
		}
		for _, n := range []string{"ens3", "ens4"} {
			contract.Host(t, w, "ip addr flush dev %s scope global", n)
		}
	}
}

// TestMaster: what is wrong with a master is said before anything is changed, with what there is instead.
func TestMaster(t *testing.T) {
	w := contract.NewWorld(t)
	masters(t, w)
	contract.Host(t, w, "ip link add br0 up type bridge")
	contract.Host(t, w, "ip link add port0 up master br0 type veth peer name port1")
	contract.Host(t, w, "ip link add down0 type veth peer name down1")
	contract.Container(t, w, "ip link add inner0 up type bridge")
	before := contract.State(t, w)
	for _, c := range []struct {
		m   Master
		say []string
	}{
		{Master{Where: resource.Host, Link: "esn3"}, []string{`master: "esn3": no such link on the host; there is`, `ens4`, `did you mean "ens3"?`}},
		{Master{Where: resource.Host, Link: "inner0"}, []string{`master: "inner0": no such link on the host: it is in the container; "linkInContainer": true`}},
		{Master{Link: "ens3"}, []string{`master: "ens3": no such link in the container: it is on the host; without "linkInContainer"`}},
		{Master{Link: "inner1"}, []string{`no such link in the container; there is inner0; did you mean "inner0"?`}},
		{Master{Where: resource.Host, Link: "down0", Up: true}, []string{`master: "down0": is down`, `ip link set down0 up`}},
		{Master{Where: resource.Host, Link: "lo", Taken: true, Kind: "macvlan"}, []string{`master: "lo": is lo`}},
		{Master{Where: resource.Host, Link: "port0", Taken: true, Kind: "macvlan"}, []string{`master: "port0": is a port of br0`, `name "br0" instead`}},
		{Master{Where: resource.Host, Link: "port0"}, nil},
		{Master{Where: resource.Host, Link: "down0"}, nil},
		{Master{Where: resource.Host, Link: "br0", Taken: true}, nil},
		{Master{Where: resource.Host, Link: "ens3", MTU: 1500}, nil},
		{Master{Where: resource.Host, Link: "ens3", MTU: 1501}, []string{`mtu: 1501: ens3 has 1500; want 68 to 1500 bytes`}},
		{Master{Where: resource.Host}, []string{`master: is missing`, `no default route`, `ens3`}},
	} {
		err := c.m.Verify(t.Context(), w)
		if e := (*spec.Error)(nil); (err == nil) != (c.say == nil) || err != nil &&
			(!errors.As(err, &e) || e.Code != spec.CodeConfig) {
			t.Errorf("%v: %v", c.m, err)
		}
		for _, say := range c.say {
			if err == nil || !strings.Contains(err.Error(), say) {
				t.Errorf("%v: says %v, want %q", c.m, err, say)
			}
		}
	}
	if after := contract.State(t, w); after != before {
		t.Errorf("looking changed something: %s", contract.Difference(before, after))
	}
}

// TestPassthru: it shares the master's address, which the kernel gives back.
func TestPassthru(t *testing.T) {
	nstest.Need(t, "macvlan")
	w := contract.NewWorld(t)
	masters(t, w)
	ctx := t.Context()
	before := contract.State(t, w)
	is, err := rtnl.LinkByName(w.Host, "ens3")
	if err != nil {
		t.Fatal(err)
	}
	m := Macvlan{Stacked: stacked(contract.Owner, "macvlan", "ens3"), Mode: "passthru"}
	contract.Must(t, w, m)
	if l, err := rtnl.LinkByName(w.Container, "eth0"); err != nil || l.MAC.String() != is.MAC.String() {
		t.Errorf("%+v, %v; the master has %v", l, err, is.MAC)
	}
	for _, mode := range []string{"bridge", "passthru"} {
		second := Macvlan{Stacked: stacked(spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth1"}, "macvlan", "ens3"),
			Mode: mode}
		if _, err := second.Ensure(ctx, w); err == nil ||
			!strings.Contains(err.Error(), "has a passthru, eth0 of net/c1/eth0") {
			t.Errorf("%s beside a passthru: %v", mode, err)
		}
	}
	if err := m.Remove(ctx, w); err != nil {
		t.Fatal(err)
	}
	m.MAC = "02:00:00:00:00:0c"
	contract.Must(t, w, m)
	if out := contract.Host(t, w, "ip link show ens3"); !strings.Contains(out, m.MAC) {
		t.Errorf("the master does not listen to the address: %s", out)
	}
	if err := m.Remove(ctx, w); err != nil {
		t.Fatal(err)
	}
	if after := contract.State(t, w); after != before {
		t.Errorf("afterwards: %s", contract.Difference(before, after))
	}
	// What fails after the link was made takes it back.
	m.MAC = "03:00:00:00:00:00"
	if _, err := m.Ensure(ctx, w); err == nil {
		t.Error("a group address was taken")
	}
	if after := contract.State(t, w); after != before {
		t.Errorf("after a failure: %s", contract.Difference(before, after))
	}
}

// TestMacvlanBeside: what the kernel says of masters in use comes with a word of what it may mean.
func TestMacvlanBeside(t *testing.T) {
	nstest.Need(t, "macvlan")
	w := contract.NewWorld(t)
	masters(t, w)
	m := Macvlan{Stacked: stacked(contract.Owner, "macvlan", "ens3")}
	l, err := rtnl.LinkByName(w.Host, "ens3")
	if err != nil {
		t.Fatal(err)
	}
	m.MAC = l.MAC.String()
	if _, err := m.Ensure(t.Context(), w); err == nil || !strings.Contains(err.Error(), "mac: \""+m.MAC) {
		t.Errorf("the master's own address: %v", err)
	}
	if _, err := rtnl.LinkByName(w.Container, "eth0"); !errors.Is(err, rtnl.ErrNoLink) {
		t.Errorf("left behind: %v", err)
	}
	m.Down = true
	contract.Must(t, w, m)
	if _, err := (Up{Link: "eth0"}).Ensure(t.Context(), w); err == nil ||
		!strings.Contains(err.Error(), "has the address "+m.MAC) {
		t.Errorf("the master's own address, later: %v", err)
	}
}

// TestMacvlanQueue: the queue for broadcasts, where the kernel has one to set.
func TestMacvlanQueue(t *testing.T) {
	nstest.Need(t, "macvlan", "bcqueuelen", "7")
	w := contract.NewWorld(t)
	masters(t, w)
	m := Macvlan{Stacked: stacked(contract.Owner, "macvlan", "ens3"), BCQueueLen: 4711}
	contract.Terms{Once: true}.Test(t, w, m,
		contract.Break("queue", contract.In(w, "ip link set eth0 type macvlan bcqueuelen 12"), "bcqueuelen is 12, want 4711"))
	contract.Must(t, w, m)
	if out := contract.Container(t, w, "ip -d link show eth0"); !strings.Contains(out, "bcqueuelen 4711") {
		t.Error(out)
	}
}

// TestMacvlanInContainer stands on a link of the container: one of a plugin before, or on another macvlan, which the
// kernel puts beside it.
func TestMacvlanInContainer(t *testing.T) {
	nstest.Need(t, "macvlan")
	w := contract.NewWorld(t)
	masters(t, w)
	contract.Host(t, w, "ip link set ens3-far netns %s name inner0", strings.TrimPrefix(w.Container.Path, "/run/netns/"))
	contract.Container(t, w, "ip link set inner0 up")
	m := Macvlan{Stacked: stacked(contract.Owner, "macvlan", "inner0")}
	m.Master.Where = resource.Container
	contract.Terms{Once: true}.Test(t, w, m, contract.Break("another master", func(t *testing.T) {
		contract.Container(t, w, "ip link del eth0")
		contract.Host(t, w, "ip link add link ens4 name eth0 netns %s type macvlan mode bridge",
			strings.TrimPrefix(w.Container.Path, "/run/netns/"))
		contract.Container(t, w, "ip link set eth0 up")
	}, "want inner0"))

	under := Macvlan{Stacked: stacked(spec.Owner{Network: "net", ContainerID: "c1", IfName: "mv0"}, "macvlan", "ens3")}
	contract.Must(t, w, under)
	m.Master.Link = "mv0"
	contract.Must(t, w, m)
	if err := m.Verify(t.Context(), w); err != nil {
		t.Errorf("on another macvlan: %v", err)
	}
}

// TestMacvtapFile: the file of a macvtap is called after its index, and so has to be the only one of that name: also
// where the one of the container's former namespace, which the kernel is still to remove, stands in its place.
func TestMacvtapFile(t *testing.T) {
	nstest.Need(t, "macvtap")
	w := contract.NewWorld(t)
	masters(t, w)
	seen := map[string]bool{}
	for _, id := range []string{"c1", "c1", "c2"} {
		w := &kernel.World{Host: w.Host, Container: contract.OpenNS(t), Store: w.Store}
		m := Macvlan{Stacked: stacked(spec.Owner{Network: "net", ContainerID: id, IfName: "eth0"}, "macvtap", "ens3"),
			Tap: true}
		m.MAC = fmt.Sprintf("02:00:00:00:00:%02x", len(seen)+1)
		contract.Must(t, w, m)
		l, err := rtnl.LinkByName(w.Container, "eth0")
		if err != nil {
			t.Fatal(err)
		}
		res := &spec.Result{Interfaces: []spec.Interface{{Name: "eth0", Sandbox: w.Container.Path}}}
		f := &res.Interfaces[0]
		if err := m.Traits().Tell(w, res); err != nil || f.SocketPath != "/dev/tap"+strconv.Itoa(l.Index) || l.Index < 1<<30 {
			t.Errorf("%s of the link #%d: %v", f.SocketPath, l.Index, err)
		}
		if _, err := os.Lstat(f.SocketPath); err != nil {
			nstest.Skip(t, "nobody makes device files here: ", err)
		}
		if seen[f.SocketPath] {
			t.Errorf("%s is another's; others have %v", f.SocketPath, seen)
		}
		seen[f.SocketPath] = true
	}
}
