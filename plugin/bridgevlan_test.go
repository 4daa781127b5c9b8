package plugin_test

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel/rtnl"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

func needBridgeVLANs(t *testing.T) {
	t.Helper()
	nstest.Need(t, "bridge", "vlan_filtering", "1")
}

// bridgeVLANs takes the link of the gateway away at the end, which no bridge does.
func bridgeVLANs(t *testing.T) {
	needBridgeVLANs(t)
	t.Cleanup(func() { nstest.Run(t, "ip", "link", "del", "br-vlan.100") })
}

// lan is a bridge plugin of one subnet, whatever the VLAN.
func lan(more string) string {
	return `"type":"bridge","bridge":"br0",` + more + `,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`
}

// deaf sends packets to a container that its neighbour knows by their MACs, and expects that none gets there.
func (s *site) deaf(what, from, to string) {
	s.Helper()
	s.heard(what, from, to, false)
}

func (s *site) heard(what, from, to string, want bool) {
	s.Helper()
	l, err := rtnl.LinkByName(s.ns[to], "eth0")
	if err != nil {
		s.Fatal(err)
	}
	mac := l.MAC
	a, b := s.addr[from], s.addr[to]
	s.sh(to, fmt.Sprintf("nft add table inet ear; nft flush table inet ear; nft 'add chain inet ear in { type filter hook prerouting priority -300; }'; nft add rule inet ear in ip saddr %s counter; nft add rule inet ear in ip6 saddr %s counter", a[0], a[1]))
	s.sh(from, fmt.Sprintf("ip neigh replace %s lladdr %s dev eth0 nud permanent; ip neigh replace %s lladdr %s dev eth0 nud permanent", b[0], mac, b[1], mac))
	for v, name := range []string{"ping", "ping6"} {
		s.sh(from, "busybox "+name+" -q -c 2 -i 0.1 -W 1 "+b[v]+" || true")
	}
	out := s.sh(to, "nft list table inet ear; nft delete table inet ear")
	s.sh(from, fmt.Sprintf("ip neigh del %s dev eth0; ip neigh del %s dev eth0", b[0], b[1]))
	if silent := strings.Count(out, "counter packets 0 bytes 0"); silent != 2 && !want || silent != 0 && want {
		s.Errorf("%s: from %s to %s: heard is to be %v:\n%s", what, from, to, want, out)
	}
}

// TestBridgeVLANPackets sends packets within a VLAN of a bridge, by its gateway to a host beyond, and by a trunk. What
// goes round on the bridge without a tag, or in another VLAN, does not get in, nor out.
//
// clause: P24 P26
func TestBridgeVLANPackets(t *testing.T) {
	needBridgeVLANs(t)
	s := twoHosts(t)
	s.sh("host", "ip addr add 192.0.2.1/24 dev ens3; ip addr add 2001:db8::1/64 dev ens3 nodad")
	s.sh("outside", "ip addr add 192.0.2.2/24 dev ens3; ip addr add 2001:db8::2/64 dev ens3 nodad; ip route add default via 192.0.2.1; ip route add default via 2001:db8::1")
	s.addr["outside"] = [2]string{"192.0.2.2", "2001:db8::2"}
	s.serve("outside")
	s.on("host", "a", lan(`"access":100,"isGateway":true`))
	s.on("host", "b", lan(`"vlan":200`))
	s.on("host", "c", lan(`"mtu":1500`))
	s.on("host", "t", lan(`"trunk":{"native":200,"tagged":["99-101"]}`))
	s.on("host", "r", lan(`"vlan":200,"vlanTrunk":[{"id":100}],"preserveDefaultVlan":true`))
	for _, name := range []string{"a1", "a2", "b1", "c1", "c2", "t1", "r1"} {
		s.add(name)
	}
	for _, pair := range [][2]string{{"a1", "a2"}, {"a1", "outside"}, {"outside", "a2"}, {"c1", "c2"}, {"b1", "t1"},
		{"t1", "b1"}, {"r1", "b1"}} {
		s.talks(pair[0], pair[1])
	}
	s.heard("the same VLAN", "a2", "a1", true)
	for _, pair := range [][2]string{{"c1", "a1"}, {"a1", "c1"}, {"b1", "a1"}, {"a1", "b1"}, {"t1", "a1"}, {"a1", "t1"},
		{"t1", "c1"}} {
		s.deaf("another VLAN", pair[0], pair[1])
		s.unreachable("another VLAN", pair[0], pair[1])
	}
	s.heard("who is left in the default VLAN hears it", "c1", "r1", true)

	// With the tag, the trunk is in the containers' VLAN.
	s.sh("t1", "ip link add link eth0 name eth0.100 type vlan id 100; ip addr flush dev eth0; ip addr add 10.77.0.200/24 dev eth0.100; ip addr add fd00:77::200/64 dev eth0.100 nodad; ip link set eth0.100 up")
	s.addr["t1"] = [2]string{"10.77.0.200", "fd00:77::200"}
	s.talks("t1", "a1")
	s.talks("a2", "t1")
	s.sh("t1", "ip link set eth0.100 down; ip link add link eth0 name eth0.300 type vlan id 300; ip addr add 10.77.0.200/24 dev eth0.300; ip link set eth0.300 up")
	s.expect("a VLAN that the trunk does not have", "t1", net.JoinHostPort(s.addr["a1"][0], "80"), "")

	r := s.runners["a"]
	res, err := spec.DecodeResult(s.containers["a1"].prev, spec.V110)
	if err != nil || len(res.Interfaces) != 4 || res.Interfaces[3].Name != "br0.100" || res.Interfaces[3].Sandbox != "" ||
		*res.IPs[0].Interface != 2 {
		t.Errorf("%+v, %v", res, err)
	}
	r.must("check", r.check(s.containers["a1"]))
}

