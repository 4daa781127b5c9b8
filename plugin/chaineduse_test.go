package plugin_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// makers are plugins that make an interface, ours and the reference's.
var makers = []struct {
	name, conf string
	setup      func(*testing.T)
	reference  bool
}{
	{"ptp", `"type":"ptp",` + hostLocal, nil, false},
	{"macvlan", `"type":"macvlan","master":"ens3","conflictDetection":"off",` + hostLocal, uplink("macvlan"), false},
	{"ipvlan", `"type":"ipvlan","master":"ens3","conflictDetection":"off",` + hostLocal, uplink("ipvlan"), false},
	{"vlan", `"type":"vlan","master":"ens3","vlanId":7,"conflictDetection":"off",` + hostLocal, uplink("vlan id 7"), false},
	{"dummy", `"type":"dummy",` + hostLocal, func(t *testing.T) { nstest.Need(t, "dummy") }, false},
	{"tap", `"type":"tap",` + hostLocal, needTap, false},
	{"host-device", `"type":"host-device","device":"ens9","conflictDetection":"off",` + hostLocal, spare, false},
	{"the reference's bridge", `"type":"bridge","bridge":"br-ref","isGateway":true,` + hostLocal4, withoutBridges, true},
	{"the reference's ptp", `"type":"ptp",` + hostLocal4, nil, true},
	{"the reference's macvlan", `"type":"macvlan","master":"ens3",` + hostLocal4, uplink("macvlan"), true},
}

// chained are the plugins that do not care how the interface was made: what shows their work, where it is, and what
// undoes it behind their backs.
var chained = []struct {
	name, conf string
	shows      string // prints something
	undo       string
	say        string
}{
	{"isolated", `"type":"firewall","backend":"nftables","ingressPolicy":"isolated"`, `nft list ruleset | grep NET/c1/eth0`, `nft flush ruleset`, "policy"},
	{"firewall", `"type":"firewall","backend":"iptables"`, `iptables-save | grep -e '-s IP4/32'`, `iptables -F CNI-FORWARD`, "IP4/32"},
	{"portmap", published, `nft list ruleset | grep 8080`, `nft flush ruleset`, "8080"},
	{"bandwidth", `"type":"bandwidth","ingressRate":100000000,"egressRate":20000000`, `{ tc qdisc; IN tc qdisc; } | grep tbf`,
		`for dev in $(tc qdisc | sed -n 's/^qdisc tbf .* dev \([^ ]*\) root.*/\1/p'); do tc qdisc del dev $dev root; done; IN tc qdisc del dev eth0 root 2>/dev/null || true`, "the qdisc is missing"},
	{"tuning", `"type":"tuning","mtu":1300,"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}`, `IN ip link show eth0 | grep 'mtu 1300'`, `IN ip link set eth0 mtu 1400`, "mtu is 1400, want 1300"},
	{"sbr", `"type":"sbr"`, `IN ip rule | grep 'from IP4 lookup'`, `IN ip rule del from IP4`, "from IP4 lookup"},
	{"route", `"type":"route","routes":[{"dst":"10.66.0.0/16","type":"blackhole"}],"rules":[{"priority":9,"to":"10.66.0.0/16","table":254}]`, `IN ip route | grep 'blackhole 10.66'`,
		`IN ip rule del priority 9`, "rule add priority 9 to 10.66.0.0/16 lookup 254 in cont/: is missing"},
	{"vrf", `"type":"vrf","vrfname":"blue"`, `IN ip -br link show master blue | grep eth0`, `IN ip link set eth0 nomaster`, "master is none, want blue"},
}

