package plugin_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// A fork is a container c with an interface in each of two networks. The same client is behind every router, so
// only one that sends its packets and gets the answers has a conversation:
//
//	client ── r1 10.91.0.1 ── br-t1 ── eth0 c eth1 ── br-t2 ┬─ r2 10.92.0.1 ── client
//	                                                        └─ r3 10.92.0.9 ── client
type fork struct {
	places // addr has those of the interfaces
}

var client = [2]string{"198.51.100.7", "2001:db8:7::7"}

// newFork has what the plugins find: the bridges, which forward frames only, and the routers.
func newFork(t *testing.T) *fork {
	f := &fork{newPlaces(t)}
	for _, net := range []string{"1", "2"} {
		nstest.Run(t, "sh", "-ec", strings.ReplaceAll("ip link add br-tN type bridge; ip link set br-tN up", "N", net))
		t.Cleanup(func() { nstest.Run(t, "ip", "link", "del", "br-t"+net) })
	}
	for _, r := range []struct{ name, net, host string }{{"r1", "1", "1"}, {"r2", "2", "1"}, {"r3", "2", "9"}} {
		path := nstest.NewNS(t)
		f.open(r.name, path)
		nstest.Run(t, "sh", "-ec",
			fmt.Sprintf("ip link add %s type veth peer name eth0 netns %s; ip link set %[1]s master br-t%[3]s up; ip netns exec %[2]s sh -ec "+
				"'ip link set lo up; ip link set eth0 up; ip addr add 10.9%[3]s.0.%s/24 dev eth0; ip addr add fd9%[3]s::%[4]s/64 dev eth0 nodad; ip addr add %[5]s dev lo; ip addr add %[6]s dev lo nodad'",
				r.name, strings.TrimPrefix(path, "/run/netns/"), r.net, r.host, client[0], client[1]))
		t.Cleanup(func() { nstest.Run(t, "ip", "link", "del", r.name) }) // the namespace may live on for a while
		f.serve(r.name)
	}
	return f
}

// expect is who answers from, which has the address local (or whatever the kernel gives it), at an address; "": nobody.
func (f *fork) expect(from, local, to, want string) {
	f.Helper()
	patience := nstest.Patience(f)
	if want == "" {
		patience = 300 * time.Millisecond
	}
	d := net.Dialer{Timeout: patience}
	if local != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(local)}
	}
	var c net.Conn
	err := f.ns[from].Do(func() (err error) { c, err = d.Dial("tcp", net.JoinHostPort(to, "80")); return err })
	var got []byte
	if err == nil {
		c.SetDeadline(time.Now().Add(patience))
		got, err = io.ReadAll(c)
		c.Close()
	}
	if string(got) != want {
		f.Errorf("%s as %q asks %s: %q answers (%v), want %q", from, local, to, got, err, want)
	}
}

// add attaches the container c to network 1 or 2, by the bridge and whatever plugins come after.
func (f *fork) add(network, routes string, more ...string) (*runner, *attachment) {
	f.Helper()
	bridge := strings.ReplaceAll(`"type":"bridge","bridge":"br-tN","ipam":{"type":"host-local","ranges":[[{"subnet":"10.9N.0.0/24","rangeStart":"10.9N.0.100"}],[{"subnet":"fd9N::/64","rangeStart":"fd9N::100"}]],"routes":[ROUTES]}`, "N", network)
	r := newRunner(f.T, chain{"fork" + network, append([]string{strings.Replace(bridge, "ROUTES", routes, 1)}, more...),
		nil})
	r.ifName = map[string]string{"1": "eth0", "2": "eth1"}[network]
	a := &attachment{id: "c", netns: f.ns["c"].Path}
	r.must("add", r.add(a))
	f.Cleanup(func() { r.must("del", r.del(a)) })
	r.must("check right after add", r.check(a))
	f.addr[r.ifName] = [2]string{a.text("IP4"), a.text("IP6")}
	return r, a
}

const defaults = `{"dst":"0.0.0.0/0"},{"dst":"::/0"}`

