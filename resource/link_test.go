package resource

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// must ensures each resource.
func must(t testing.TB, w *kernel.World, p ...plan.Resource) {
	t.Helper()
	for _, r := range p {
		if _, err := r.Ensure(context.Background(), w); err != nil {
			t.Fatalf("%v: %v", r, err)
		}
	}
}

// on makes a breaker's action of command lines on the host, in of ones in the container.
func on(w *kernel.World, lines ...string) func(*testing.T) {
	return func(t *testing.T) {
		for _, l := range lines {
			host(t, w, "%s", l)
		}
	}
}

func in(w *kernel.World, lines ...string) func(*testing.T) {
	return func(t *testing.T) {
		for _, l := range lines {
			cont(t, w, "%s", l)
		}
	}
}

func testVeth(o spec.Owner, master string) Veth {
	return Veth{Owner: o, Name: o.IfName, Host: kernel.LinkName("veth", o), Master: master}
}

func TestBridge(t *testing.T) {
	w := newWorld(t)
	b := Bridge{Name: "cni0", MTU: 1400, Promisc: true}
	law(t, w, b,
		breaker{"down", on(w, "ip link set cni0 down"), "state is down"},
		breaker{"promisc", on(w, "ip link set cni0 promisc off"), "promisc is false"},
		breaker{"gone", on(w, "ip link del cni0"), "does not exist"},
		breaker{"accept_ra", on(w, "ip link set cni0 down", "sysctl -qw net.ipv6.conf.cni0.accept_ra=1"), "accept_ra is 1"},
	)
	if v := sysctl(t, w.Host, "net/ipv6/conf/cni0/accept_ra"); v != "0" {
		t.Errorf("accept_ra is %s", v)
	}
	if out := host(t, w, "ip link show cni0"); !strings.Contains(out, "mtu 1400") {
		t.Errorf("mtu: %s", out)
	}

	t.Run("its address does not float", func(t *testing.T) {
		before, _ := w.Host.Link("cni0")
		host(t, w, "ip link add p0 master cni0 address 00:00:00:00:00:02 type veth peer name p1")
		after, _ := w.Host.Link("cni0")
		if before.MAC.String() != after.MAC.String() {
			t.Errorf("%v became %v", before.MAC, after.MAC)
		}
	})
	t.Run("somebody else's keeps its accept_ra and its MTU", func(t *testing.T) {
		host(t, w, "ip link add br0 mtu 1300 type bridge")
		must(t, w, Bridge{Name: "br0", MTU: 1500})
		l, _ := w.Host.Link("br0")
		if v := sysctl(t, w.Host, "net/ipv6/conf/br0/accept_ra"); v != "1" || l.MTU != 1300 || !l.Up {
			t.Errorf("accept_ra %s, mtu %d, up %v", v, l.MTU, l.Up)
		}
		if err := (Bridge{Name: "br0", MTU: 1500}).Verify(t.Context(), w); err != nil {
			t.Error(err)
		}
	})
	t.Run("another type", func(t *testing.T) {
		_, err := Bridge{Name: "p1"}.Ensure(t.Context(), w)
		if err == nil || !strings.Contains(err.Error(), "link p1 is a veth, not a bridge") {
			t.Error(err)
		}
	})
}

