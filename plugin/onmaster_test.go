package plugin_test

import (
	"net"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// hostLocal4 are addresses that nobody has to be asked about, which takes a second or two: IPv4's.
const hostLocal4 = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.77.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}`

// uplink gives the host a network card, ens3, without addresses.
func uplink(kind string, more ...string) func(*testing.T) {
	return func(t *testing.T) {
		nstest.Need(t, strings.Fields(kind)[0], strings.Fields(kind)[1:]...)
		lan := nstest.NewNS(t)
		nstest.Run(t, "sh", "-ec", "ip link add ens3 type veth peer name wire netns "+strings.TrimPrefix(lan, "/run/netns/")+
			"; sysctl -qw net.ipv6.conf.ens3.disable_ipv6=1; ip link set ens3 up;"+strings.Join(more, ";"))
		t.Cleanup(func() { nstest.Run(t, "ip", "link", "del", "ens3") })
		nstest.RunIn(t, lan, "sh", "-ec",
			"ip link set lo up; ip link set wire up; ip addr add 10.77.0.1/24 dev wire; ip addr add fd00:77::1/64 dev wire nodad")
	}
}

// neighbours makes the runner of containers that are neighbours of the outside: a link of theirs stands on wan.
// Behind the outside is 198.51.100.1, the host beyond.
func (s *site) neighbours(conf string, more ...string) *runner {
	s.Helper()
	r := s.network("a", more...)
	r.chain.plugins[0] = conf + `,"ipam":{"type":"host-local","ranges":[[{"subnet":"192.0.2.0/24","rangeStart":"192.0.2.100","gateway":"192.0.2.2"}],
		[{"subnet":"2001:db8::/64","rangeStart":"2001:db8::100","gateway":"2001:db8::2"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`
	s.sh("outside", "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; ip addr add 198.51.100.1/32 dev lo; ip addr add 2001:db8:1::1/128 dev lo")
	s.addr["beyond"] = [2]string{"198.51.100.1", "2001:db8:1::1"}
	return r
}

// reach is what a1 and a2 can do with each other and with the world.
func (s *site) reach(together bool) {
	s.Helper()
	for v := range 2 {
		at := func(name string) string { return net.JoinHostPort(s.addr[name][v], "80") }
		other := ""
		if together {
			other = "a2"
			s.ping("a1", s.addr["a2"][v])
		}
		s.expect("between containers", "a1", at("a2"), other)
		s.expect("to a neighbour", "a1", at("outside"), "outside")
		s.expect("to a host beyond", "a2", at("beyond"), "outside")
		s.expect("from a neighbour", "outside", at("a2"), "a2")
		s.ping("a2", s.addr["beyond"][v])
		s.ping("outside", s.addr["a1"][v])
	}
}

// TestMacvlanPackets sends packets by macvlans of every mode.
//
// clause: P20 P24 P26 C11
func TestMacvlanPackets(t *testing.T) {
	nstest.Need(t, "macvlan")
	for _, c := range []struct {
		keys     string
		together bool
	}{
		{`"type":"macvlan","master":"wan","mtu":1400`, true},
		{`"type":"macvlan","master":"wan","mode":"private"`, false},
		{`"type":"macvlan","master":"wan","mode":"vepa"`, false}, // a cable sends nothing back
		{`"type":"macvtap","master":"wan"`, true},
	} {
		t.Run(c.keys, func(t *testing.T) {
			t.Parallel()
			if strings.Contains(c.keys, "macvtap") {
				nstest.Need(t, "macvtap")
			}
			s := newSite(t)
			r := s.neighbours(c.keys)
			s.add("a1")
			s.add("a2")
			s.reach(c.together)
			for _, name := range []string{"a1", "a2"} {
				r.must("check", r.check(s.containers[name]))
			}
			s.shown("a1", c.keys)
		})
	}
	t.Run("passthru", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		r := s.neighbours(`"type":"macvlan","master":"wan","mode":"passthru"`)
		s.add("a1")
		for v := range 2 {
			s.expect("to a neighbour", "a1", net.JoinHostPort(s.addr["outside"][v], "80"), "outside")
			s.expect("to a host beyond", "a1", net.JoinHostPort(s.addr["beyond"][v], "80"), "outside")
			s.ping("outside", s.addr["a1"][v])
		}
		r.must("check", r.check(s.containers["a1"]))
		a := &attachment{id: "a2", netns: nstest.NewNS(t)}
		if err := r.add(a); err == nil || !strings.Contains(err.Error(), "alone on its master") {
			t.Errorf("a second passthru: %v", err)
		}
		r.must("del", r.del(a))
	})
	t.Run("in the container", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		r := s.neighbours(`"type":"macvlan","linkInContainer":true`)
		a := &attachment{id: "a1", netns: nstest.NewNS(t)}
		s.sh("host", "ip link set wan netns "+strings.TrimPrefix(a.netns, "/run/netns/"))
		nstest.RunIn(t, a.netns, "sh", "-ec",
			"ip link set wan up; ip route add default dev wan metric 99; ip -6 route add default dev wan metric 2000")
		r.must("add", r.add(a))
		s.open("a1", a.netns)
		s.expect("to a neighbour", "a1", "192.0.2.2:80", "outside")
		r.must("check", r.check(a))
		r.must("del", r.del(&attachment{id: "a1", netns: a.netns}))
		if out := nstest.RunIn(t, a.netns, "ip", "-br", "link"); strings.Contains(out, "eth0") ||
			!strings.Contains(out, "wan") {
			t.Errorf("after DEL: %s", out)
		}
	})
}

// shown compares a container's result with what the kernel has.
func (s *site) shown(name, keys string) {
	s.Helper()
	a := s.containers[name]
	f := interfaceOf(s.T, a.prev, "eth0")
	l, err := rtnl.LinkByName(s.ns[name], "eth0")
	if err != nil {
		s.Fatal(err)
	}
	mtu := 1500
	if strings.Contains(keys, "1400") {
		mtu = 1400
	}
	if f.MAC != l.MAC.String() || f.MTU != l.MTU || l.MTU != mtu || f.Sandbox != a.netns ||
		(f.SocketPath != "") != strings.Contains(keys, "macvtap") {
		s.Errorf("the result has %+v, the kernel %+v", f, l)
	}
	if out := s.sh(name, "ip -d link show eth0"); !strings.Contains(out, "net:") &&
		!strings.Contains(out, "/"+name+"/eth0") {
		s.Errorf("who it is of is not to be seen: %s", out)
	}
}

// TestIPvlanPackets sends packets by ipvlans of every mode and flag.
//
// clause: P20 P24 P26
func TestIPvlanPackets(t *testing.T) {
	nstest.Need(t, "ipvlan")
	for _, mode := range []string{"l2", "l3", "l3s"} {
		for _, flag := range []string{"", "private", "vepa"} {
			t.Run(mode+flag, func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				r := s.neighbours(`"type":"ipvlan","master":"wan","mode":"` + mode + `","flag":"` + flag + `"`)
				if mode != "l2" { // nobody answers for what is behind a router's link
					r.chain.plugins[0] = strings.NewReplacer(`,"gateway":"192.0.2.2"`, "", `,"gateway":"2001:db8::2"`, "", "192.0.2", "10.81.0", "2001:db8::", "fd00:81::").Replace(r.chain.plugins[0])
					s.sh("outside", "ip route add 10.81.0.0/24 via 192.0.2.1; ip -6 route add fd00:81::/64 via 2001:db8::1")
					s.sh("host", "ip route add default via 192.0.2.2; ip -6 route add default via 2001:db8::2")
				}
				s.add("a1")
				s.add("a2")
				s.reach(flag == "" || flag == "vepa" && mode != "l2") // a router sends back what a cable does not
				for _, name := range []string{"a1", "a2"} {
					r.must("check", r.check(s.containers[name]))
				}
				s.shown("a1", "")
			})
		}
	}
}

// TestAnnounced: who had a container's address in mind with another MAC learns of the new one at once.
func TestAnnounced(t *testing.T) {
	for _, kind := range []string{"macvlan", "ipvlan"} {
		t.Run(kind, func(t *testing.T) {
			nstest.Need(t, kind)
			s := newSite(t)
			r := s.neighbours(`"type":"` + kind + `","master":"wan"`)
			s.sh("outside", "ip neigh add 192.0.2.100 lladdr 02:00:00:00:00:99 dev eth0 nud stale; ip neigh add 2001:db8::100 lladdr 02:00:00:00:00:99 dev eth0 nud stale")
			s.add("a1")
			l, err := rtnl.LinkByName(s.ns["a1"], "eth0")
			r.must("link", err)
			err = rtnl.Await(s.ns["outside"], t.Context(), 3e9, []uint{3}, func() (bool, error) { // RTNLGRP_NEIGH
				return strings.Count(s.sh("outside", "ip neigh"), l.MAC.String()) >= 2, nil
			})
			if err != nil {
				t.Errorf("%v: not told:\n%s", err, s.sh("outside", "ip neigh"))
			}
		})
	}
}

// A refusal is a configuration that ADD does not begin with, why, and the code that STATUS has for it, 0 where it has
// none.
type refusal struct {
	extra  string
	say    string
	status spec.Code
}

// butKinds is what STATUS says, but that this kernel has no links of a kind: lives notice it where that is no truth.
func butKinds(err error) error {
	if err != nil && strings.Contains(err.Error(), "this kernel has no links of type") {
		return nil
	}
	return err
}

// refuses expects them of the runner's first plugin. None leaves anything, nor does its DEL.
func (r *runner) refuses(cases []refusal) {
	t := r.t
	t.Helper()
	links := func() string {
		return nstest.RunIn(t, r.host, "sh", "-c", `ip -o link | sed 's/state [A-Z]*//; s/NO-CARRIER,//; s/,LOWER_UP//'; ip -o addr show scope global`)
	}
	clean, host := state(t), links()
	for _, tt := range cases {
		a := &attachment{id: "a", netns: nstest.NewNS(t)}
		_, err := r.run(0, "ADD", a, tt.extra)
		wantCode(t, "add with "+tt.extra, err, spec.CodeConfig, tt.say)
		_, err = r.run(0, "STATUS", &attachment{}, tt.extra)
		if tt.status != 0 {
			wantCode(t, "status with "+tt.extra, err, tt.status, tt.say)
		} else if err := butKinds(err); err != nil {
			t.Errorf("status with %s: %v", tt.extra, err)
		}
		if _, err := r.run(0, "DEL", a, tt.extra); err != nil {
			t.Errorf("del with %s: %v", tt.extra, err)
		}
		same(t, tt.extra, clean)
		if now := links(); now != host || nstest.RunIn(t, a.netns, "ip", "-br", "link") != nstest.RunIn(t, nstest.NewNS(t),
			"ip", "-br", "link") {
			t.Errorf("%s left on the host\n%s\nit was\n%s", tt.extra, now, host)
		}
	}
}

// TestMasterRefused is what ADD must not begin with, and what STATUS knows of it.
//
// clause: K13 P11 P21
func TestMasterRefused(t *testing.T) {
	for _, kind := range []string{"macvlan", "macvtap", "ipvlan"} {
		t.Run(kind, func(t *testing.T) {
			r := newRunner(t, chain{name: "refused", plugins: []string{`"type":"` + kind + `",` + hostLocal4}})
			r.host = nstest.NewNS(t)
			nstest.RunIn(t, r.host, "sh", "-ec", `ip link add ens3 up type veth peer name ens4; ip link add br0 up type bridge
				ip link add port0 up master br0 type veth peer name port1; ip link set lo up`)
			r.refuses([]refusal{
				{`,"master":"esn3"`, `master: "esn3": no such link on the host; there is`, spec.CodeUnavailable},
				{`,"master":"esn3"`, `did you mean "ens3"?`, spec.CodeUnavailable},
				{`,"master":"ens4","requireMasterUp":true`, `master: "ens4": is down`, spec.CodeUnavailable},
				{`,"master":"lo"`, `master: "lo": is lo`, spec.CodeUnavailable},
				{`,"master":"port0"`, `name "br0" instead`, spec.CodeUnavailable},
				{`,"master":"ens3","mtu":1501`, `mtu: 1501: ens3 has 1500; want 68 to 1500`, spec.CodeUnavailable},
				{`,"master":"ens3","mtu":-1`, `mtu: -1`, spec.CodeConfig},
				{`,"master":"ens3","mode":"bridgee"`, `mode: "bridgee": want`, spec.CodeConfig},
				{`,"master":"ens3","linkInContainer":true`, `it is on the host; without "linkInContainer"`, 0},
				{`,"master":"inner","linkInContainer":true`, `no such link in the container; there is none but lo`, 0},
			})
			a := &attachment{id: "a", netns: nstest.NewNS(t)}
			_, err := r.run(0, "ADD", a, "")
			wantCode(t, "add without a default route", err, spec.CodeConfig, "there is no default route")
			if _, err := r.run(0, "STATUS", a, ""); (butKinds(err) != nil) != (kind != "ipvlan") {
				t.Errorf("status without a default route: %v", err)
			}
		})
	}
}

// TestMasterRollback: an ADD that fails at its addresses leaves neither link nor lease nor memory.
//
// clause: P11 P10
func TestMasterRollback(t *testing.T) {
	nstest.Need(t, "macvlan")
	s := newSite(t)
	r := s.neighbours(`"type":"macvlan"`)
	s.sh("host", "ip route add default via 192.0.2.2")
	good := r.chain.plugins[0]
	warm := &attachment{id: "w", netns: nstest.NewNS(t)}
	r.must("add", r.add(warm))
	r.must("del", r.del(warm))
	clean := state(t)
	for what, ipam := range map[string]string{
		"no address left": `"ipam":{"type":"answers"}`,
		"no addresses":    r.answers(`{"cniVersion":"1.1.0"}`),
		"a bad route":     `"ipam":{"type":"host-local","subnet":"192.0.2.0/24","routes":[{"dst":"10.0.0.0/8","gw":"203.0.113.1"}]}`,
	} {
		r.chain.plugins[0] = `"type":"macvlan",` + ipam
		if what == "no address left" {
			r.chain.plugins[0] = `"type":"macvlan","ipam":{"type":"host-local","ranges":[[{"subnet":"192.0.2.0/24","rangeStart":"192.0.2.9","rangeEnd":"192.0.2.9","gateway":"192.0.2.9"}]]}`
		}
		a := &attachment{id: "a1", netns: nstest.NewNS(t)}
		if err := r.add(a); err == nil {
			t.Errorf("%s: added", what)
		} else {
			t.Logf("%s: %v", what, err)
		}
		if out := nstest.RunIn(t, a.netns, "ip", "-br", "link"); strings.Contains(out, "eth0") {
			t.Errorf("%s left %s", what, out)
		}
		same(t, what, clean)
	}
	// A link of that name was there: it stays as it was, and so does the attachment that it is of.
	r.chain.plugins[0] = good
	a := &attachment{id: "a1", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	s.open("a1", a.netns)
	const show = "ip -d link; ip addr | sed 's/ tentative//'; ip route; ip -6 route"
	before := s.sh("a1", show) + state(t)
	err := r.add(&attachment{id: "a1", netns: a.netns})
	if err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("a second ADD: %v", err)
	}
	if after := s.sh("a1", show) + state(t); after != before {
		t.Errorf("a refused ADD changed\n%s\nto\n%s", before, after)
	}
	r.must("check", r.check(a))
	s.sh("host", "ip route del default; ip link del wan") // DEL needs neither
	r.must("del", r.del(&attachment{id: "a1", netns: a.netns}))
	same(t, "del without the master", clean)
	if out := nstest.RunIn(t, a.netns, "ip", "-br", "link"); strings.Contains(out, "eth0") {
		t.Errorf("DEL left %s", out)
	}
}

// TestMasterRouterAdvertisements: a container on a host's link cannot make the host believe that it is a router
// (CVE-2020-10749), and with IPv6 closed believes none itself, whatever the link's routers say (CVE-2024-32473).
func TestMasterRouterAdvertisements(t *testing.T) {
	for _, kind := range []string{"macvlan", "ipvlan"} {
		t.Run(kind, func(t *testing.T) {
			nstest.Need(t, kind)
			s := newSite(t)
			s.sh("host", "sysctl -qw net.ipv6.conf.wan.accept_ra=2")
			r := s.neighbours(`"type":"` + kind + `","master":"wan"`)
			r.chain.plugins[0] = `"type":"` + kind + `","master":"wan","ipam":{"type":"host-local","subnet":"192.0.2.0/24","rangeStart":"192.0.2.100"}`
			believed := func(who string) string {
				return s.sh(who, "ip -6 route show proto ra; ip -6 addr show to 2001:db8:bad::/64")
			}
			await := func(who, what string) {
				t.Helper()
				err := rtnl.Await(s.ns[who], t.Context(), 5e9, []uint{rtnl.IPv6RouteEvents, rtnl.IPv6AddrEvents},
					func() (bool, error) {
						return strings.Contains(believed(who), "2001:db8:bad:"), nil
					})
				if err != nil {
					t.Errorf("%s: %v: so the test shows nothing", what, err)
				}
			}

			// The container sends.
			a := &attachment{id: "a1", netns: nstest.NewNS(t)}
			s.open("a1", a.netns)
			s.sh("outside", "sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv6.conf.eth0.accept_ra=2")
			stop, sent := make(chan struct{}), make(chan struct{})
			go advertiseAlways(s.ns["a1"], stop, sent)
			r.must("add", r.add(a))
			await("outside", "a neighbour believes what the container sends")
			if got := believed("host"); got != "" {
				t.Errorf("the host believes its container:\n%s", got)
			}
			close(stop)
			r.must("del", r.del(a))
			s.sh("outside", "ip -6 route flush proto ra; sysctl -qw net.ipv6.conf.eth0.accept_ra=0")

			// A neighbour sends, and the host believes it: nobody took that from it.
			stop, sent = make(chan struct{}), make(chan struct{})
			go advertiseAlways(s.ns["outside"], stop, sent)
			defer close(stop)
			await("host", "the host believes a neighbour")
			r.chain.plugins[0] += `,"ipv6":"off"`
			b := &attachment{id: "a2", netns: nstest.NewNS(t)}
			s.open("a2", b.netns)
			r.must("add", r.add(b))
			s.ping("a2", "192.0.2.2")
			if got := s.sh("a2", "ip -6 addr show dev eth0; ip -6 route"); got != "" {
				t.Errorf("IPv6 with ipv6 off: %s", got)
			}
			r.must("check", r.check(b))
			s.sh("a2", "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0")
			if err := r.check(b); err == nil || !strings.Contains(err.Error(), "disable_ipv6 is 0") {
				t.Errorf("check without the protection: %v", err)
			}
			await("a2", "the container believes a neighbour")
			r.must("del", r.del(b))
		})
	}
}

// TestNoCarrier: a cable that is out is no reason to refuse a container.
func TestNoCarrier(t *testing.T) {
	nstest.Need(t, "macvlan")
	s := newSite(t)
	r := s.neighbours(`"type":"macvlan","master":"wan"`)
	s.sh("outside", "ip link set eth0 down")
	a := &attachment{id: "a1", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	s.open("a1", a.netns)
	s.sh("outside", "ip link set eth0 up; ip addr add 2001:db8::2/64 dev eth0 nodad")
	err := rtnl.Await(s.ns["a1"], t.Context(), 5e9, []uint{rtnl.LinkEvents, rtnl.IPv6AddrEvents}, func() (bool, error) {
		return !strings.Contains(s.sh("a1", "ip addr show dev eth0"), "tentative"), nil
	})
	r.must("the addresses settle", err)
	s.expect("to a neighbour", "a1", "192.0.2.2:80", "outside")
	s.expect("to a neighbour", "a1", "[2001:db8::2]:80", "outside")
	r.must("del", r.del(a))
}