// TestChainedUse runs each plugin that works on an interface after each that makes one. It shows its work, says when it
// was undone, and leaves the interface as it was, whoever made it.
//
// clause: P11 P12 P14 P15 P16 P18 P23
func TestChainedUse(t *testing.T) {
	for _, m := range makers {
		nstest.Apart(t, m.name, func(t *testing.T) {
			if m.setup != nil {
				m.setup(t)
			}
			r := newRunner(t, chain{name: "use", plugins: []string{m.conf, ""}})
			clean, begun := "", false
			last := len(chained) - 1 // vrf, which not each kernel has: it skips in each run
			for _, c := range append(nstest.Some(t, 3, chained[:last]), chained[last]) {
				t.Run(c.name, func(t *testing.T) {
					if c.name == "vrf" {
						nstest.Need(t, "vrf", "table", "7")
					}
					r.t, r.chain.plugins[1] = t, c.conf
					a := &attachment{id: "c1", netns: nstest.NewNS(t), network: r.network()}
					make := func(verb string) error {
						if !m.reference {
							out, err := r.run(0, verb, a, "")
							if verb == "ADD" {
								a.prev = out
							}
							return err
						}
						return byReference(a, r, verb)
					}
					run := func(script string) string {
						t.Helper()
						return nstest.Run(t, "sh", "-ec", a.text(strings.ReplaceAll(script, "IN ", "nsenter --net="+a.netns+" ")))
					}
					in := func() string {
						return run(`IN ip -br addr | sed 's/@[^ ]*//; s/ \(UP\|DOWN\|UNKNOWN\|LOWERLAYERDOWN\) / /; s/fe80[^ ]*//; s/  */ /g; s/ $//'; for f in -4 -6; do IN ip $f route show table all | grep -v 'fe80\|ff00\|local' | sort; IN ip $f rule; done; IN ip link | grep -o 'mtu [0-9]*'; IN tc qdisc`)
					}
					t.Cleanup(func() { // what is left where the test ended before its end
						_, _ = r.run(1, "DEL", a, "")
						_ = make("DEL")
					})
					r.must("make", make("ADD"))
					made, before, host := spec.Result{}, in(), state(t)
					if res, err := spec.DecodeResult(a.prev, spec.V110); err == nil {
						made = *res
					}

					alone := a.prev
					out, err := r.run(1, "ADD", a, "")
					if c.name == "isolated" && !strings.Contains(m.name, "ptp") && !strings.Contains(m.name, "bridge") {
						wantCode(t, "a policy where there is nothing to tell the traffic by", err, spec.CodeConfig, `ingressPolicy: "isolated": eth0 has no host-side interface`)
						return
					}
					r.must("add", err)
					a.prev = out
					res, err := spec.DecodeResult(out, spec.V110)
					r.must("decode", err)
					if len(res.IPs) != len(made.IPs) || len(res.Routes) != len(made.Routes) ||
						slices.ContainsFunc(made.Interfaces, func(f spec.Interface) bool {
							return !slices.ContainsFunc(res.Interfaces,
								func(g spec.Interface) bool { return f.Name == g.Name && f.Sandbox == g.Sandbox })
						}) {
						t.Errorf("the result was\n%s\nand is\n%s", alone, out)
					}
					run(c.shows)
					if _, err := r.run(1, "CHECK", a, ""); err != nil {
						t.Errorf("check: %v", err)
					}
					if err := make("CHECK"); err != nil {
						t.Errorf("check of what was made: %v", err)
					}
					run(c.undo)
					if _, err := r.run(1, "CHECK", a, ""); err == nil || !strings.Contains(err.Error(), a.text(c.say)) {
						t.Errorf("check of what was undone: %v, want %q", err, a.text(c.say))
					}
					for range 2 {
						_, err := r.run(1, "DEL", &attachment{id: "c1", netns: a.netns}, "")
						r.must("del without a result", err)
					}
					if !strings.Contains(c.undo, "eth0 nomaster") { // which takes routes that nobody can put back
						if after := in(); after != before {
							t.Errorf("the container is\n%s\nit was\n%s", after, before)
						}
						same(t, "the chained plugin", host)
					}
					r.must("del of what was made", make("DEL"))
					if begun {
						same(t, "both", clean)
					} else {
						clean, begun = state(t), true
					}
				})
			}
		})
	}
}

