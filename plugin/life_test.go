package plugin_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/command/cli"
	"github.com/fairlead-cni/fairlead/internal/dhcp/daemon"
	"github.com/fairlead-cni/fairlead/internal/kernel/tap"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
)

// The test binary is the plugins: called by the name of one, it is that one, in a process of its own; and it is the
// command.
func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); name == "dhcp" && len(os.Args) > 1 && os.Args[1] == "daemon" {
		os.Exit(daemon.Main(os.Args[2:], os.Stderr))
	}
	if filepath.Base(os.Args[0]) == "fairlead" {
		os.Exit(cli.Main(os.Args[1:], "test", os.Stdin, os.Stdout, os.Stderr))
	}
	if os.Getenv("CNI_COMMAND") != "" || os.Getenv(tap.LabelledVar) != "" {
		os.Exit(sdk.Serve(plugin.All(), filepath.Base(os.Args[0]), "test"))
	}
	nstest.Main(m)
}

// A chain is the configurations of a list's plugins, and what its life is tested with.
type chain struct {
	name    string
	plugins []string // JSON, without cniVersion and name
	breaks  []breaker
}

// A life is a chain whose attachments TestLife takes through all verbs, and what its tests need.
type life struct {
	chain
	setup       func(*testing.T) // makes what the chain needs of the host, or skips; nil: nothing
	renew       func(*testing.T) // makes again what went with a container's namespace; nil: nothing
	single      bool             // host ports, an address, a VLAN, a device or a name are one container's alone
	kill        bool             // TestKill kills its ADD
	inChain     bool             // it lives a second time as one plugin chain, in one process
	killInChain bool             // and TestKill kills ADD of that
}

// runner is newRunner on a host that has what the chain needs.
func (l life) runner(t *testing.T) *runner {
	t.Helper()
	if l.setup != nil {
		l.setup(t)
	}
	return newRunner(t, l.chain)
}

// A breaker damages a living attachment so that CHECK has to say it.
type breaker struct {
	what string
	run  func(*testing.T, *attachment)
	say  string // a regular expression for CHECK's message
}