// TestPolicyBesideBridge: where the host is on a bridge by a link of its own, yet frames reach it by the bridge itself
// too, no policy could hold, so that it is refused.
//
// clause: P18
func TestPolicyBesideBridge(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables"} {
		for _, policy := range []string{"same-bridge", "isolated", "strict", "open"} {
			t.Run(policy+"/"+backend, func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				s.sh("host", `ip link add br-a up type bridge; ip link add lan up type veth peer name port; ip link set port up master br-a; ip addr add 10.81.0.1/24 dev lan; ip addr add fd00:81::1/64 dev lan nodad`)
				r := s.network("a", fmt.Sprintf(`"type":"firewall","backend":%q,"ingressPolicy":%q`, backend, policy))
				r.chain.plugins[0] = strings.NewReplacer(`"isDefaultGateway":true,`, "", `]]}`, `]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`).Replace(r.chain.plugins[0])
				if policy == "open" {
					s.add("a1")
					s.expect("to the outside", "a1", "192.0.2.2:80", "outside")
					r.must("check", r.check(s.containers["a1"]))
					return
				}
				a := &attachment{id: "a1", netns: nstest.NewNS(t)}
				wantCode(t, "add", r.add(a), spec.CodeConfig, "the host reaches the containers of br-a by lan")
				r.must("del", r.del(a))
			})
		}
	}
}

// TestBridgeVLANPolicies has two networks in two VLANs of one bridge, whose policies hold for what comes by the
// gateways' links: it is them that the host routes by.
//
// clause: P20 P24
func TestBridgeVLANPolicies(t *testing.T) {
	for _, policy := range []string{"same-bridge", "isolated", "strict"} {
		for _, backend := range []string{"nftables", "iptables"} {
			for _, bridged := range []string{"0", "1"} {
				t.Run(policy+"/"+backend+"/br_netfilter="+bridged, func(t *testing.T) {
					needBridgeVLANs(t)
					s := newSite(t)
					s.sh("host", "for f in /proc/sys/net/bridge/bridge-nf-call-ip*; do if [ -e $f ]; then echo "+bridged+
						" > $f; fi; done")
					fw := fmt.Sprintf(`"type":"firewall","backend":%q,"ingressPolicy":%q`, backend, policy)
					for i, r := range []*runner{s.network("a", published, fw), s.network("b", fw)} {
						r.chain.plugins[0] = strings.Replace(r.chain.plugins[0], `"bridge":"br-`+"ab"[i:i+1]+`"`, fmt.Sprintf(`"bridge":"br-v","access":%d`, 100+i), 1)
					}
					s.attach(fw)
					if bridged == "0" {
						s.policy(policy)
					} else {
						// A frame whose destination is translated on the bridge is addressed to the bridge itself, for the way there
						// is by another link; and there it has no part in the VLAN.
						s.routed(policy)
					}
					s.ping("a1", "10.81.0.1")
					s.ping("a1", "fd00:81::1")
					s.checked()
					// By the gateway of its VLAN, and by a frame to a neighbour in it.
					s.add("b2")
					s.listen("a1")
					mac, err := rtnl.LinkByName(s.ns["b2"], "eth0")
					if err != nil {
						t.Fatal(err)
					}
					gateway, err := rtnl.LinkByName(s.ns["host"], "br-v.101")
					if err != nil {
						t.Fatal(err)
					}
					for _, to := range []net.HardwareAddr{gateway.MAC, mac.MAC} {
						s.forgeBy("in a VLAN", "b1", "a1", to, false)
						s.answerBy("in a VLAN", "b1", "a1", to)
					}
				})
			}
		}
	}
}