// byReference runs the reference's plugin, as far as it is a chain's first.
func byReference(a *attachment, r *runner, verb string) error {
	if verb == "CHECK" {
		return nil // it does not tolerate what a later plugin does
	}
	conf := `{"cniVersion":"1.0.0","name":"` + r.network() + `",` + r.chain.plugins[0] + "}"
	var typ struct{ Type string }
	if err := json.Unmarshal([]byte(conf), &typ); err != nil {
		return err
	}
	argv := []string{"/usr/lib/cni/" + typ.Type}
	nstest.NeedProgram(r.t, argv[0])
	if r.host != "" {
		argv = append([]string{"nsenter", "--net=" + r.host}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(conf)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + a.id,
		"CNI_NETNS=" + a.netns, "CNI_IFNAME=eth0", "CNI_PATH=/usr/lib/cni"}
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if verb == "ADD" {
		a.prev = out
	}
	return nil
}

// TestVRFAndSourceRouting has both in a chain, in either order, as the reference takes them: neither waits for
// addresses that are where it does not look, the second says what the first takes from it, no route is lost, and each
// goes as it came.
//
// clause: P9 P17 P18 P23
func TestVRFAndSourceRouting(t *testing.T) {
	nstest.Need(t, "vrf", "table", "7")
	withoutBridges(t)
	vrf, sbr := `"type":"vrf","vrfname":"blue"`, `"type":"sbr"`
	for name, order := range map[string][]string{"vrf-first": {vrf, sbr}, "sbr-first": {sbr, vrf}} {
		t.Run(name, func(t *testing.T) {
			r := newRunner(t, chain{name: name, plugins: append([]string{`"type":"bridge","bridge":"br-both","isGateway":true,` + hostLocal}, order...)})
			a := &attachment{id: "c1", netns: nstest.NewNS(t), network: r.network()}
			stderr := filepath.Join(t.TempDir(), "stderr")
			for i := range r.chain.plugins {
				begin := time.Now()
				out, err := r.run(i, "ADD", a, "", "sh", "-c", `exec "$@" 2>`+stderr, "sh")
				r.must("add", err)
				a.prev = out
				if b, err := os.ReadFile(stderr); err != nil ||
					(i == 2) != strings.Contains(string(b), "looks in the VRF's table first") {
					t.Errorf("plugin %d prints %s, %v", i, b, err)
				}
				if took := time.Since(begin); took > 40*time.Second { // the wait for an address is a minute
					t.Errorf("plugin %d took %v", i, took)
				}
			}
			r.must("check", r.check(a))
			nstest.RunIn(t, a.netns, "sh", "-ec", `ip route show table 100 | grep 'default via 10.77.0.1 dev eth0'; ip route show table 100 | grep 10.77.0.0/24
				ip -6 route show table 101 | grep 'default via fd00:77::1 dev eth0'; ip -6 route show table 101 | grep fd00:77::/64`)
			for _, gw := range []string{"10.77.0.1", "fd00:77::1"} {
				nstest.RunIn(t, a.netns, "busybox", "ping", "-q", "-c", "1", "-W", "3", "-I", "blue", gw)
			}
			r.must("del", r.del(a))
			if out := nstest.RunIn(t, a.netns, "sh", "-c",
				"ip -br link; ip rule; ip -6 rule; ip route show table all; ip -6 route show table all"); strings.Contains(out, "blue") ||
				strings.Contains(out, "10.77") || strings.Contains(out, "fd00") {
				t.Errorf("left: %s", out)
			}
		})
	}
}

// TestChainedTraffic sends packets by interfaces that the reference's plugins made, on a host that forwards nothing by
// itself: they are let through, published and limited by ours.
//
// clause: P18 P23
func TestChainedTraffic(t *testing.T) {
	for name, conf := range map[string]string{
		"bridge": `"type":"bridge","bridge":"br-a","isGateway":true,"ipMasq":true`,
		"ptp":    `"type":"ptp","ipMasq":true`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.restore("nft", dropRules)
			s.sh("outside", "ip route del default; ip -6 route del default") // masqueraded, or nowhere
			r := s.network("a", published, `"type":"firewall"`, `"type":"bandwidth","ingressRate":100000000,"egressRate":100000000`, `"type":"tuning","mtu":1400`)
			r.chain.plugins[0] = conf + `,"ipam":{"type":"host-local","dataDir":"` + t.TempDir() + `","subnet":"10.81.0.0/24","routes":[{"dst":"0.0.0.0/0"}]}`
			a := &attachment{id: "a1", netns: nstest.NewNS(t), network: r.network()}
			r.must("the reference's add", byReference(a, r, "ADD"))
			made := a.prev
			for i := 1; i < len(r.chain.plugins); i++ {
				out, err := r.run(i, "ADD", a, "")
				r.must("add", err)
				a.prev = out
			}
			for i := 1; i < len(r.chain.plugins); i++ {
				_, err := r.run(i, "CHECK", a, "")
				r.must("check", err)
			}
			s.open("a1", a.netns)
			s.serve("a1")
			s.expect("to the outside", "a1", "192.0.2.2:80", "outside")
			s.expect("from outside, published", "outside", "192.0.2.1:8080", "a1")
			s.expect("from the host", "host", a.text("IP4:80"), "a1")
			for i := len(r.chain.plugins) - 1; i > 0; i-- {
				_, err := r.run(i, "DEL", a, "")
				r.must("del", err)
			}
			s.expect("from outside, not published any more", "outside", "192.0.2.1:8080", "")
			s.expect("to the outside, without a way", "a1", "192.0.2.2:80", "")
			a.prev = made
			r.must("the reference's del", byReference(a, r, "DEL"))
			if out := s.sh("host", "ip -br link; iptables-save"); strings.Contains(out, "veth") ||
				strings.Contains(out, "10.81") {
				t.Errorf("left: %s", out)
			}
		})
	}
}