// TestSourceRoutingOfPackets lets one client talk to a container by way of several routers: an answer leaves by the
// interface that the question came in by, in both families.
//
// clause: P16 P18
func TestSourceRoutingOfPackets(t *testing.T) {
	for _, tt := range []struct {
		name, routes, first, second string
		by, not                     string // the router that eth1's answers leave by, and one that gets none
	}{
		{"without", defaults, "", "", "r1", "r2"}, // the reason for all this
		{"second", defaults, "", `"type":"sbr"`, "r2", "r3"},
		{"both", defaults, `"type":"sbr"`, `"type":"sbr"`, "r2", ""},
		{"hints", defaults, `"type":"sbr","addSourceHints":true`, `"type":"sbr","addSourceHints":true`, "r2", ""},
		{"gateways", defaults, "", `"type":"sbr","gateways":["10.92.0.9","fd92::9"]`, "r3", "r2"},
		{"gateways and hints", defaults, `"type":"sbr"`, `"type":"sbr","gateways":["fd92::9","10.92.0.9"],"addSourceHints":true`, "r3", "r2"},
		{"no routes", `{"dst":"10.92.0.0/24"}`, "", `"type":"sbr"`, "r2", ""}, // by the addresses' gateways
		{"table", `{"dst":"0.0.0.0/0","table":500},{"dst":"::/0","table":500},{"dst":"10.92.0.0/24","gw":"0.0.0.0","table":500}`, "", `"type":"sbr","table":500`, "r2", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFork(t)
			f.open("c", nstest.NewNS(t))
			list := func(plugin string) []string {
				if plugin == "" {
					return nil
				}
				return []string{plugin}
			}
			r1, a1 := f.add("1", defaults, list(tt.first)...)
			before := rules(t, a1.netns)
			r2, a2 := f.add("2", tt.routes, list(tt.second)...)
			f.serve("c")
			r1.must("check of the first network", r1.check(a1))
			for i := range client {
				for router, want := range map[string]string{tt.by: "c", tt.not: ""} {
					if router != "r1" && router != "" {
						f.expect(router, client[i], f.addr["eth1"][i], want)
					}
				}
				f.expect("r1", client[i], f.addr["eth0"][i], "c")
				if tt.second != "" {
					f.expect("c", f.addr["eth1"][i], client[i], tt.by)
				}
				f.expect("c", f.addr["eth0"][i], client[i], "r1")
				f.expect("c", f.addr["eth1"][i], [2]string{"10.92.0.1", "fd92::1"}[i], "r2") // its neighbours it has itself
				if tt.first == "" {
					f.expect("c", "", client[i], "r1")
				}
			}
			r2.must("del", r2.del(a2))
			if after := rules(t, a1.netns); after != before {
				t.Errorf("before\n%safter\n%s", before, after)
			}
			f.expect("r1", client[0], f.addr["eth0"][0], "c")
			f.expect("r1", client[1], f.addr["eth0"][1], "c")
		})
	}
}

// rules is what sbr changes in a container.
func rules(t *testing.T, netns string) string {
	t.Helper()
	return nstest.RunIn(t, netns, "sh", "-c",
		"for f in -4 -6; do ip $f rule; ip $f route show table all | grep -v 'table local\\|multicast\\|^fe80' | sort; done")
}

// TestSourceHints: an interface with two addresses of one subnet uses the one that the network gave it for
// connections to its neighbours.
func TestSourceHints(t *testing.T) {
	for _, tt := range []struct{ plugin, src string }{{`"type":"sbr"`, "fd92::ff"}, {`"type":"sbr","addSourceHints":true`, ""}} {
		t.Run(tt.plugin, func(t *testing.T) {
			f := newFork(t)
			f.open("c", nstest.NewNS(t))
			_, a := f.add("2", defaults, tt.plugin)
			nstest.RunIn(t, a.netns, "ip", "addr", "add", "fd92::ff/64", "dev", "eth1", "nodad")
			want := tt.src
			if want == "" {
				want = f.addr["eth1"][1]
			}
			if out := nstest.RunIn(t, a.netns, "ip", "route", "get", "fd92::1"); !strings.Contains(out, "src "+want+" ") {
				t.Errorf("to a neighbour: %s, want src %s", out, want)
			}
		})
	}
}

