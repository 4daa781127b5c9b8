package plugin_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// badInput is what people write by mistake. MASTER are all plugins that put a link on another, TAKEN those of them
// whose link takes what comes in by the other.
var badInput = []struct {
	plugin string
	conf   string    // what the configuration has beside type and ipam
	say    string    // in which KIND is the plugin
	status spec.Code // of STATUS, which says the same; zero: it does not know
}{
	{"MASTER", `"master":"esn3"`, `master: "esn3": no such link on the host; there is ens4, ens3, br0, port1, port0, tun0; did you mean "ens3"?`, 50},
	{"vlan", `"vlanId":7,"master":"ens4"`, `master: "ens4": is down; set it up (ip link set ens4 up); ens3, br0`, 50},
	{"TAKEN", `"master":"ens4","requireMasterUp":true`, `master: "ens4": is down; set it up (ip link set ens4 up); ens3, br0`, 50},
	{"MASTER", `"master":"lo"`, `master: "lo": is lo, which has no Ethernet headers, and KIND needs them; ens3, br0`, 50},
	{"MASTER", `"master":"tun0"`, `master: "tun0": is a tun, which has no Ethernet headers`, 50},
	{"MASTER", `"master":"ens3","mtu":1501`, `mtu: 1501: ens3 has 1500; want 68 to 1500 bytes, or none for the master's`, 50},
	{"MASTER", `"master":"ens3","mtu":-1`, `mtu: -1: want 68 bytes to what the master has`, 7},
	{"MASTER", `"master":"ens3","mtu":67`, `mtu: 67: want 68 bytes to what the master has`, 7},
	{"MASTER", `"master":"ens3","mtu":"big"`, `mtu: "big": want a whole number`, 6},
	{"MASTER", `"master":3`, `master: 3: want a string`, 6},
	{"MASTER", `"master":"ens3/7"`, `master: "ens3/7": interface name "ens3/7" has the character '/'`, 7},
	{"MASTER", `"master":"ens3","linkInContainer":true`, `master: "ens3": no such link in the container: it is on the host; without "linkInContainer" it is meant`, 0},
	{"MASTER", `"master":"inner"`, `master: "inner": no such link on the host`, 50},
	{"MASTER", `"master":"innre","linkInContainer":true`, `master: "innre": no such link in the container; there is far, inner, bri; did you mean "inner"?`, 0},
	{"MASTER", `"master":"ens3","linkInContainer":"yes"`, `linkInContainer: "yes": want true or false`, 6},
	{"MASTER", `"master":"ens3","ipv6":"on"`, `ipv6: "on": want "off", or leave the key out`, 7},
	{"MASTER", `"master":"ens3","conflictDetection":"prob"`, `conflictDetection: "prob": want off or probe; did you mean "probe"?`, 7},
	{"TAKEN", `"master":"port0"`, `master: "port0": is a port of br0, which takes all that comes in by it; name "br0" instead; ens3, br0`, 50},
	{"TAKEN", `"mtu":1400`, `master: is missing, and there is no default route on the host whose link could stand in; there is ens4`, 0},
	{"TAKEN", `"master":"ens3","mode":"bridgee"`, `mode: "bridgee": want `, 7},
	{"macvlan", `"master":"ens3","mode":"souce"`, `mode: "souce": want bridge, private, vepa or passthru`, 7},
	{"macvlan", `"master":"ens3","mode":4`, `mode: 4: want a string`, 6},
	{"macvlan", `"master":"ens3","bcqueuelen":-1`, `bcqueuelen: -1: want a whole number from 0 to 4294967295`, 6},
	{"macvlan", `"master":"ens3","mac":"zz"`, `mac: "zz": want 6 bytes, such as 02:00:5e:10:00:01`, 7},
	{"macvlan", `"master":"ens3","mac":"01:00:5e:00:00:01"`, `mac: "01:00:5e:00:00:01": is a group address; the first byte has to be even`, 7},
	{"macvtap", `"master":"ens3","runtimeConfig":{"mac":"02:00"}`, `runtimeConfig.mac: "02:00": want 6 bytes`, 7},
	{"ipvlan", `"master":"ens3","mode":"l4"`, `mode: "l4": want l2, l3 or l3s; did you mean "l2"?`, 7},
	{"ipvlan", `"master":"ens3","flag":"prviate"`, `flag: "prviate": want bridge, private or vepa; did you mean "private"?`, 7},
	{"ipvlan", `"master":"ens3","mode":"l3","conflictDetection":"probe"`, `conflictDetection: "probe": in mode l3 there is no broadcast`, 7},
	{"vlan", `"master":"ens3"`, `vlanId: is missing: want a number from 1 to 4094`, 7},
	{"vlan", `"vlanId":7`, `master: is missing: want the name of the link whose VLAN it is to be, such as "ens3"`, 7},
	{"vlan", `"master":"ens3","vlanId":0`, `vlanId: 0: want a number from 1 to 4094`, 7},
	{"vlan", `"master":"ens3","vlanId":4095`, `vlanId: 4095: want a number from 1 to 4094`, 7},
	{"vlan", `"master":"ens3","vlanId":-1`, `vlanId: -1: want a number from 1 to 4094`, 7},
	{"vlan", `"master":"ens3","vlanId":"7"`, `vlanId: "7": want a whole number`, 6},
	{"vlan", `"master":"ens3","vlanId":7,"protocol":"802.1d"`, `protocol: "802.1d": want 802.1q or 802.1ad; did you mean "802.1q"?`, 7},
	{"ptp", `"mtu":67`, `mtu: 67: want 68 to 65535 bytes, or "auto"`, 7},
	{"ptp", `"mtu":65536`, `mtu: 65536: want 68 to 65535 bytes, or "auto"`, 7},
	{"ptp", `"mtu":"big"`, `mtu: "big": want a number of bytes, or "auto"`, 7},
	{"ptp", `"ipv6":"no"`, `ipv6: "no": want "off", or leave the key out`, 7},
	{"ptp", `"hostInterfaceName":"ens3"`, `hostInterfaceName: "ens3": a veth of the host's; a name is for one link at a time`, 50},
	{"ptp", `"hostInterfaceName":"a-name-of-16-byt"`, `hostInterfaceName: "a-name-of-16-byt": interface name "a-name-of-16-byt" has 16 bytes: 15 are allowed`, 7},
	{"ptp", `"ipMasq":true,"snatTo":["198.51.100.9"]`, `snatTo: 198.51.100.9: is no address of this host, so no answer would come back to it; it has none of that family`, 50},
	{"ptp", `"ipMasq":true,"ipMasqBackend":"iptabels"`, `ipMasqBackend: "iptabels": want "nftables", which is the default, or "iptables"`, 2},
	{"ptp", `"args":{"cni":{"mac":"33:33:00:00:00:01"}}`, `args.cni.mac: "33:33:00:00:00:01": is a group address`, 7},
	{"ptp", `"ipam":{}`, `ipam: is missing: ptp routes to the addresses of its containers`, 7},
	{"dummy", `"mtu":67`, `mtu: 67: want 68 bytes at least, or none for 1500`, 7},
	{"dummy", `"runtimeConfig":{"mac":"zz"}`, `runtimeConfig.mac: "zz": want 6 bytes`, 7},
	{"dummy", `"ipv6":"disabled"`, `ipv6: "disabled": want "off", or leave the key out`, 7},
	{"tap", `"mtu":65522`, `mtu: 65522: want 68 to 65521 bytes`, 7},
	{"tap", `"mac":"zz"`, `mac: "zz": want 6 bytes`, 7},
	{"tap", `"bridge":"bro"`, `bridge: "bro": no such link in the container; there is bri; did you mean "bri"?`, 0},
	{"tap", `"bridge":"inner"`, `bridge: "inner": is a veth in the container, not a bridge; there is bri`, 0},
	{"tap", `"bridge":"eth0"`, `bridge: "eth0": is the name of the interface itself`, 0},
	{"tap", `"owner":-1`, `owner: -1: want a whole number from 0 to 4294967295`, 6},
	{"tap", `"group":"root"`, `group: "root": want a whole number from 0 to 4294967295`, 6},
	{"tap", `"owner":4294967296`, `owner: 4294967296: want a whole number from 0 to 4294967295`, 6},
	{"tap", `"multiQueue":"yes"`, `multiQueue: "yes": want true or false`, 6},
	{"bridge", `"bridge":"ens3"`, `bridge: "ens3": is a veth on the host, not a bridge; name another (there is br0), or remove it (ip link delete ens3)`, 50},
	{"bridge", `"bridge":"lo"`, `bridge: "lo": is lo on the host, not a bridge; name another (there is br0)`, 50},
	{"bridge", `"bridge":"a-name-of-16-byt"`, `bridge: "a-name-of-16-byt": interface name "a-name-of-16-byt" has 16 bytes`, 7},
	{"bridge", `"hairpinMode":true,"promiscMode":true`, `hairpinMode and promiscMode: set one of them`, 7},
	{"bridge", `"mtu":1000000`, `mtu: 1000000: want 68 to 65535 bytes, or "auto"`, 7},
	{"bridge", `"enabledad":true,"conflictDetection":"off"`, `conflictDetection: "off": contradicts enabledad, which checks IPv6 addresses; remove one of the two`, 7},
	{"host-device", `"device":"esn3"`, `device: "esn3": no such device on the host; there is ens4, ens3, br0, port1, port0, tun0; did you mean "ens3"?`, 50},
	{"host-device", `"device":"br0"`, `device: "br0": is a bridge, and the kernel lets it not leave its namespace`, 50},
	{"host-device", `"device":"lo"`, `device: "lo": stays where it is; name a network device`, 7},
	{"host-device", `"hwaddr":"zz"`, `hwaddr: "zz": want 6 bytes`, 7},
	{"host-device", `"hwaddr":"02:00:00:00:03:04"`, `hwaddr: "02:00:00:00:03:04": no such device on the host; there is`, 50},
	{"host-device", `"hwaddr":"02:00:00:00:03:04"`, `did you mean "02:00:00:00:03:03"?`, 50},
	{"host-device", `"kernelpath":"/etc"`, `kernelpath: "/etc": want a path below /sys/devices/`, 7},
	{"host-device", `"pciBusID":"0000:ff:1f.7"`, `pciBusID: "0000:ff:1f.7": no such device on the host`, 50},
	{"host-device", `"runtimeConfig":{"deviceID":"a/b"}`, `runtimeConfig.deviceID: "a/b": want a device's address`, 7},
	{"vrf", `"table":7`, `vrfname: is missing: want the name of a VRF, such as "blue"`, 7},
	{"vrf", `"vrfname":"a-name-of-16-byt"`, `vrfname: "a-name-of-16-byt": interface name "a-name-of-16-byt" has 16 bytes`, 7},
	{"vrf", `"vrfname":"inner"`, `vrfname: "inner": is a veth in the container`, 0},
	{"vrf", `"vrfname":"blue","table":255`, `table: 255: want 1 to 4294967295, but not 253 (default), 254 (main) and 255 (local), or 0 for a free one`, 7},
	{"vrf", `"vrfname":"blue","table":"7"`, `table: "7": want a whole number`, 6},
	{"route", `"routes":[{"dst":"192.0.2.0/24"}]`, `routes[0]: 192.0.2.0/24: has no next hop: want via, nexthops, "scope": "link" or a type, such as "blackhole"`, 7},
	{"route", `"routes":[{"dst":"192.0.2.0/33","via":"10.1.0.1"}]`, `routes[0].dst: "192.0.2.0/33": want a subnet, such as 192.0.2.0/24 or 2001:db8::/32, or an address`, 7},
	{"route", `"routes":[{"dst":"192.0.2.0/24","via":"10.1.0.1","gateway":"10.1.0.2"}],"strict":true`, `routes[0].gateway: "10.1.0.2": unknown key, and "strict" is set`, 2},
	{"route", `"routes":[{"dst":"192.0.2.0/24","via":"172.31.0.1"}]`, `routes[0]: the kernel does not take 192.0.2.0/24 via 172.31.0.1`, 0},
	{"route", `"routes":{"dst":"192.0.2.0/24"}`, `routes: {"dst":"192.0.2.0/24"}: want a list`, 6},
	{"route", `"addroutes":[{"dst":"192.0.2.0/24"}]`, `addroutes[0]: 192.0.2.0/24: has no next hop: no address of far in prevResult has a gateway of that family; want gw`, 0},
	{"route", `"rules":[{"from":"10.1.0.2","table":5}]`, `rules[0].priority: is missing: want 1 to 32765`, 7},
	{"route", `"neighbours":[{"dst":"10.1.0.2","lladdr":"zz"}]`, `neighbours[0].lladdr: "zz": want 6 bytes`, 7},
	{"alias", `"runtimeConfig":{"aliases":["db","my db"]}`, `runtimeConfig.aliases[1]: "my db": want a DNS label: 1 to 63 letters, digits, dashes and underscores`, 7},
	{"alias", `"runtimeConfig":{"aliases":["` + strings.Repeat("a", 64) + `"]}`, `runtimeConfig.aliases[0]: "` + strings.Repeat("a", 64) + `": want a DNS label`, 7},
	{"alias", `"runtimeConfig":{"aliases":["-db"]}`, `runtimeConfig.aliases[0]: "-db": want a DNS label`, 7},
	{"alias", `"runtimeConfig":{"aliases":["a.b"]}`, `runtimeConfig.aliases[0]: "a.b": want a DNS label`, 7},
	{"alias", `"runtimeConfig":{"aliases":["Localhost"]}`, `runtimeConfig.aliases[0]: "Localhost": is reserved for the host itself (RFC 6761)`, 7},
	{"alias", `"runtimeConfig":{"aliases":{"life-bad-alias":["ok",""]}}`, `runtimeConfig.aliases.life-bad-alias[1]: "": want a DNS label`, 7},
	{"alias", `"runtimeConfig":{"aliases":"db"}`, `runtimeConfig.aliases: "db": want a list of names, such as ["db", "primary-db"], or an object of such lists by network`, 7},
	{"alias", `"domainName":"dns..test"`, `domainName: "dns..test": want a domain, such as dns.podman`, 7},
	{"alias", `"dns":{"nameservers":["one.test"]}`, `dns.nameservers[0]: "one.test": want an address, such as 192.0.2.53`, 7},
	{"alias", `"domainName":"dns.test"`, `prevResult: has no address of far, so names cannot lead to it: configure ipam`, 0},
	{"ovs", `"vlan":1`, `bridge: is missing: want the name of a bridge of Open vSwitch`, 7},
	{"ovs", `"bridge":"ovs0","vlan":5000`, `vlan: 5000: want a number from 1 to 4094, or 0 for none`, 7},
	{"ovs", `"bridge":"ovs0","vlan":"10"`, `vlan: "10": want a whole number`, 6},
	{"ovs", `"bridge":"ovs0","vxlanID":16777216`, `vxlanID: 16777216: want a number from 0 to 16777215 (24 bits)`, 7},
	{"ovs", `"bridge":"ovs0","vxlanID":42,"remotes":["192.0.2.1","host2"]`, `remotes[1]: "host2": want the address of a host, such as 192.0.2.1`, 7},
	{"ovs", `"bridge":"ovs0","trunk":[{"id":10},{"minID":20,"maxID":4095}]`, `trunk[1].maxID: 4095: want a number from 1 to 4094`, 7},
	{"debug", `"cniOutput":"calls.txt"`, `cniOutput: "calls.txt": want the absolute path of a file, such as /var/log/cni-calls`, 7},
	{"debug", `"format":"yaml"`, `format: "yaml": want "text" or "json"`, 7},
	{"debug", `"addHooks":[["true"],[]]`, `addHooks[1]: []: want a program and its arguments, such as ["ip", "route"]`, 7},
	{"debug", `"delHooks":[["ip"],"ip link"]`, `delHooks[1]: "ip link": want a list`, 6},
}