// clause: P10 P12 P14
func TestVeth(t *testing.T) {
	for name, master := range map[string]string{"bridged": "cni0", "point to point": ""} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			must(t, w, Bridge{Name: "cni0"}, Bridge{Name: "other"})
			v := testVeth(owner, master)
			v.MTU, v.MAC, v.HostMAC = 1400, "02:00:00:00:00:01", "02:00:00:00:00:02"
			v.Hairpin, v.Isolated = master != "", master != ""
			breakers := []breaker{
				{"container end gone", in(w, "ip link del eth0"), "link eth0: link does not exist"},
				{"container end down", in(w, "ip link set eth0 down"), "state is down"},
				{"container end's address", in(w, "ip link set eth0 address 02:00:00:00:00:99"), "address is 02:00:00:00:00:99"},
				{"host end down", on(w, "ip link set "+v.Host+" down"), "host state is down"},
				{"host end's address", on(w, "ip link set "+v.Host+" address 02:00:00:00:00:99"), "host address is 02:00:00:00:00:99"},
				{"host end's mtu", on(w, "ip link set "+v.Host+" mtu 1300"), "host mtu is 1300"},
				{"another pair", in(w, "ip link set eth0 name was0", "ip link add eth0 address 02:00:00:00:00:01 up type veth peer name x"), "not the two ends of one pair"},
				{"another type", in(w, "ip link del eth0", "ip link add eth0 type bridge"), "type is bridge"},
			}
			if master != "" {
				breakers = append(breakers,
					breaker{"master", on(w, "ip link set "+v.Host+" master other"), "master is other"},
					breaker{"no master", on(w, "ip link set "+v.Host+" nomaster"), "master is none"},
					breaker{"hairpin", on(w, "bridge link set dev "+v.Host+" hairpin off"), "hairpin is false"},
					breaker{"isolated", on(w, "bridge link set dev "+v.Host+" isolated off"), "isolated is false"})
			} else {
				breakers = append(breakers, breaker{"accept_ra", on(w, "sysctl -qw net.ipv6.conf."+v.Host+".accept_ra=2"), "accept_ra is 2"})
			}
			lawBook{once: true, repair: func(t *testing.T) {
				for _, l := range []string{"eth0", "was0"} {
					if _, err := w.Container.Link(l); err == nil {
						cont(t, w, "ip link del %s", l)
					}
				}
				must(t, w, v)
			}}.hold(t, w, v, breakers...)
		})
	}
}

// What a pair is born with, and what it is marked with.
func TestVethMarks(t *testing.T) {
	w := newWorld(t)
	must(t, w, Bridge{Name: "cni0"})
	v := testVeth(owner, "cni0")
	v.Down = true
	must(t, w, v)
	if err := v.Verify(t.Context(), w); err != nil {
		t.Error(err)
	}
	h, err := w.Host.Link(v.Host)
	if err != nil {
		t.Fatal(err)
	}
	c, err := w.Container.Link("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if c.Up || !h.Up || h.Alias != kernel.Tag(owner) || h.Group != kernel.LinkGroup("net") ||
		c.MAC.String() != kernel.MAC("cont", owner).String() || h.MAC.String() != kernel.MAC("host", owner).String() {
		t.Errorf("container %+v\nhost %+v", c, h)
	}
	if out := host(t, w, "ip link show net:c1:eth0"); !strings.Contains(out, v.Host) {
		t.Errorf("by its other name: %s", out)
	}
	if v := sysctl(t, w.Host, "net/ipv6/conf/"+v.Host+"/accept_ra"); v != "0" {
		t.Errorf("accept_ra is %s", v)
	}
	must(t, w, Up{Link: "eth0"})
	v.Down = false
	if err := v.Verify(t.Context(), w); err != nil {
		t.Error(err)
	}
}

// clause: P10 P11
func TestVethInTheWay(t *testing.T) {
	w := newWorld(t)
	must(t, w, Bridge{Name: "cni0"})
	v := testVeth(owner, "cni0")
	refused := func(t *testing.T, want string) {
		t.Helper()
		before := linkState(t, w)
		_, err := v.Ensure(t.Context(), w)
		if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if after := linkState(t, w); after != before {
			t.Errorf("changed: %s", difference(before, after))
		}
	}
	t.Run("a link in the container", func(t *testing.T) {
		cont(t, w, "ip link add eth0 type bridge")
		refused(t, "link eth0 already exists in the container")
		cont(t, w, "ip link del eth0")
	})
	t.Run("somebody else's link on the host", func(t *testing.T) {
		host(t, w, "ip link add %s type veth peer name x", v.Host)
		refused(t, "already exists on the host and is not ours")
		if err := v.Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
		if _, err := w.Host.Link(v.Host); err != nil {
			t.Errorf("removed somebody else's: %v", err)
		}
		host(t, w, "ip link del %s", v.Host)
	})
	t.Run("its own, under another name", func(t *testing.T) {
		must(t, w, v)
		cont(t, w, "ip link set eth0 down")
		cont(t, w, "ip link set eth0 name net0")
		refused(t, "already leads into the container")
		cont(t, w, "ip link del net0")
	})
	t.Run("a leftover of another namespace is replaced", func(t *testing.T) {
		old := *w
		old.Container = openNS(t)
		must(t, &old, v)
		must(t, w, v)
		if err := v.Verify(t.Context(), w); err != nil {
			t.Error(err)
		}
		if _, err := old.Container.Link("eth0"); !errors.Is(err, kernel.ErrNoLink) {
			t.Errorf("the former one: %v", err)
		}
	})
	t.Run("no bridge", func(t *testing.T) {
		v := testVeth(spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth1"}, "none0")
		if _, err := v.Ensure(t.Context(), w); !errors.Is(err, kernel.ErrNoLink) {
			t.Error(err)
		}
		v.Master, v.MAC = "cni0", "01:00:00:00:00:01"
		if _, err := v.Ensure(t.Context(), w); err == nil {
			t.Error("a multicast address: no error")
		}
		if _, err := w.Host.Link(v.Host); !errors.Is(err, kernel.ErrNoLink) {
			t.Errorf("left behind: %v", err)
		}
	})
}

// clause: P12
func TestVethRemove(t *testing.T) {
	w := newWorld(t)
	must(t, w, Bridge{Name: "cni0"}, Bridge{Name: "other"})
	v := testVeth(owner, "cni0")
	nowhere := &kernel.World{Host: w.Host}
	t.Run("without the container", func(t *testing.T) {
		must(t, w, v)
		for range 2 {
			if err := v.Remove(t.Context(), nowhere); err != nil {
				t.Error(err)
			}
		}
		if _, err := w.Container.Link("eth0"); !errors.Is(err, kernel.ErrNoLink) {
			t.Error(err)
		}
	})
	t.Run("without the bridge", func(t *testing.T) {
		must(t, w, testVeth(owner, "other"))
		host(t, w, "ip link del other")
		if err := testVeth(owner, "other").Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
		if _, err := w.Host.Link(v.Host); !errors.Is(err, kernel.ErrNoLink) {
			t.Error(err)
		}
	})
	t.Run("renamed", func(t *testing.T) {
		must(t, w, v)
		host(t, w, "ip link set %s down", v.Host)
		host(t, w, "ip link set %s name mine", v.Host)
		if err := v.Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
		if _, err := w.Host.Link("mine"); !errors.Is(err, kernel.ErrNoLink) {
			t.Error(err)
		}
	})

	// What the reference plugins leave: veth and 8 hex digits, no mark.
	reference := func(name, master string) {
		t.Helper()
		host(t, w, "ip link add %s %s type veth peer name eth0 netns %s", name, master, w.Container.Path)
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
			if err := testVeth(owner, c.mine).Remove(t.Context(), nowhere); err != nil {
				t.Error(err)
			}
			if _, err := w.Host.Link(c.link); err != nil {
				t.Errorf("removed without the container: %v", err)
			}
			if err := testVeth(owner, c.mine).Remove(t.Context(), w); err != nil {
				t.Error(err)
			}
			if _, err := w.Host.Link(c.link); errors.Is(err, kernel.ErrNoLink) != c.removed {
				t.Errorf("removed: %v, want %v", err, c.removed)
			}
			if !c.removed {
				host(t, w, "ip link del %s", c.link)
			}
		})
	}
	t.Run("another attachment's of ours", func(t *testing.T) {
		other := testVeth(spec.Owner{Network: "other", ContainerID: "c1", IfName: "eth0"}, "cni0")
		must(t, w, other)
		if err := v.Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
		if err := other.Verify(t.Context(), w); err != nil {
			t.Error(err)
		}
	})
}