const hostLocal = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`

// in and host run a command in the container's namespace and on the host. IP4 and IP6 stand for the
// attachment's addresses, NET for the network.
func in(args ...string) func(*testing.T, *attachment) {
	return func(t *testing.T, a *attachment) {
		args := a.fill(args)
		nstest.RunIn(t, a.netns, args[0], args[1:]...)
	}
}

func host(args ...string) func(*testing.T, *attachment) {
	return func(t *testing.T, a *attachment) {
		args := a.fill(args)
		nstest.Run(t, args[0], args[1:]...)
	}
}

// onDev runs a command on the host where $dev stands for the one link whose name begins with prefix.
func onDev(prefix, command string) func(*testing.T, *attachment) {
	return host("sh", "-c", "dev=$(ip -br link | sed -n 's/^\\("+prefix+"[^@ ]*\\).*/\\1/p'); "+command)
}

// renamed is what whoever is root in a container may do with its link.
var renamed = breaker{"renamed", in("sh", "-ec", "ip link set eth0 down; ip link set eth0 name net9 up"), `link eth0: link does not exist; it is called net9 now`}

var chains = withChains([]life{
	{chain: chain{"loopback", []string{`"type":"loopback"`}, []breaker{
		{"lo down", in("ip", "link", "set", "lo", "down"), "lo.*down"},
	}}},
	{kill: true, inChain: true, chain: chain{"bridge", []string{`"type":"bridge","isGateway":true,"ipMasq":true,"macspoofchk":true,"mtu":1400,` + hostLocal}, []breaker{
		{"address gone", in("ip", "addr", "del", "IP4/24", "dev", "eth0"), `addr cont/eth0 IP4/24`},
		{"IPv6 address gone", in("ip", "addr", "del", "IP6/64", "dev", "eth0"), `addr cont/eth0 IP6/64`},
		{"route gone", in("ip", "route", "del", "default"), `route.*default|0\.0\.0\.0/0`},
		{"link down", in("ip", "link", "set", "eth0", "down"), `eth0.*down`},
		{"gateway's address gone", host("ip", "addr", "del", "10.77.0.1/24", "dev", "cni0"), `10\.77\.0\.1`},
		{"forwarding off", host("sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward"), `forward`},
		{"bridge gone", host("ip", "link", "del", "cni0"), `cni0`},
		{"packet filter flushed", host("nft", "flush", "ruleset"), `nft|fairlead`},
		{"reservation gone", host("rm", "/var/lib/cni/networks/NET/IP4"), `IP4`},
		renamed,
		{"both ends renamed", func(t *testing.T, a *attachment) {
			renamed.run(t, a)
			onDev("veth", "ip link set $dev down; ip link set $dev name foo0 up")(t, a)
		}, `link eth0: link does not exist.*; it is called foo0 now`},
	}}},
	{chain: chain{"bridge-l2", []string{`"type":"bridge","bridge":"br2"`}, []breaker{
		{"not a port any more", host("sh", "-c", "ip link set $(ip -br link show master br2 | cut -d@ -f1) nomaster"), `master`},
	}}},
	{kill: true, chain: chain{"bridge-empty", []string{`"type":"bridge","bridge":"br-empty","removeWhenEmpty":true,"isGateway":true,"ipMasq":true,` + hostLocal, `"type":"firewall","backend":"nftables","ingressPolicy":"strict"`}, []breaker{
		{"not marked", host("ip", "link", "set", "br-empty", "alias", ""), `alias is none, want \w{12} \w{16} NET//br-empty`},
		{"down", host("ip", "link", "set", "br-empty", "down"), `state is down`},
		{"bridge gone", host("ip", "link", "del", "br-empty"), `br-empty`},
	}}},
	{kill: true, inChain: true, chain: chain{"bridge-gateways", []string{`"type":"bridge","bridge":"br-gw","isDefaultGateway":true,"ipMasq":true,"runtimeConfig":{"ipRanges":[[{"subnet":"10.78.0.0/24"}]]},` + hostLocal}, []breaker{
		{"one gateway's address gone", host("ip", "addr", "del", "10.78.0.1/24", "dev", "br-gw"), `addr host/br-gw 10\.78\.0\.1/24 as gateway: is missing`},
		{"the other's gone", host("ip", "addr", "del", "10.77.0.1/24", "dev", "br-gw"), `addr host/br-gw 10\.77\.0\.1/24 as gateway: is missing`},
		{"redirects on", host("sysctl", "-qw", "net.ipv4.conf.br-gw.send_redirects=1"), `send_redirects is 1, want 0`},
		{"packet filter flushed", host("nft", "flush", "ruleset"), `nft|fairlead`},
		{"bridge gone", host("ip", "link", "del", "br-gw"), `br-gw`},
	}}},
	{kill: true, setup: bridgeVLANs, chain: chain{"bridge-vlan", []string{`"type":"bridge","bridge":"br-vlan","access":100,"vlanFiltering":true,"isGateway":true,` + hostLocal}, []breaker{
		{"the default VLAN too", onDev("veth", "bridge vlan add dev $dev vid 1"), `VLANs of veth\w+ is vid 1 vid 100 pvid untagged, want vid 100 pvid untagged`},
		{"not in its VLAN", onDev("veth", "bridge vlan del dev $dev vid 100"), `is none, want vid 100`},
		{"VLANs not kept apart", host("ip", "link", "set", "br-vlan", "type", "bridge", "vlan_filtering", "0"), `vlan_filtering is false|does not keep VLANs apart`},
		{"gateway's link gone", host("ip", "link", "del", "br-vlan.100"), `br-vlan\.100: link does not exist`},
		{"gateway's address gone", host("ip", "addr", "del", "10.77.0.1/24", "dev", "br-vlan.100"), `addr host/br-vlan\.100 10\.77\.0\.1/24`},
		{"gateway in another VLAN", onDev("vlan", "bridge vlan del dev $dev vid 100; bridge vlan add dev $dev vid 101 pvid untagged"), `VLANs of vlan\w+ is vid 101`},
		{"bridge gone", host("ip", "link", "del", "br-vlan"), `br-vlan`},
	}}},
	{kill: true, chain: chain{"ptp", []string{`"type":"ptp","ipMasq":true,"mtu":1400,` + hostLocal}, []breaker{
		{"address gone", in("ip", "addr", "del", "IP4/24", "dev", "eth0"), `addr cont/eth0 IP4/24`},
		{"way to the gateway gone", in("ip", "route", "del", "10.77.0.1"), `route 10.77.0.1/32`},
		{"way to the subnet gone", in("ip", "-6", "route", "del", "fd00:77::/64"), `route fd00:77::/64 via fd00:77::1`},
		{"default route gone", in("ip", "route", "del", "default"), `route default`},
		{"a route to the subnet past the gateway", in("sh", "-c", "ip addr del IP4/24 dev eth0; ip addr add IP4/24 dev eth0"), `noprefixroute`},
		{"gateway's address gone", onDev("veth", "ip addr del 10.77.0.1/32 dev $dev"), `addr host/veth\w+ 10.77.0.1/32: is missing`},
		{"gateway's IPv6 address gone", onDev("veth", "ip addr del fd00:77::1/128 dev $dev"), `addr host/veth\w+ fd00:77::1/128`},
		{"host's route gone", host("ip", "route", "del", "IP4"), `route IP4/32 dev host/veth\w+ scope 254: is missing`},
		{"host's IPv6 route gone", host("ip", "-6", "route", "del", "IP6"), `route IP6/128 dev host/veth\w+: is missing`},
		{"host's end down", onDev("veth", "ip link set $dev down"), `host state is down`},
		{"host's end's MTU", onDev("veth", "ip link set $dev mtu 1300"), `host mtu is 1300`},
		{"MAC changed", in("ip", "link", "set", "eth0", "address", "02:00:00:00:00:01"), `address is 02:00:00:00:00:01`},
		{"forwarding off", host("sysctl", "-qw", "net.ipv4.ip_forward=0"), `ip_forward`},
		{"IPv6 forwarding off", host("sysctl", "-qw", "net.ipv6.conf.all.forwarding=0"), `ipv6/conf/all/forwarding`},
		{"packet filter flushed", host("nft", "flush", "ruleset"), `nft|fairlead`},
		{"reservation gone", host("rm", "/var/lib/cni/networks/NET/IP4"), `IP4`},
		renamed,
	}}},
	{setup: grantRanges, chain: chain{"cluster", []string{`"type":"ptp","ipMasq":true,"ipam":{"type":"cluster"}`}, []breaker{
		{"address gone", in("ip", "addr", "del", "IP4/24", "dev", "eth0"), `addr cont/eth0 IP4/24`},
		{"packets larger than the way", in("ip", "route", "change", "default", "via", "10.77.0.1", "mtu", "1500"), `mtu is 1500, want 1450`},
		{"IPv6 default route gone", in("ip", "-6", "route", "del", "default"), `route -6 default via fd00:77::1`},
		{"lease gone", host("rm", "/var/lib/cni/networks/NET/IP4"), `lease IP4: is missing`},
	}}},
	{inChain: true, killInChain: true, single: true, chain: chain{"ptp-chain", []string{`"type":"ptp","ipMasq":true,"ipMasqBackend":"iptables",` + hostLocal, `"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}]}`,
		`"type":"firewall","backend":"nftables","ingressPolicy":"isolated"`, `"type":"bandwidth","ingressRate":100000000,"egressRate":20000000`,
		`"type":"tuning","mtu":1300,"sysctl":{"net.core.somaxconn":"501"}`, `"type":"sbr"`}, []breaker{
		{"masquerading gone", host("iptables", "-t", "nat", "-F", "POSTROUTING"), `-s IP4/32`},
		{"packet filter flushed", host("nft", "flush", "ruleset"), `8080|nft|fairlead`},
		{"no limit to the container", onDev("veth", "tc qdisc del dev $dev root"), `the qdisc is missing`},
		{"source rule gone", in("ip", "rule", "del", "from", "IP4"), `from IP4 lookup 100: is missing|route default`},
	}}},
	{kill: true, single: true, chain: chain{"bridge-named", []string{`"type":"bridge","bridge":"br-named","isGateway":true,"hostInterfaceName":"web",` + hostLocal4}, []breaker{
		{"renamed", host("sh", "-ec", "ip link set web down; ip link set web name veb up"), `link web: link does not exist`},
		{"host's end down", host("ip", "link", "set", "web", "down"), `host state is down`},
	}}},
	{kill: true, single: true, chain: chain{"ptp-named", []string{`"type":"ptp","hostInterfaceName":"web",` + hostLocal4}, []breaker{
		{"renamed", host("sh", "-ec", "ip link set web down; ip link set web name veb up"), `link web: link does not exist`},
	}}},
	{kill: true, setup: needTap, chain: chain{"tap", []string{`"type":"tap","owner":0,"group":0,"mtu":1400,"multiQueue":true,` + hostLocal}, []breaker{
		{"address gone", in("ip", "addr", "del", "IP4/24", "dev", "eth0"), `addr cont/eth0 IP4/24: is missing`},
		{"IPv6 address gone", in("ip", "addr", "del", "IP6/64", "dev", "eth0"), `addr cont/eth0 IP6/64: is missing`},
		{"route gone", in("ip", "route", "del", "default"), `route default`},
		{"link down", in("ip", "link", "set", "eth0", "down"), `state is down`},
		{"MAC changed", in("ip", "link", "set", "eth0", "address", "02:00:00:00:00:01"), `address is 02:00:00:00:00:01`},
		{"MTU changed", in("ip", "link", "set", "eth0", "mtu", "1300"), `mtu is 1300, want 1400`},
		{"a tap of somebody else", in("sh", "-ec", "ip link del eth0; ip tuntap add eth0 mode tap"), `multi_queue is false.*owner is none, want user 0.*group is none, want group 0`},
		{"a tun", in("sh", "-ec", "ip link del eth0; ip tuntap add eth0 mode tun"), `tap is false`},
		{"reservation gone", host("rm", "/var/lib/cni/networks/NET/IP4"), `IP4`},
		renamed,
	}}},
	{setup: needTap, chain: chain{"tap-chain", []string{`"type":"tap"`, `"type":"tuning","mtu":1300,"mac":"02:00:00:00:00:0b","sysctl":{"net.core.somaxconn":"501"}`}, []breaker{
		{"MTU changed", in("ip", "link", "set", "eth0", "mtu", "1400"), `mtu is 1400, want 1300`},
	}}},
	{kill: true, inChain: true, single: true, chain: chain{"portmap", []string{`"type":"bridge","isGateway":true,` + hostLocal, `"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":5353,"containerPort":53,"protocol":"udp"}]}`}, []breaker{
		{"packet filter flushed", host("nft", "flush", "ruleset"), `8080|nft|fairlead`},
	}}},
	{kill: true, single: true, chain: chain{"portmap-iptables", []string{`"type":"bridge","isGateway":true,"ipMasq":true,"ipMasqBackend":"iptables",` + hostLocal,
		`"type":"portmap","backend":"iptables","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":5353,"containerPort":53,"protocol":"udp"},{"hostPort":2905,"containerPort":2905,"protocol":"sctp"},{"hostPort":9000,"hostPortEnd":9002,"containerPort":90}]}`}, []breaker{
		{"masquerading gone", host("iptables", "-t", "nat", "-F", "POSTROUTING"), `-s IP4/32`},
		{"a port gone", host("ip6tables", "-t", "nat", "-F", "CNI-HOSTPORT-DNAT"), `ip6tables-\w+ -t nat -A CNI-HOSTPORT-DNAT .*8080`},
		{"the guard gone", host("nft", "flush", "chain", "inet", "fairlead", "guard"), `127/8 from outside`},
		{"packet filter flushed", host("nft", "flush", "ruleset"), `8080|nft|fairlead`},
	}}},
	{single: true, chain: chain{"portmap-range", []string{`"type":"bridge","isGateway":true,` + hostLocal, `"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":8000,"hostPortEnd":8999,"containerPort":8000},{"hostPort":5000,"hostPortEnd":5003,"containerPort":6000,"protocol":"udp"}]}`}, []breaker{
		{"range gone", host("nft", "delete", "element", "inet", "fairlead", "publish_ip_any_range", "{ tcp . 8000-8999 }"), `8000-8999`},
	}}},
	{kill: true, inChain: true, chain: chain{"firewall", []string{`"type":"bridge","bridge":"br-fw","isGateway":true,` + hostLocal, `"type":"firewall","backend":"nftables","ingressPolicy":"isolated"`}, []breaker{
		{"packet filter flushed", host("nft", "flush", "ruleset"), `nft|fairlead`},
		{"policy lifted", host("nft", "delete", "element", "inet", "fairlead", "policed", "{ br-fw }"), `policed \{ br-fw \}`},
		{"another policy", host("nft", "add", "element", "inet", "fairlead", "within", "{ br-fw . br-fw }"), `within .* too much`},
		{"routing rules gone", host("ip", "rule", "flush", "proto", "250"), `rule 31901: fwmark 0x0/0x1000 iif br-fw lookup 64250 is missing`},
		{"ways back not validated", host("sysctl", "-qw", "net.ipv4.conf.br-fw.src_valid_mark=0"), `src_valid_mark is 0`},
		{"prohibitions gone", host("ip", "-6", "route", "flush", "table", "64250"), `route prohibit fd00:77::/64 table 64250 is missing`},
		{"port not isolated", host("nft", "flush", "set", "bridge", "fairlead", "isolated_ports"), `isolated_ports`},
	}}},
	{kill: true, chain: chain{"firewall-iptables", []string{`"type":"bridge","bridge":"br-fw","isGateway":true,` + hostLocal, `"type":"firewall","backend":"iptables","ingressPolicy":"strict"`}, []breaker{
		{"accepts gone", host("iptables", "-F", "CNI-FORWARD"), `CNI-FORWARD.* is missing`},
		{"IPv6 accept gone", host("ip6tables", "-F", "CNI-FORWARD"), `-s IP6/128.* is missing`},
		{"policy lifted", host("iptables", "-F", "CNI-ISOLATION-STAGE-2"), `CNI-ISOLATION-STAGE-2.* is missing`},
		{"another policy", host("iptables", "-A", "CNI-ISOLATION-STAGE-1", "-i", "br-fw", "-o", "br-fw", "-m", "comment", "--comment", "CNI firewall plugin rules (ingressPolicy: isolated)", "-j", "DROP"), `br-fw.* is too much`},
		{"too late", host("sh", "-c", "iptables -I FORWARD -j CNI-FORWARD"), `comes too late`},
	}}},
	{kill: true, chain: chain{"sbr", []string{`"type":"bridge","bridge":"br-sbr","isGateway":true,` + hostLocal, `"type":"sbr","addSourceHints":true`}, []breaker{
		{"rule gone", in("ip", "rule", "del", "from", "IP4"), `from IP4 lookup 100: is missing|route default`},
		{"IPv6 rule gone", in("ip", "-6", "rule", "del", "from", "IP6"), `from IP6 lookup 101: is missing|route -6 default`},
		{"table flushed", in("ip", "route", "flush", "table", "100"), `route default via .*: is missing`},
		{"back in the main table", in("sh", "-c", "ip route add $(ip route show default table 100 | sed 's/proto [0-9]*//')"), `back in the main table`},
		{"hint gone", in("sh", "-c", "ip -6 route del $(ip -6 route show src IP6)"), `src IP6 metric 255`},
		renamed,
	}}},
	{chain: chain{"sbr-table", []string{`"type":"bridge","bridge":"br-sbr2","isGateway":true,"ipam":{"type":"host-local","subnet":"10.78.0.0/24","routes":[{"dst":"0.0.0.0/0","table":500}]}`,
		`"type":"sbr","table":500`}, []breaker{
		{"rule gone", in("ip", "rule", "del", "from", "IP4"), `from IP4 lookup 500: is missing`},
		{"table flushed", in("ip", "route", "flush", "table", "500"), `table 500: is missing`},
	}}},
	{kill: true, inChain: true, chain: chain{"bandwidth", []string{`"type":"bridge","isGateway":true,` + hostLocal, `"type":"bandwidth","ingressRate":100000000,"egressRate":20000000`}, []breaker{
		{"rate to the container changed", onDev("veth", "tc qdisc change dev $dev root handle fa1d: tbf rate 1gbit burst 625000 limit 937500"), `rate is 1000000000bit, want 100000000bit`},
		{"no limit to the container", onDev("veth", "tc qdisc del dev $dev root"), `the qdisc is missing`},
		{"burst from the container changed", onDev("ifb", "tc qdisc change dev $dev root handle fa1d: tbf rate 20mbit burst 1m limit 187500"), `burst is`},
		{"not sent to the ifb", onDev("veth", "tc filter del dev $dev ingress"), `no filter redirects incoming packets to ifb`},
		{"ifb down", onDev("ifb", "ip link set $dev down"), `state is down`},
		{"ifb gone", onDev("ifb", "ip link del $dev"), `ifb.*does not exist`},
	}}},
	{kill: true, inChain: true, chain: chain{"tuning", []string{`"type":"bridge","bridge":"br-tun","isGateway":true,` + hostLocal,
		`"type":"tuning","mac":"02:00:5E:00:00:0A","mtu":1400,"promisc":true,"allmulti":true,"txQLen":77,"sysctl":{"net.core.somaxconn":"501","net/ipv4/conf/IFNAME/arp_accept":"1","net.ipv4.ip_local_port_range":"2000 3000"}`}, []breaker{
		{"MAC changed", in("ip", "link", "set", "eth0", "address", "02:00:00:00:00:01"), `address is 02:00:00:00:00:01, want 02:00:5e:00:00:0a`},
		{"MTU changed", in("ip", "link", "set", "eth0", "mtu", "1300"), `mtu is 1300, want 1400`},
		{"not promiscuous", in("ip", "link", "set", "eth0", "promisc", "off"), `promisc is off`},
		{"not all multicast", in("ip", "link", "set", "eth0", "allmulticast", "off"), `allmulticast is off`},
		{"queue's length changed", in("ip", "link", "set", "eth0", "txqueuelen", "1"), `txqueuelen is 1, want 77`},
		{"sysctl changed", in("sysctl", "-qw", "net.core.somaxconn=7"), `net/core/somaxconn is "7", want "501"`},
		{"the link's sysctl changed", in("sysctl", "-qw", "net.ipv4.conf.eth0.arp_accept=0"), `net/ipv4/conf/eth0/arp_accept is "0"`},
		{"one of two fields changed", in("sysctl", "-qw", "net.ipv4.ip_local_port_range=2000 3001"), `want "2000 3000"`},
		renamed,
	}}},
	{kill: true, setup: uplink("macvlan"), chain: chain{"macvlan", []string{`"type":"macvlan","master":"ens3","mtu":1400,"bcqueuelen":0,` + hostLocal4}, []breaker{
		{"address gone", in("ip", "addr", "del", "IP4/24", "dev", "eth0"), `addr cont/eth0 IP4/24: is missing`},
		{"default route gone", in("ip", "route", "del", "default"), `route default`},
		{"link down", in("ip", "link", "set", "eth0", "down"), `state is down, want up`},
		{"MTU changed", in("ip", "link", "set", "eth0", "mtu", "1300"), `mtu is 1300, want 1400`},
		{"MAC changed", in("ip", "link", "set", "eth0", "address", "02:00:00:00:00:01"), `address is 02:00:00:00:00:01`},
		{"mode changed", in("ip", "link", "set", "eth0", "type", "macvlan", "mode", "private"), `mode is private, want bridge`},
		{"reservation gone", host("rm", "/var/lib/cni/networks/NET/IP4"), `IP4`},
		renamed,
	}}},
	{kill: true, setup: uplink("macvlan", "ip route add default dev ens3"), chain: chain{"macvlan-egress", []string{`"type":"macvlan","mode":"vepa","ipv6":"off"`}, []breaker{
		{"IPv6 opened", in("sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6=0"), `disable_ipv6 is 0`},
		{"MAC changed", in("ip", "link", "set", "eth0", "address", "02:00:00:00:00:01"), `address is 02:00:00:00:00:01, want`},
		renamed,
	}}},
	{setup: uplink("macvlan"), chain: chain{"macvlan-probe", []string{`"type":"macvlan","master":"ens3","conflictDetection":"probe",` + hostLocal4}, []breaker{
		{"address gone", in("ip", "addr", "del", "IP4/24", "dev", "eth0"), `addr cont/eth0 IP4/24: is missing`},
	}}},
	{kill: true, setup: uplink("macvtap"), chain: chain{"macvtap", []string{`"type":"macvtap","master":"ens3","mtu":1400`}, []breaker{
		{"MTU changed", in("ip", "link", "set", "eth0", "mtu", "1300"), `mtu is 1300, want 1400`},
		renamed,
	}}},
	{kill: true, setup: uplink("ipvlan"), chain: chain{"ipvlan", []string{`"type":"ipvlan","master":"ens3","mode":"l3","mtu":1400,` + hostLocal}, []breaker{
		{"address gone", in("ip", "addr", "del", "IP4/24", "dev", "eth0"), `addr cont/eth0 IP4/24: is missing`},
		{"IPv6 address gone", in("ip", "addr", "del", "IP6/64", "dev", "eth0"), `addr cont/eth0 IP6/64: is missing`},
		{"default route gone", in("ip", "route", "del", "default"), `route default`},
		{"link down", in("ip", "link", "set", "eth0", "down"), `state is down, want up`},
		{"MTU changed", in("ip", "link", "set", "eth0", "mtu", "1300"), `mtu is 1300, want 1400`},
		{"mode changed", in("ip", "link", "set", "eth0", "type", "ipvlan", "mode", "l2"), `mode is l2, want l3`},
		{"flag changed", in("ip", "link", "set", "eth0", "type", "ipvlan", "mode", "l3", "private"), `flag is private, want bridge`},
		renamed,
	}}},
	{kill: true, single: true, setup: uplink("vlan id 7"), chain: chain{"vlan", []string{`"type":"vlan","master":"ens3","vlanId":100,"mtu":1400,` + hostLocal4}, []breaker{
		{"address gone", in("ip", "addr", "del", "IP4/24", "dev", "eth0"), `addr cont/eth0 IP4/24: is missing`},
		{"default route gone", in("ip", "route", "del", "default"), `route default`},
		{"link down", in("ip", "link", "set", "eth0", "down"), `state is down, want up`},
		{"MTU changed", in("ip", "link", "set", "eth0", "mtu", "1300"), `mtu is 1300, want 1400`},
		{"MAC changed", in("ip", "link", "set", "eth0", "address", "02:00:00:00:00:01"), `address is 02:00:00:00:00:01`},
		{"reservation gone", host("rm", "/var/lib/cni/networks/NET/IP4"), `IP4`},
		renamed,
	}}},
	{kill: true, setup: func(t *testing.T) { nstest.Need(t, "dummy") }, chain: chain{"dummy", []string{`"type":"dummy","mtu":1400,` + hostLocal}, []breaker{
		{"address gone", in("ip", "addr", "del", "IP4/24", "dev", "eth0"), `addr cont/eth0 IP4/24: is missing`},
		{"IPv6 address gone", in("ip", "addr", "del", "IP6/64", "dev", "eth0"), `addr cont/eth0 IP6/64 nodad: is missing`},
		{"route gone", in("ip", "route", "del", "default"), `route default`},
		{"link down", in("ip", "link", "set", "eth0", "down"), `state is down, want up`},
		{"MTU changed", in("ip", "link", "set", "eth0", "mtu", "1300"), `mtu is 1300, want 1400`},
		{"MAC changed", in("ip", "link", "set", "eth0", "address", "02:00:00:00:00:01"), `address is 02:00:00:00:00:01`},
		{"gone", in("ip", "link", "del", "eth0"), `eth0: link does not exist`},
		renamed,
	}}},
	{kill: true, single: true, setup: spare, renew: card, chain: chain{"host-device", []string{`"type":"host-device","device":"ens9",` + hostLocal4}, []breaker{
		{"address gone", in("ip", "addr", "del", "IP4/24", "dev", "eth0"), `addr cont/eth0 IP4/24: is missing`},
		{"default route gone", in("ip", "route", "del", "default"), `route default`},
		{"link down", in("ip", "link", "set", "eth0", "down"), `state is down, want up`},
		{"MTU changed", in("ip", "link", "set", "eth0", "mtu", "1300"), `mtu is 1300, want 1450`},
		{"MAC changed", in("ip", "link", "set", "eth0", "address", "02:00:00:00:00:01"), `address is 02:00:00:00:00:01`},
		{"renamed", in("sh", "-ec", "ip link set eth0 down; ip link set eth0 name eth7 up"), `eth0: link does not exist`},
		{"reservation gone", host("rm", "/var/lib/cni/networks/NET/IP4"), `IP4`},
	}}},
	{single: true, chain: chain{"static-bridge", []string{`"type":"bridge","bridge":"br-static","isGateway":true,"ipMasq":true,` + static}, []breaker{
		{"address gone", in("ip", "addr", "del", "10.77.0.9/24", "dev", "eth0"), `addr cont/eth0 10.77.0.9/24: is missing`},
		{"IPv6 address gone", in("ip", "addr", "del", "fd00:77::9/64", "dev", "eth0"), `addr cont/eth0 fd00:77::9/64 nodad: is missing`},
		{"second address gone", in("ip", "addr", "del", "10.77.0.10/24", "dev", "eth0"), `addr cont/eth0 10.77.0.10/24: is missing`},
		{"another prefix", in("sh", "-ec", "ip addr del fd00:77::9/64 dev eth0; ip addr add fd00:77::9/80 dev eth0 nodad"), `fd00:77::9/64 nodad: prefix length is 80, want 64`},
		{"default route gone", in("ip", "route", "del", "default"), `route default`},
		{"IPv6 default route gone", in("ip", "-6", "route", "del", "default"), `route -6 default`},
		{"gateway's address gone", host("ip", "addr", "del", "fd00:77::1/64", "dev", "br-static"), `fd00:77::1/64`},
	}}},
	{single: true, chain: chain{"static-ptp", []string{`"type":"ptp",` + static}, []breaker{
		{"address gone", in("ip", "addr", "del", "10.77.0.9/24", "dev", "eth0"), `addr cont/eth0 10.77.0.9/24 noprefixroute: is missing`},
		{"IPv6 address gone", in("ip", "addr", "del", "fd00:77::9/64", "dev", "eth0"), `addr cont/eth0 fd00:77::9/64 nodad noprefixroute: is missing`},
		{"host's route gone", host("ip", "route", "del", "10.77.0.9"), `route 10.77.0.9/32 dev host/veth\w+`},
		{"host's IPv6 route gone", host("ip", "-6", "route", "del", "fd00:77::9"), `route fd00:77::9/128 dev host/veth\w+`},
	}}},
	{single: true, setup: uplink("macvlan"), chain: chain{"static-macvlan", []string{`"type":"macvlan","master":"ens3","ipam":{"type":"static","addresses":[{"address":"10.77.0.9/24","gateway":"10.77.0.1"}],"routes":[{"dst":"0.0.0.0/0"}]}`}, []breaker{
		{"address gone", in("ip", "addr", "del", "10.77.0.9/24", "dev", "eth0"), `addr cont/eth0 10.77.0.9/24: is missing`},
		{"default route gone", in("ip", "route", "del", "default"), `route default`},
		renamed,
	}}},
	{kill: true, inChain: true, single: true, setup: spare, renew: card, chain: chain{"host-device-mac", []string{`"type":"host-device","hwaddr":"02:00:00:00:09:09",` + hostLocal4, `"type":"tuning","mac":"02:00:00:00:00:0b","mtu":1300`}, []breaker{
		{"MTU changed", in("ip", "link", "set", "eth0", "mtu", "1200"), `mtu is 1200, want 1300`},
		{"alias gone", in("ip", "link", "set", "eth0", "alias", "x"), `alias is x, want ens9`},
	}}},
	{kill: true, inChain: true, setup: dhcpBridge, chain: chain{"dhcp-bridge", []string{`"type":"bridge","bridge":"br-dhcp","ipam":{"type":"dhcp"}`}, []breaker{
		{"address gone", in("ip", "addr", "del", "IP4/24", "dev", "eth0"), `addr cont/eth0 IP4/24: is missing`},
		{"default route gone", in("ip", "route", "del", "default"), `route default`},
		{"lease given back", giveBack, `there is no lease of NET/c1/eth0`},
		{"link gone, and its lease with it", in("ip", "link", "del", "eth0"), `eth0: link does not exist`},
	}}},
	{setup: dhcpUplink, chain: chain{"dhcp-macvlan", []string{`"type":"macvlan","master":"ens3","ipam":{"type":"dhcp"}`}, []breaker{
		{"address gone", in("ip", "addr", "del", "IP4/24", "dev", "eth0"), `addr cont/eth0 IP4/24: is missing`},
		{"lease given back", giveBack, `there is no lease of NET/c1/eth0`},
		renamed,
	}}},
	{kill: true, inChain: true, chain: chain{"route", []string{`"type":"bridge","bridge":"br-route","isGateway":true,` + hostLocal,
		`"type":"route","routes":[{"action":"del","dst":"default"},{"action":"replace","dst":"default","family":"inet6","via":"fd00:77::250"},{"dst":"default","via":"10.77.0.1","metric":50},
		{"dst":"203.0.113.0/24","nexthops":[{"via":"10.77.0.1"},{"via":"10.77.0.250","weight":2}]},{"dst":"2001:db8::/32","nexthops":[{"via":"fd00:77::1"},{"via":"fd00:77::250"}]},
		{"dst":"10.66.0.0/16","type":"blackhole"}],"rules":[{"priority":1000,"to":"198.51.100.0/24","type":"prohibit"},{"priority":1001,"from":"fd00:77::/64","table":500}],
		"neighbours":[{"dst":"10.77.0.250","lladdr":"02:00:00:00:02:50"}]`}, []breaker{
		{"route gone", in("ip", "route", "del", "default", "metric", "50"), `route default via 10.77.0.1 dev cont/eth0 metric 50: is missing`},
		{"a next hop gone", in("ip", "route", "replace", "203.0.113.0/24", "via", "10.77.0.1"), `203.0.113.0/24 .*via 10.77.0.250.*: (is missing|next hops is)`},
		{"weights changed", in("ip", "route", "replace", "203.0.113.0/24", "nexthop", "via", "10.77.0.1", "nexthop", "via", "10.77.0.250"), `routes? add 203.0.113.0/24 .*: next hops is .*weight 1, want via 10.77.0.1 weight 1, via 10.77.0.250 weight 2`},
		{"IPv6 next hop gone", in("ip", "-6", "route", "del", "2001:db8::/32", "via", "fd00:77::1"), `2001:db8::/32 .*fd00:77::1`},
		{"blackhole gone", in("ip", "route", "del", "blackhole", "10.66.0.0/16"), `route add blackhole 10.66.0.0/16 dev cont/eth0: is missing`},
		{"deleted route back", in("ip", "route", "add", "default", "via", "10.77.0.1"), `route del default dev cont/eth0: route default via 10.77.0.1 dev cont/eth0 table 254 is there`},
		{"rule gone", in("ip", "rule", "del", "priority", "1000"), `rule add priority 1000 to 198.51.100.0/24 prohibit in cont/: is missing`},
		{"IPv6 rule gone", in("ip", "-6", "rule", "del", "priority", "1001"), `lookup 500 in cont/: is missing`},
		{"neighbour gone", in("ip", "neigh", "del", "10.77.0.250", "dev", "eth0"), `neighbour add 10.77.0.250 lladdr 02:00:00:00:02:50 dev cont/eth0: is missing`},
		{"neighbour changed", in("ip", "neigh", "replace", "10.77.0.250", "lladdr", "02:00:00:00:02:51", "dev", "eth0", "nud", "permanent"), `lladdr is 02:00:00:00:02:51, want 02:00:00:00:02:50`},
		renamed,
	}}},
	{kill: true, inChain: true, setup: nameServer, chain: chain{"alias", []string{`"type":"bridge","bridge":"br-alias","isGateway":true,` + hostLocal,
		`"type":"alias","domainName":"dns.test","runtimeConfig":{"aliases":["db","primary-db"]},"dns":{"nameservers":["192.0.2.53"]}`}, []breaker{
		{"record gone", host("sh", "-c", "rm /run/cni/fairlead/memory/names.*"), `names c1 alias db,primary-db .*: its record is missing`},
		{"another name", host("sh", "-c", "sed -i s/primary-db/secondary/ /run/cni/fairlead/memory/names.*"), `aliases is \[db secondary\], want \[db primary-db\]`},
		{"address gone", in("ip", "addr", "del", "IP4/24", "dev", "eth0"), `addr cont/eth0 IP4/24: is missing`},
	}}},
	{kill: true, inChain: true, setup: allowCommands, chain: chain{"debug", []string{debugBridge, `"type":"debug","cniOutput":"/run/calls","addHooks":[["ip","route"]],"delHooks":[["ip","route"]]`}, []breaker{
		{"address gone", in("ip", "addr", "del", "IP4/24", "dev", "eth0"), `addr cont/eth0 IP4/24: is missing`},
	}}},
	{kill: true, setup: ovs, chain: chain{"ovs", []string{`"type":"ovs","bridge":"ovs0","datapath_type":"netdev","vlan":100,"vxlanID":42,"remotes":["192.0.2.7","192.0.2.8"],"egressRate":20000000,"ingressRate":100000000,` + hostLocal}, []breaker{
		{"address gone", in("ip", "addr", "del", "IP4/24", "dev", "eth0"), `addr cont/eth0 IP4/24: is missing`},
		{"host's end down", onDev("veth", "ip link set $dev down"), `host state is down`},
		{"port gone", onDev("veth", "ovs-vsctl del-port $dev"), `ovs port host/veth\w+ .*: is missing`},
		{"on another bridge", onDev("veth", "ovs-vsctl del-port $dev -- add-br ovs1 -- set bridge ovs1 datapath_type=netdev -- add-port ovs1 $dev; ovs-vsctl del-port $dev -- del-br ovs1"), `is missing`},
		{"another VLAN", onDev("veth", "ovs-vsctl set port $dev tag=200"), `tag is 200, want 100`},
		{"a trunk", onDev("veth", "ovs-vsctl set port $dev vlan_mode=trunk"), `vlan_mode is trunk, want access`},
		{"another limit", onDev("veth", "ovs-vsctl set interface $dev ingress_policing_rate=1000"), `ingress_policing_rate is 1000, want 20000`},
		{"no limit", onDev("veth", "ovs-vsctl clear port $dev qos"), `qos is none, want linux-htb 100000000`},
		{"not ours", onDev("veth", "ovs-vsctl remove port $dev external_ids fairlead; ovs-vsctl del-port $dev"), `is missing`},
		{"a tunnel gone", onDev("veth", "ovs-vsctl del-port $(ovs-vsctl --bare --columns=name find port external_ids:fairlead-remote=192.0.2.8)"), `tunnel to 192.0.2.8 is missing`},
		{"a tunnel elsewhere", onDev("veth", "ovs-vsctl set interface $(ovs-vsctl --bare --columns=name find port external_ids:fairlead-remote=192.0.2.7) options:remote_ip=192.0.2.9"), `remote_ip is 192.0.2.9, want 192.0.2.7`},
		{"bridge gone", host("ovs-vsctl", "del-br", "ovs0"), `bridge: "ovs0": no such bridge in Open vSwitch; there is none`},
		renamed,
	}}},
	{kill: true, inChain: true, setup: func(t *testing.T) { nstest.Need(t, "vrf", "table", "7") }, chain: chain{"vrf", []string{`"type":"bridge","bridge":"br-vrf","isGateway":true,` + hostLocal, `"type":"vrf","vrfname":"blue"`}, []breaker{
		{"no member", in("ip", "link", "set", "eth0", "nomaster"), `route default|master is none, want blue`},
		{"VRF down", in("ip", "link", "set", "blue", "down"), `state of blue is down`},
		{"another VRF", in("sh", "-c", "ip link add red up type vrf table 9; ip link set eth0 master red"), `route default|master is red`},
		{"default route gone", in("ip", "route", "del", "default", "vrf", "blue"), `route default via .*: is missing`},
		{"IPv6 default route gone", in("ip", "-6", "route", "del", "default", "vrf", "blue"), `route -6 default via .*: is missing`},
		{"IPv6 address gone", in("ip", "addr", "del", "IP6/64", "dev", "eth0"), `addr cont/eth0 IP6/64 nodad: is missing`},
		renamed,
	}}},
})