// TestSourceRoutingMain leaves of an interface's routes in the main table what the reference's plugin leaves there:
// nothing, not its subnet either, but in IPv6 what belongs to the link alone. With addSourceHints the subnets stay. An
// address of another interface is left out, and that is said.
//
// clause: P18
func TestSourceRoutingMain(t *testing.T) {
	const reference = "/usr/lib/cni/sbr"
	main := func(plugin string) (routes, stderr string) {
		ns := nstest.NewNS(t)
		nstest.RunIn(t, ns, "sh", "-ec", `for n in 1 2; do ip link add eth$n type veth peer name peer$n; ip link set peer$n up; ip link set eth$n up
			ip addr add 10.9$n.0.2/24 dev eth$n; ip addr add fd9$n::2/64 dev eth$n nodad; done
			ip route add default via 10.91.0.1; ip -6 route add default via fd91::1; ip route add 192.0.2.0/24 via 10.92.0.1; ip route add 198.51.100.0/24 dev eth2`)
		prev := `{"cniVersion":"1.0.0","interfaces":[{"name":"eth1","sandbox":"NS"},{"name":"eth2","sandbox":"NS"}],"ips":[{"address":"10.91.0.2/24","interface":0},{"address":"10.92.0.2/24","gateway":"10.92.0.1","interface":1},{"address":"fd92::2/64","interface":1}]}`
		path := reference
		if plugin != reference {
			r := newRunner(t, chain{"main", []string{`"type":"sbr"`}, nil})
			path = r.dir + "/sbr"
		}
		cmd := exec.Command(path)
		cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0","name":"main","type":"sbr"` + strings.TrimPrefix(plugin, reference) + `,"prevResult":` + strings.ReplaceAll(prev, "NS", ns) + `}`)
		cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID=c", "CNI_NETNS="+ns, "CNI_IFNAME=eth2",
			"CNI_PATH=/usr/lib/cni")
		var said strings.Builder
		cmd.Stderr = &said
		if out, err := cmd.Output(); err != nil {
			t.Fatalf("%s: %v: %s %s", path, err, out, &said)
		}
		return nstest.RunIn(t, ns, "sh", "-c",
			"for f in -4 -6; do ip $f route show table main | grep -v ^fe80 | sed 's/ *$//' | sort; done"), said.String()
	}
	theirs, _ := main(reference)
	ours, said := main("")
	if ours != theirs {
		t.Errorf("the main table is\n%swith the reference's plugin it is\n%s", ours, theirs)
	}
	if want := "prevResult.ips[0]: 10.91.0.2/24 is an address of eth1, and the plugin does not route its packets"; !strings.Contains(said,
		want) {
		t.Errorf("stderr is %q, want %q", said, want)
	}
	hinted, _ := main(`,"addSourceHints":true`)
	for _, want := range []string{"10.92.0.0/24 dev eth2 proto kernel scope link src 10.92.0.2",
		"fd92::/64 dev eth2 proto 250 src fd92::2"} {
		if strings.Contains(ours, want) || !strings.Contains(hinted, want) {
			t.Errorf("with hints the main table is\n%swant %s", hinted, want)
		}
	}
}

const sourceRouted = `"type":"bridge","bridge":"br-g","isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.93.0.0/24"}],[{"subnet":"fd93::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`

// TestSourceRoutingGone deletes where the namespace, or what was at its path, is not there any more. The whole chain
// has to go, and nothing may appear at the path.
//
// clause: P12 P13
func TestSourceRoutingGone(t *testing.T) {
	r := newRunner(t, chain{"gone", []string{sourceRouted, `"type":"sbr"`}, nil})
	warm := &attachment{id: "w", netns: nstest.NewNS(t)}
	r.must("add", r.add(warm))
	r.must("del", r.del(warm))
	clean := state(t)
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		path func(a *attachment) string // what DEL is told
	}{
		{"empty", func(a *attachment) string { return "" }},
		{"vanished", func(a *attachment) string { nstest.RemoveNS(a.netns); return a.netns }},
		{"a plain file", func(a *attachment) string {
			nstest.RemoveNS(a.netns)
			if err := os.WriteFile(a.netns, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			return a.netns
		}},
		{"of a dead process", func(a *attachment) string { return fmt.Sprintf("/proc/%d/ns/net", dead.Process.Pid) }},
		{"of another container", func(a *attachment) string { return nstest.NewNS(t) }},
		{"without its interface", func(a *attachment) string {
			nstest.RunIn(t, a.netns, "ip", "link", "del",
				"eth0")
			return a.netns
		}},
		{"without its addresses", func(a *attachment) string {
			nstest.RunIn(t, a.netns, "ip", "addr", "flush", "dev", "eth0")
			return a.netns
		}},
	} {
		for _, prev := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, previous result %v", tt.name, prev), func(t *testing.T) {
				a := &attachment{id: "c", netns: nstest.NewNS(t)}
				r.must("add", r.add(a))
				gone := *a
				gone.netns = tt.path(a)
				if !prev {
					gone.prev = nil
				}
				before, berr := os.ReadFile(gone.netns)
				for range 2 {
					r.must("del", r.del(&gone))
					same(t, "del", clean)
				}
				after, aerr := os.ReadFile(gone.netns)
				if string(before) != string(after) || errors.Is(berr, fs.ErrNotExist) != errors.Is(aerr, fs.ErrNotExist) {
					t.Errorf("at the path is %q (%v), before it was %q (%v)", after, aerr, before, berr)
				}
				if strings.HasPrefix(tt.name, "without") {
					if s := nstest.RunIn(t, a.netns, "ip", "rule") +
						nstest.RunIn(t, a.netns, "ip", "-6", "rule"); strings.Contains(s, "lookup 10") {
						t.Errorf("rules are left:\n%s", s)
					}
				}
			})
		}
	}
}