// TestPolicyBesideVRF: a VRF has the subnet of a network with a policy, and nothing to do with it.
func TestPolicyBesideVRF(t *testing.T) {
	nstest.Need(t, "vrf", "table", "10")
	s := newSite(t)
	s.network("a", `"type":"firewall","ingressPolicy":"strict"`)
	s.add("a1")
	s.sh("host", "ip link add blue up type vrf table 10; ip link add br-blue up master blue type bridge; ip addr add 10.81.0.1/24 dev br-blue; ip addr add fd00:81::1/64 dev br-blue nodad; ip link add lan up master blue type bridge; ip addr add 10.99.0.1/24 dev lan; ip addr add fd00:99::1/64 dev lan nodad")
	for name, bridge := range map[string]string{"v1": "br-blue", "v2": "lan"} {
		path := nstest.NewNS(t)
		s.open(name, path)
		net4, net6 := "10.81.0", "fd00:81"
		if name == "v2" {
			net4, net6 = "10.99.0", "fd00:99"
		}
		s.addr[name] = [2]string{net4 + ".50", net6 + "::50"}
		s.sh("host", "ip link add p-"+name+" up master "+bridge+" type veth peer name eth0 netns "+
			strings.TrimPrefix(path, "/run/netns/"))
		s.sh(name, "ip addr add "+net4+".50/24 dev eth0; ip addr add "+net6+
			"::50/64 dev eth0 nodad; ip link set eth0 up; ip route add default via "+net4+".1; ip route add default via "+net6+
			"::1")
		s.serve(name)
	}
	s.talks("v1", "v2")
	s.talks("v2", "v1")
	s.talks("a1", "outside")
	s.expect("the policy", "outside", net.JoinHostPort(s.addr["a1"][0], "80"), "")
}

// attach attaches a1, whose port is published, a2 and b1.
func (s *site) attach(fw string) {
	s.Helper()
	s.add("a1")
	s.runners["a"].chain.plugins = append(s.runners["a"].chain.plugins[:1:1], fw)
	s.add("a2")
	s.add("b1")
}

// checked has CHECK agree with what was attached, but for a1, whose list had one plugin more.
func (s *site) checked() {
	s.Helper()
	for name, a := range s.containers {
		if r := s.runners[name[:1]]; name != "a1" {
			r.must("check "+name, r.check(a))
		}
	}
}

// TestBridgeVLANRefused is what ADD must not begin with, and what STATUS knows of it.
//
// clause: K13 P11 P21
func TestBridgeVLANRefused(t *testing.T) {
	r := newRunner(t, chain{name: "bridge-vlan-refused", plugins: []string{`"type":"bridge",` + hostLocal}})
	r.host = nstest.NewNS(t)
	nstest.RunIn(t, r.host, "sh", "-ec", "ip link add br0 up type bridge; ip link set lo up")
	links := func() string {
		return nstest.RunIn(t, r.host, "sh", "-c",
			"ip -o link | sed 's/state [A-Z]*//; s/NO-CARRIER,//; s/,LOWER_UP//'; ip -o addr show scope global; ip -d link | grep -o 'vlan_filtering [01]'")
	}
	clean, host := state(t), links()
	_, none := nstest.Output(nstest.NewNS(t),
		exec.Command("ip", "link", "add", "br9", "type", "bridge", "vlan_filtering", "1"))
	for _, tt := range []struct {
		extra  string
		say    string
		status spec.Code
	}{
		{`,"access":100,"bridge":"br0"`, "ip link set br0 type bridge vlan_filtering 1", spec.CodeUnavailable},
		{`,"vlanTrunk":[],"bridge":"br0"`, "set vlanFiltering to true", spec.CodeUnavailable},
		{`,"access":100,"bridge":"twelve-bytes","isGateway":true`, "want a name of at most 11 bytes", spec.CodeConfig},
		{`,"access":4095`, "access: 4095: want a number from 1 to 4094", spec.CodeConfig},
		{`,"vlan":100,"access":100`, "two ways to set the same", spec.CodeConfig},
		{`,"vlanTrunk":[null]`, "vlanTrunk[0]: is empty", spec.CodeConfig},
	} {
		if none != nil && tt.status == spec.CodeUnavailable { // on such a kernel that would be of no use
			tt.say = "cannot keep VLANs apart: the kernel has no VLANs on bridges (CONFIG_BRIDGE_VLAN_FILTERING)"
		}
		a := &attachment{id: "a", netns: nstest.NewNS(t)}
		_, err := r.run(0, "ADD", a, tt.extra)
		wantCode(t, "add with "+tt.extra, err, spec.CodeConfig, tt.say)
		_, err = r.run(0, "STATUS", &attachment{}, tt.extra)
		wantCode(t, "status with "+tt.extra, err, tt.status, tt.say)
		if _, err := r.run(0, "DEL", a, tt.extra); err != nil {
			t.Errorf("del with %s: %v", tt.extra, err)
		}
		same(t, tt.extra, clean)
		if now := links(); now != host {
			t.Errorf("%s left on the host\n%s\nit was\n%s", tt.extra, now, host)
		}
	}
	// Where the kernel cannot, it says so and nothing is left.
	a := &attachment{id: "a", netns: nstest.NewNS(t)}
	if _, err := r.run(0, "ADD", a, `,"access":100,"bridge":"br0","vlanFiltering":true`); err != nil {
		wantCode(t, "add", err, spec.CodeInternal, "CONFIG_BRIDGE_VLAN_FILTERING")
		if now := links(); now != host {
			t.Errorf("on the host\n%s\nit was\n%s", now, host)
		}
	}
	if _, err := r.run(0, "DEL", a, ""); err != nil {
		t.Error(err)
	}
}