// clause: P20
func TestTogether(t *testing.T) {
	w := newWorld(t)
	const n = 12
	errs := make(chan error)
	for i := range n {
		c := *w
		c.Container = openNS(t)
		var err error
		if c.Host, err = kernel.Open(w.Host.Path); err != nil { // each call is a process of its own
			t.Fatal(err)
		}
		t.Cleanup(c.Host.Close)
		o := spec.Owner{Network: "net", ContainerID: "c" + strconv.Itoa(i), IfName: "eth0"}
		p := plan.Plan{Bridge{Name: "cni0"}, Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("fd00::1/64")}, Forwarding{V6: true}, testVeth(o, "cni0")}
		go func() {
			tx := plan.Begin(&c)
			errs <- errors.Join(tx.Apply(t.Context(), p), p.Verify(t.Context(), &c))
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestFullBridge(t *testing.T) {
	w := newWorld(t)
	must(t, w, Bridge{Name: "cni0"})
	var batch strings.Builder
	for i := range 511 {
		batch.WriteString("link add a" + strconv.Itoa(i) + " master cni0 type veth peer name b" + strconv.Itoa(i) + "\nlink set b" + strconv.Itoa(i) + " master cni0\n")
	}
	batch.WriteString("link add last master cni0 type veth peer name last1\n")
	ipBatch(t, w.Host.Path, batch.String())
	v := testVeth(owner, "cni0")
	_, err := v.Ensure(t.Context(), w)
	if err == nil || !strings.Contains(err.Error(), "the bridge is full, it takes 1023 ports") {
		t.Error(err)
	}
	if _, err := w.Container.Link("eth0"); !errors.Is(err, kernel.ErrNoLink) {
		t.Errorf("left behind: %v", err)
	}
	host(t, w, "ip link add tap type veth peer name tap1")
	if _, err := (Port{Link: "tap", Master: "cni0"}).Ensure(t.Context(), w); err == nil || !strings.Contains(err.Error(), "the bridge is full") {
		t.Error(err)
	}
}

// clause: P23 P22 P12
func TestPort(t *testing.T) {
	w := newWorld(t)
	must(t, w, Bridge{Name: "cni0"}, Bridge{Name: "other"})
	host(t, w, "ip link add tap0 type veth peer name tap1")
	p := Port{Owner: owner, Link: "tap0", Master: "cni0", Hairpin: true, Isolated: true}
	law(t, w, p,
		breaker{"master", on(w, "ip link set tap0 nomaster"), "master is none"},
		breaker{"hairpin", on(w, "bridge link set dev tap0 hairpin off"), "hairpin is false"},
		breaker{"isolated", on(w, "bridge link set dev tap0 isolated off"), "isolated is false"},
	)
	t.Run("of another bridge", func(t *testing.T) {
		host(t, w, "ip link set tap0 master other")
		if _, err := p.Ensure(t.Context(), w); err == nil || !strings.Contains(err.Error(), "tap0 is a port of other already") {
			t.Error(err)
		}
		if err := p.Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
		if l, err := w.Host.Link("tap0"); err != nil || masterName(w, l) != "other" {
			t.Errorf("taken off another bridge: %v, %v", l, err)
		}
	})
	t.Run("removed by the owner alone", func(t *testing.T) {
		host(t, w, "ip link set tap0 nomaster")
		must(t, w, p)
		bare := Port{Owner: owner, Master: "cni0"}
		for range 2 {
			if err := bare.Remove(t.Context(), w); err != nil {
				t.Error(err)
			}
		}
		if l, err := w.Host.Link("tap0"); err != nil || l.Master != 0 {
			t.Errorf("still a port: %v, %v", l, err)
		}
	})
	t.Run("a port before, and after", func(t *testing.T) {
		host(t, w, "ip link set tap0 master cni0")
		must(t, w, p)
		if err := p.Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
		if l, err := w.Host.Link("tap0"); err != nil || l.Master == 0 {
			t.Errorf("taken off: %v, %v", l, err)
		}
		host(t, w, "ip link set tap0 nomaster")
	})
	t.Run("swept", func(t *testing.T) {
		must(t, w, p)
		nobody := func([8]byte) bool { return false }
		if err := SweepLinks(t.Context(), w, "net", nobody, func(string) bool { return false }); err != nil {
			t.Error(err)
		}
		if l, err := w.Host.Link("tap0"); err != nil || l.Master != 0 {
			t.Errorf("still a port: %v, %v", l, err)
		}
	})
	t.Run("gone", func(t *testing.T) {
		host(t, w, "ip link del tap0")
		if err := p.Remove(t.Context(), w); err != nil {
			t.Error(err)
		}
		if _, err := p.Ensure(t.Context(), w); !errors.Is(err, kernel.ErrNoLink) {
			t.Error(err)
		}
	})
}

func TestUp(t *testing.T) {
	w := newWorld(t)
	cont(t, w, "ip link set lo down")
	law(t, w, Up{Link: "lo"}, breaker{"down", in(w, "ip link set lo down"), "state is down"})
	host(t, w, "ip link set lo down")
	law(t, w, Up{Where: Host, Link: "lo"}, breaker{"down", on(w, "ip link set lo down"), "state is down"})
	if _, err := (Up{Link: "none0"}).Ensure(t.Context(), w); !errors.Is(err, kernel.ErrNoLink) {
		t.Error(err)
	}
	if _, err := (Up{Link: "lo"}).Ensure(t.Context(), &kernel.World{Host: w.Host}); !errors.Is(err, kernel.ErrNoNamespace) {
		t.Error(err)
	}
}

func TestAutoMTU(t *testing.T) {
	w := newWorld(t)
	if mtu, err := AutoMTU.resolve(w); err != nil || mtu != 0 {
		t.Errorf("without a way out: %d, %v", mtu, err)
	}
	host(t, w, "ip link add up0 mtu 1450 type bridge")
	host(t, w, "ip link add up1 mtu 1420 type bridge")
	host(t, w, "ip link add up2 mtu 1300 type bridge")
	for _, l := range []string{"up0", "up1", "up2"} {
		host(t, w, "ip link set %s up", l)
	}
	host(t, w, "ip route add default dev up0")
	host(t, w, "ip route add 192.0.2.0/24 dev up2")
	must(t, w, Bridge{Name: "cni0", MTU: AutoMTU}, testVeth(owner, "cni0"))
	v := testVeth(spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth1"}, "")
	v.MTU = AutoMTU
	must(t, w, v)
	if l, _ := w.Container.Link("eth1"); l.MTU != 1450 {
		t.Errorf("mtu %d", l.MTU)
	}
	host(t, w, "ip -6 route add default dev up1")
	if mtu, err := AutoMTU.resolve(w); err != nil || mtu != 1420 {
		t.Errorf("least of both families: %d, %v", mtu, err)
	}
	host(t, w, "ip route replace default dev up0 mtu 1400")
	if mtu, err := AutoMTU.resolve(w); err != nil || mtu != 1400 {
		t.Errorf("the route's own: %d, %v", mtu, err)
	}
	if err := v.Verify(t.Context(), w); err != nil {
		t.Errorf("an uplink that changed later is no drift: %v", err)
	}
}

// clause: P22
func TestSweepLinks(t *testing.T) {
	w := newWorld(t)
	must(t, w, Bridge{Name: "cni0"})
	at := func(network, id, ifName string) spec.Owner {
		return spec.Owner{Network: network, ContainerID: id, IfName: ifName}
	}
	owners := []spec.Owner{at("net", "stays", "eth0"), at("net", "goes", "eth1"), at("net", "goes", "eth2"), at("other", "goes", "eth3"),
		at("net", "killed", "eth4"), at("net", "being-made", "eth5"), at("net", "stays", "eth6")}
	for _, o := range owners {
		must(t, w, testVeth(o, "cni0"))
	}
	name := func(i int) string { return kernel.LinkName("veth", owners[i]) }
	host(t, w, "ip link set %s alias x", name(4)) // killed before the alias was written
	host(t, w, "ip link set %s alias x", name(5))
	// A sweep that was killed has left these two half-way.
	doomed := doomedGroup("net")
	host(t, w, "ip link set %s group %d", name(2), doomed)
	host(t, w, "ip link set %s group %d", name(6), doomed)
	host(t, w, "ip link add foreign0 type veth peer name foreign1")

	keep := map[[8]byte]bool{kernel.OwnerHash(owners[0]): true, kernel.OwnerHash(owners[6]): true}
	err := SweepLinks(t.Context(), w, "net", func(o [8]byte) bool { return keep[o] }, func(n string) bool { return n == name(5) })
	if err != nil {
		t.Fatal(err)
	}
	for i, stays := range []bool{true, false, false, true, false, true, true} {
		if l, err := w.Host.Link(name(i)); (err == nil) != stays || stays && l.Group == doomed {
			t.Errorf("%v: there %v, want %v", owners[i], err == nil, stays)
		}
	}
	if _, err := w.Host.Link("foreign1"); err != nil {
		t.Error(err)
	}
}

// clause: P14
func TestAddr(t *testing.T) {
	w := newWorld(t)
	must(t, w, testVeth(owner, ""))
	for _, a := range []Addr{
		{Link: "eth0", Prefix: netip.MustParsePrefix("10.1.2.5/24")},
		{Link: "eth0", Prefix: netip.MustParsePrefix("10.1.2.6/32"), NoPrefixRoute: true},
		{Link: "eth0", Prefix: netip.MustParsePrefix("fd00::5/64"), NoDAD: true},
		{Where: Host, Link: kernel.LinkName("veth", owner), Prefix: netip.MustParsePrefix("fd00::1/64"), NoPrefixRoute: true},
	} {
		run := in
		if a.Where == Host {
			run = on
		}
		breakers := []breaker{{"gone", run(w, "ip addr del "+a.Prefix.String()+" dev "+a.Link), "is missing"}}
		if !a.NoPrefixRoute {
			breakers = append(breakers, breaker{"length", run(w, "ip addr del "+a.Prefix.String()+" dev "+a.Link,
				"ip addr add "+a.Prefix.Addr().String()+"/25 dev "+a.Link), "prefix length is 25"})
		}
		lawBook{repair: func(t *testing.T) {
			run(w, "ip addr flush dev "+a.Link+" scope global")(t)
			must(t, w, a)
		}}.hold(t, w, a, breakers...)
	}
	t.Run("of another length", func(t *testing.T) {
		must(t, w, Addr{Link: "eth0", Prefix: netip.MustParsePrefix("fd00:2::1/64"), NoDAD: true})
		changed, err := Addr{Link: "eth0", Prefix: netip.MustParsePrefix("fd00:2::1/48")}.Ensure(t.Context(), w)
		if changed || err == nil || !strings.Contains(err.Error(), "prefix length is 64") {
			t.Errorf("changed %v, error %v", changed, err)
		}
	})
	t.Run("somebody else has it", func(t *testing.T) {
		a := Addr{Link: "eth0", Prefix: netip.MustParsePrefix("fd00:1::1/64")}
		must(t, w, Addr{Where: Host, Link: kernel.LinkName("veth", owner), Prefix: a.Prefix, NoDAD: true}, a)
		_, err := Announce{Link: "eth0", Addrs: []netip.Prefix{a.Prefix}, Port: kernel.LinkName("veth", owner)}.Ensure(t.Context(), w)
		if err == nil || !strings.Contains(err.Error(), "somebody else on the link has it") {
			t.Errorf("announce: %v", err)
		}
		if err := a.Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), "dadfailed") {
			t.Errorf("verify: %v", err)
		}
	})
}

func TestGateway(t *testing.T) {
	w := newWorld(t)
	must(t, w, Bridge{Name: "cni0"})
	for _, p := range []string{"10.1.0.1/16", "fd00::1/64"} {
		g := Gateway{Link: "cni0", Prefix: netip.MustParsePrefix(p)}
		law(t, w, g, breaker{"gone", on(w, "ip addr del "+p+" dev cni0"), "is missing"})
	}
	for _, c := range []struct {
		have, want string
		conflict   bool
	}{
		{"10.1.0.1/16", "10.2.0.1/16", true},
		{"10.1.0.1/16", "10.1.0.1/24", true},
		{"10.1.0.1/16", "10.1.0.2/16", true},
		{"fd00::1/64", "fd00::2/64", true},
		{"fd00::1/64", "fd00::1/48", true},
		{"fd00::1/64", "fd00:0:0:1::1/64", false},
		{"10.1.0.1/16", "fd00::1/64", false},
	} {
		t.Run(c.have+" "+c.want, func(t *testing.T) {
			w := newWorld(t)
			host(t, w, "ip link add cni0 type bridge")
			host(t, w, "ip link set cni0 up")
			host(t, w, "ip addr add %s dev cni0", c.have)
			before := linkState(t, w)
			g := Gateway{Link: "cni0", Prefix: netip.MustParsePrefix(c.want)}
			_, err := g.Ensure(t.Context(), w)
			if (err != nil) != c.conflict {
				t.Fatalf("conflict %v, want %v", err, c.conflict)
			}
			if !c.conflict {
				return
			}
			for _, s := range []string{c.have, c.want, "ip addr del " + c.have + " dev cni0", "forceAddress"} {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%v: does not say %s", err, s)
				}
			}
			if err := g.Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), c.have) {
				t.Errorf("verify: %v", err)
			}
			if after := linkState(t, w); after != before {
				t.Errorf("changed: %s", difference(before, after))
			}
			g.Force = true
			law(t, w, g)
			if out := host(t, w, "ip -o addr show dev cni0 scope global"); strings.Contains(out, c.have+" ") || !strings.Contains(out, c.want+" ") {
				t.Errorf("forced: %s", out)
			}
		})
	}
	t.Run("a bridge that floats is pinned", func(t *testing.T) {
		w := newWorld(t)
		host(t, w, "ip link add cni0 type bridge")
		must(t, w, Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("10.1.0.1/16")})
		before, _ := w.Host.Link("cni0")
		host(t, w, "ip link add p0 master cni0 address 00:00:00:00:00:02 type veth peer name p1")
		if after, _ := w.Host.Link("cni0"); before.MAC.String() != after.MAC.String() {
			t.Errorf("%v became %v", before.MAC, after.MAC)
		}
	})
}