// TestSourceRoutingKilled kills the ADD of sbr alone at each call that can change something. DEL, which is not told
// the result, puts everything back in the container too.
//
// clause: P11 P12
func TestSourceRoutingKilled(t *testing.T) {
	for _, plugin := range []string{`"type":"sbr","addSourceHints":true`, `"type":"sbr","table":500`} {
		r := newRunner(t, chain{"killed", []string{sourceRouted, plugin}, nil})
		a := &attachment{id: "k", netns: nstest.NewNS(t), network: r.network()}
		var err error
		a.prev, err = r.run(0, "ADD", a, "")
		r.must("add", err)
		before, host := rules(t, a.netns), state(t)
		calls := "sendto,sendmsg,write,renameat,renameat2,rename,unlinkat,mkdirat,flock"
		last := nstest.Sample(t, 8, func(n int) (killed bool) {
			_, err := r.run(1, "ADD", a, "", "strace", "-f", "-qqq", "-o", "/dev/null", "-e",
				"inject="+calls+fmt.Sprintf(":signal=SIGKILL:when=%d", n))
			_, derr := r.run(1, "DEL", &attachment{id: a.id, netns: a.netns}, "")
			r.must(fmt.Sprintf("del after a kill at call %d", n), derr)
			if after := rules(t, a.netns); after != before {
				t.Fatalf("a kill at call %d left\n%s\nbefore it was\n%s", n, after, before)
			}
			same(t, fmt.Sprint("a kill at call ", n), host)
			return err != nil
		})
		if last == 0 {
			t.Error("ADD was not killed")
		}
		// And an ADD that comes after a killed one, without a DEL, finds its way.
		for n := 3; n < 20; n += 4 {
			_, _ = r.run(1, "ADD", a, "", "strace", "-f", "-qqq", "-o", "/dev/null", "-e",
				"inject="+calls+fmt.Sprintf(":signal=SIGKILL:when=%d", n))
			_, err := r.run(1, "ADD", a, "")
			r.must("add after a killed one", err)
			_, err = r.run(1, "CHECK", a, "")
			r.must("check", err)
			_, err = r.run(1, "DEL", a, "")
			r.must("del", err)
			if after := rules(t, a.netns); after != before {
				t.Errorf("left\n%s\nbefore it was\n%s", after, before)
			}
		}
		r.must("del", r.del(a))
	}
}