// TestLife is the life of an attachment of every plugin.
//
// clause: P6 P9 P10 P11 P12 P13 P14 P15 P17 P18 P21 P22
func TestLife(t *testing.T) {
	for _, c := range chains {
		nstest.Apart(t, c.name, func(t *testing.T) {
			r := c.runner(t)
			withoutBridges(t)
			fresh := func(id string) *attachment { return &attachment{id: id, netns: nstest.NewNS(t)} }
			a := fresh("c1")
			r.must("status", r.status())
			r.must("add", r.add(a))
			r.must("check right after add", r.check(a))
			if err := r.add(&attachment{id: a.id, netns: a.netns}); err == nil && c.name != "loopback" {
				t.Error("a second ADD succeeded")
			}
			r.must("check after a refused add", r.check(a))
			r.must("del", r.del(a))
			r.must("del again", r.del(a))
			r.must("del without a result", r.del(&attachment{id: a.id, netns: a.netns}))
			clean := state(t)

			a = fresh("c1")
			r.must("add", r.add(a))
			for _, b := range c.breaks {
				b.run(t, a)
				say := a.text(b.say)
				if err := r.check(a); err == nil || !regexp.MustCompile(say).MatchString(err.Error()) {
					t.Errorf("%s: check says %v, want %q", b.what, err, say)
				} else {
					t.Logf("%s: %v", b.what, err)
				}
				r.must(b.what+": del", r.del(a))
				if out := nstest.RunIn(t, a.netns, "ip", "-br", "link"); strings.Contains(out, "net9") {
					t.Errorf("%s: del left\n%s", b.what, out)
				}
				// What was shared is made again by the next ADD, and all is whole for the next break.
				r.must(b.what+": add again", r.add(a))
				r.must(b.what+": check again", r.check(a))
			}
			r.must("del after the breaks", r.del(a))
			same(t, "the breaks", clean)

			a = fresh("c2")
			r.must("add", r.add(a))
			if err := nstest.RemoveNS(a.netns); err != nil {
				t.Fatal(err)
			}
			r.must("del with the namespace gone and without a result", r.del(&attachment{id: a.id, netns: a.netns}))
			if c.renew != nil {
				c.renew(t)
			}
			same(t, "del with the namespace gone", clean)

			a = fresh("c3")
			r.must("add", r.add(a))
			r.must("del without a namespace", r.del(&attachment{id: a.id}))
			same(t, "del without a namespace", clean)
			if err := nstest.RemoveNS(a.netns); err != nil { // a VLAN's link is in it, and there can be no other
				t.Fatal(err)
			}

			b := fresh("c4")
			c5 := fresh("c5")
			r.must("add", r.add(b))
			if !c.single {
				r.must("add", r.add(c5))
			}
			r.must("gc", r.gc("c4"))
			r.must("check of what gc had to keep", r.check(b))
			r.must("gc of all", r.gc())
			same(t, "gc", clean)
			r.must("del after gc", r.del(b))
			if _, err := r.run(0, "GC", &attachment{}, ""); err == nil {
				t.Error("GC without a list succeeded")
			}
		})
	}
}