// TestBadInput: a configuration that cannot be served is refused before anything is changed, in words that say which
// key, its value, what is allowed, and what there is on this host. STATUS says it too, where the host can be asked.
//
// clause: K13 P8 P11 P21
func TestBadInput(t *testing.T) {
	host := nstest.NewNS(t)
	nstest.RunIn(t, host, "sh", "-ec", `ip link set lo up; ip link add ens3 address 02:00:00:00:03:03 up type veth peer name ens4; ip link add br0 up type bridge
		ip link add port0 up master br0 type veth peer name port1; ip tuntap add tun0 mode tun; ip link set tun0 up`)
	cont := nstest.NewNS(t)
	nstest.RunIn(t, cont, "sh", "-ec", "ip link add inner up type veth peer name far; ip link add bri up type bridge")
	show := func() string {
		const all = `ip -o link | sed 's/state [A-Z]*//; s/NO-CARRIER,//; s/,LOWER_UP//'; ip -o addr show scope global; ip route; ip -6 route | grep -v fe80 || true`
		return nstest.RunIn(t, host, "sh", "-c", all) + nstest.RunIn(t, cont, "sh", "-c", all) + state(t)
	}
	allowCommands(t) // else debug refuses all of its commands
	byKind := map[string][]int{}
	for i, tt := range badInput {
		kinds := []string{tt.plugin}
		switch tt.plugin {
		case "MASTER":
			kinds = []string{"macvlan", "macvtap", "ipvlan", "vlan"}
		case "TAKEN":
			kinds = []string{"macvlan", "macvtap", "ipvlan"}
		}
		for _, kind := range kinds {
			byKind[kind] = append(byKind[kind], i)
		}
	}
	for kind, rows := range byKind {
		t.Run(kind, func(t *testing.T) {
			if kind == "alias" {
				nameServer(t)
			}
			r := newRunner(t, chain{name: "bad-" + kind, plugins: []string{""}})
			r.host = host
			before := show()
			for _, i := range rows {
				tt := badInput[i]
				conf := `"type":"` + kind + `",` + tt.conf
				if kind == "vlan" && tt.plugin == "MASTER" {
					conf += `,"vlanId":7`
				}
				chained := slices.Contains([]string{"vrf", "route", "debug", "alias"}, kind)
				if !strings.Contains(conf, `"ipam"`) && !chained {
					conf += `,"ipam":{"type":"host-local","subnet":"10.77.0.0/24"}`
				}
				r.chain.plugins[0] = conf
				say := strings.ReplaceAll(tt.say, "KIND", kind)
				a := &attachment{id: "a", netns: cont}
				if chained {
					r.ifName = "far"
					a.prev = []byte(fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"far","sandbox":%q}]}`, cont))
				}
				code := spec.CodeConfig
				if tt.status != 0 && tt.status != spec.CodeUnavailable {
					code = tt.status
				}
				_, err := r.run(0, "ADD", a, "")
				wantCode(t, "add with "+conf, err, code, say)
				_, err = r.run(0, "STATUS", &attachment{}, "")
				if tt.status != 0 {
					wantCode(t, "status with "+conf, err, tt.status, say)
				} else if err := butKinds(err); err != nil && !strings.Contains(err.Error(), say) {
					t.Errorf("status with %s: %v", conf, err)
				}
			}
			if after := show(); after != before {
				t.Errorf("is\n%s\nwas\n%s", after, before)
			}
		})
	}
}