// TestSourceRoutingRefused is what ADD must not begin with: nothing has changed after it.
//
// clause: P8 P11
func TestSourceRoutingRefused(t *testing.T) {
	r := newRunner(t, chain{"refused", []string{sourceRouted, `"type":"sbr"`}, nil})
	a := &attachment{id: "r", netns: nstest.NewNS(t), network: r.network()}
	_, err := r.run(1, "ADD", &attachment{id: "r", netns: a.netns}, "")
	wantCode(t, "first of its chain", err, spec.CodeConfig, "prevResult is missing")
	a.prev, err = r.run(0, "ADD", a, "")
	r.must("add", err)
	before, host := rules(t, a.netns), state(t)
	refuse := func(extra string, a *attachment, say string) {
		t.Helper()
		_, err := r.run(1, "ADD", a, extra)
		wantCode(t, extra, err, spec.CodeConfig, say)
		if after := rules(t, a.netns); after != before {
			t.Errorf("%s changed\n%s\nbefore it was\n%s", extra, after, before)
		}
		same(t, extra, host)
	}
	for _, table := range []string{"0", "-1", "253", "254", "255", "4294967296"} {
		refuse(`,"table":`+table, a, "table: "+table+": want 1 to 4294967295")
	}
	refuse(`,"gateways":["10.93.0.256"]`, a, `gateways[0]: "10.93.0.256": want the IP address of a router`)
	refuse(`,"gateways":["10.93.0.9","10.93.0.8"]`, a, `gateways[1]: "10.93.0.8": want at most one router of each family`)
	refuse(`,"gateways":["fd93::9","10.94.0.9"]`, a, `gateways[1]: "10.94.0.9": is not in the subnet of eth0; want an address in 10.93.0.0/24`)
	none := *a
	none.prev = []byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"` + a.netns + `"}]}`)
	refuse("", &none, "prevResult.ips: has no address of eth0")
	r.must("del", r.del(a))
}

// TestSourceRoutingOfOtherLinks chains sbr after plugins that make other links than veth pairs: a macvlan, and a tap
// that is a port of the bridge while the container's interface is another plugin's.
//
// clause: P18 P23
func TestSourceRoutingOfOtherLinks(t *testing.T) {
	ns := nstest.NewNS(t)
	nstest.Run(t, "sh", "-ec", `ip link add master0 type veth peer name master1; ip link set master0 up; ip link set master1 up
		ip link add link master0 name eth0 netns `+strings.TrimPrefix(ns, "/run/netns/")+` type macvlan mode bridge`)
	t.Cleanup(func() { nstest.Run(t, "ip", "link", "del", "master0") })
	nstest.RunIn(t, ns, "sh", "-ec", `ip link set eth0 up; ip addr add 10.94.0.2/24 dev eth0; ip addr add fd94::2/64 dev eth0
		ip route add default via 10.94.0.1; ip route add default via fd94::1`)
	uplink("macvlan")(t)
	r := newRunner(t, chain{"macvlan", []string{`"type":"sbr"`}, nil})
	prev := fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":%q}],"ips":[{"address":"10.94.0.2/24","gateway":"10.94.0.1","interface":0},{"address":"fd94::2/64","gateway":"fd94::1","interface":0}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"vendor":1}`, ns)
	before := rules(t, ns)
	a := &attachment{id: "m", netns: ns, prev: []byte(prev)}
	out, err := r.run(0, "ADD", a, "") // the kernel still asks whether somebody has the IPv6 address, which is waited for
	r.must("add", err)
	if !strings.Contains(string(out), `"vendor"`) || !strings.Contains(string(out), `"fd94::1"`) {
		t.Errorf("the result lacks what was before: %s", out)
	}
	r.must("check", r.check(a))
	for _, addr := range []string{"10.94.0.2", "fd94::2"} {
		to := map[bool]string{true: "192.0.2.1", false: "2001:db8::1"}[strings.Contains(addr, ".")]
		if out := nstest.RunIn(t, ns, "ip", "route", "get", to, "from", addr); !strings.Contains(out, "table 10") {
			t.Errorf("from %s: %s", addr, out)
		}
	}
	r.must("del", r.del(a))
	if after := rules(t, ns); after != before {
		t.Errorf("before\n%safter\n%s", before, after)
	}

	tun, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		nstest.Skip(t, err) // root's alone in some distributions
	}
	tun.Close()
	ns = nstest.NewNS(t)
	nstest.Run(t, "sh", "-ec", "ip tuntap add tap9 mode tap; ip link set tap9 up")
	t.Cleanup(func() { nstest.Run(t, "ip", "link", "del", "tap9") })
	nstest.RunIn(t, ns, "sh", "-ec",
		"ip link add eth0 type veth peer name other; ip link set eth0 up; ip link set other up")
	r = newRunner(t, chain{"tapped", []string{strings.Replace(sourceRouted, "br-g", "br-tap9", 1), `"type":"sbr"`}, nil})
	a = &attachment{id: "t", netns: ns, network: r.network(), prev: []byte(fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"tap9","mac":"02:00:00:00:00:01"},{"name":"eth0","sandbox":%q}]}`, ns))}
	for i := range r.chain.plugins {
		out, err := r.run(i, "ADD", a, "")
		r.must("add", err)
		a.prev = out
	}
	r.must("check", r.check(a))
	r.must("del", r.del(a))
}
