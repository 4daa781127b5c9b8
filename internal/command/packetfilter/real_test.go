package packetfilter

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel"
)

// What programs that people run beside us put in the way is named so that they know where to look.
func TestVerdictWords(t *testing.T) {
	firewalld, err := os.ReadFile("testdata/firewalld.nft") // what firewalld 1.3 makes with no configuration
	if err != nil {
		t.Fatal(err)
	}
	const docker = `*filter
:FORWARD DROP [0:0]
:DOCKER -
:DOCKER-ISOLATION-STAGE-1 -
:DOCKER-ISOLATION-STAGE-2 -
:DOCKER-USER -
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o br-in -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o br-in -j DOCKER
-A FORWARD -i br-in ! -o br-in -j ACCEPT
-A FORWARD -i br-in -o br-in -j ACCEPT
-A DOCKER -d 172.17.0.2/32 ! -i br-in -o br-in -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i br-in ! -o br-in -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o out0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
`
	const ufw = `*filter
:FORWARD DROP [0:0]
:ufw-after-logging-forward -
:ufw-before-forward -
:ufw-reject-forward -
:ufw-user-forward -
-A FORWARD -j ufw-before-forward
-A FORWARD -j ufw-after-logging-forward
-A FORWARD -j ufw-reject-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -p icmp -m icmp --icmp-type 3 -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
-A ufw-after-logging-forward -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "
COMMIT
`
	const kubeIPTables = `*filter
:FORWARD ACCEPT [0:0]
:KUBE-EXTERNAL-SERVICES -
:KUBE-FORWARD -
:KUBE-SERVICES -
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-SERVICES -d 10.2.3.4/32 -p tcp -m comment --comment "default/web has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
COMMIT
`
	const kubeNFT = `table ip kube-proxy {
	set cluster-ips { type ipv4_addr; elements = { 10.2.0.1 } }
	map no-endpoint-services {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 10.2.3.4 . tcp . 80 comment "default/web" : goto reject-chain }
	}
	chain reject-chain { reject; }
	chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain cluster-ips-check {
		ip daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"
		ip daddr 10.9.0.0/16 drop comment "Drop traffic to unallocated ClusterIPs"
	}
	chain filter-forward {
		type filter hook forward priority -110; policy accept
		ct state new jump service-endpoints-check
		ct state new jump cluster-ips-check
	}
}
`
	const libvirt = `*filter
:FORWARD ACCEPT [0:0]
:LIBVIRT_FWI -
:LIBVIRT_FWO -
:LIBVIRT_FWX -
-A FORWARD -j LIBVIRT_FWX
-A FORWARD -j LIBVIRT_FWI
-A FORWARD -j LIBVIRT_FWO
-A LIBVIRT_FWI -d 10.2.0.0/16 -o out0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A LIBVIRT_FWI -o out0 -j REJECT --reject-with icmp-port-unreachable
-A LIBVIRT_FWO -s 10.2.0.0/16 -i out0 -j ACCEPT
-A LIBVIRT_FWX -i out0 -o out0 -j ACCEPT
COMMIT
`
	nft, iptables, legacy := []string{"nft", "-f",
		"-"}, []string{"iptables-nft-restore"}, []string{"iptables-legacy-restore"}
	out := Packet{In: "in0", Src: netip.MustParseAddr("10.1.0.5"), Dst: netip.MustParseAddr("203.0.113.5"),
		Proto: kernel.TCP, SrcPort: 1000, DstPort: 80}.route()
	to := func(dst string, change ...func(*Packet)) Packet {
		p := out
		p.Dst = netip.MustParseAddr(dst)
		for _, c := range change {
			c(&p)
		}
		return p.route()
	}
	bridge := func(p *Packet) { p.In = "br-in" }
	reply := func(p *Packet) { p.Reply, p.SrcPort = true, 42000 }
	f := newForwarder(t)
	for _, tc := range []struct {
		name   string
		rules  string
		load   []string
		packet Packet
		want   string
	}{
		{"docker", docker, iptables, out,
			"dropped by table ip filter chain FORWARD (iptables-nft of Docker, policy drop; no rule accepts tcp 10.1.0.5:1000 -> 203.0.113.5:80)"},
		{"docker, legacy", docker, legacy, out,
			"dropped by table ip filter chain FORWARD (iptables-legacy of Docker, policy drop; no rule accepts tcp 10.1.0.5:1000 -> 203.0.113.5:80)"},
		{"docker's own", docker, iptables, to("203.0.113.5", bridge), "accepted (tcp 10.1.0.5:1000 -> 203.0.113.5:80)"},
		{"docker's isolation", docker, iptables, to("10.2.0.1", bridge), `dropped by table ip filter chain DOCKER-ISOLATION-STAGE-2, called from FORWARD (Docker, rule: oifname "out0" drop, handle N)`},
		{"docker's isolation, legacy", docker, legacy, to("10.2.0.1", bridge), `dropped by table ip filter chain DOCKER-ISOLATION-STAGE-2, called from FORWARD (Docker, rule: oifname "out0" drop, line 1)`},
		{"ufw", ufw, iptables, out,
			"dropped by table ip filter chain FORWARD (iptables-nft of ufw, policy drop; no rule accepts tcp 10.1.0.5:1000 -> 203.0.113.5:80)"},
		{"ufw, reply", ufw, iptables, to("203.0.113.5", reply), "accepted (tcp 10.1.0.5:42000 -> 203.0.113.5:80)"},
		{"firewalld", string(firewalld), nft, out, `dropped by table inet firewalld chain filter_FWD_public, called from filter_FORWARD (firewalld, rule: reject, handle N)`},
		{"kube-proxy", kubeIPTables, iptables, out, "accepted (tcp 10.1.0.5:1000 -> 203.0.113.5:80)"},
		{"kube-proxy, no endpoints", kubeIPTables, iptables, to("10.2.3.4"), `dropped by table ip filter chain KUBE-SERVICES, called from FORWARD (kube-proxy, rule: meta l4proto tcp ip daddr 10.2.3.4 comment "default/web has no endpoints" th dport 80 -j REJECT, handle N)`},
		{"kube-proxy by nft, no endpoints", kubeNFT, nft, to("10.2.3.4"), `dropped by table ip kube-proxy chain reject-chain, called from filter-forward (kube-proxy, rule: reject, handle N)`},
		{"kube-proxy by nft, no such service", kubeNFT, nft, to("10.9.0.9"), `dropped by table ip kube-proxy chain cluster-ips-check, called from filter-forward (kube-proxy, rule: ip daddr 10.9.0.0/16 drop comment "Drop traffic to unallocated ClusterIPs", handle N)`},
		{"libvirt", libvirt, iptables, to("10.2.0.1"), `dropped by table ip filter chain LIBVIRT_FWI, called from FORWARD (libvirt, rule: oifname "out0" -j REJECT, handle N)`},
		{"nftables.conf", "table inet filter { chain forward { type filter hook forward priority filter; policy drop; }; }",
			nft, out,
			"dropped by table inet filter chain forward (policy drop; no rule accepts tcp 10.1.0.5:1000 -> 203.0.113.5:80)"},
		{"words", `table inet t { chain f { type filter hook forward priority 0; ip saddr 10.1.0.0/16 ct state new,established meta mark and 0x10 != 0x10 tcp dport 80-90 drop comment "why"; }; }`, nft, out,
			`dropped by table inet t chain f (rule: ip saddr 10.1.0.0/16 ct state established,new meta mark != 0x10/0x10 tcp dport >= 80 <= 90 drop comment "why", handle N)`},
		{"words, legacy", "*filter\n:FORWARD ACCEPT\n-A FORWARD -m comment --comment x -j RETURN -d 10.9.9.9\n-A FORWARD -s 10.1.0.0/16 ! -d 10.2.0.1 -i in+ ! -o out0 -p tcp -j REJECT\nCOMMIT\n", legacy, out,
			`dropped by table ip filter chain FORWARD (iptables-legacy, rule: ip saddr 10.1.0.0/16 ip daddr != 10.2.0.1 iifname "in*" oifname != "out0" meta l4proto tcp -j REJECT, line 2)`},
		{"a limit", "*filter\n:FORWARD DROP\n-A FORWARD -p tcp -m limit --limit 1/sec -j ACCEPT\nCOMMIT\n", iptables, out,
			"undecided: table ip filter chain FORWARD (iptables-nft, rule: meta l4proto tcp limit accept, handle N, which depends on a limit; else policy drop)"},
		{"a match that is not known", "*filter\n:FORWARD ACCEPT\n-A FORWARD -m string --algo bm --string x -j DROP\nCOMMIT\n",
			legacy, out,
			"undecided: table ip filter chain FORWARD (iptables-legacy, rule: -m string drop, line 1, which depends on -m string)"},
		{"a packet of which little is known", docker, iptables, Packet{In: "in0", Src: out.Src},
			`undecided: table ip filter chain FORWARD (iptables-nft, rule: oifname "br-in" jump DOCKER, handle N, which depends on oifname; else policy drop)`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := f.load(probe(), nft...); err != nil {
				t.Fatal(err)
			}
			if err := f.load(tc.rules, tc.load...); err != nil {
				t.Fatal(err)
			}
			defer f.load("*filter\n:FORWARD ACCEPT\nCOMMIT\n", legacy...)
			if strings.HasPrefix(tc.want, "undecided") {
			} else if came := f.forward([]Packet{tc.packet})[0]; came != strings.HasPrefix(tc.want, "accepted") {
				t.Errorf("the kernel lets it through: %v", came)
			}
			v, err := Forwarded(f.ns, tc.packet)
			if got := regexp.MustCompile("handle [0-9]+").ReplaceAllString(v.String(), "handle N"); err != nil ||
				got != tc.want {
				t.Errorf("%v, %v\nwant %s", v, err, tc.want)
			}
		})
	}
}

// BenchmarkVerdict asks about one packet beside 5,000 Services of kube-proxy, of which a packet passes a chain of as
// many rules; and where the rules are in other tables.
func BenchmarkVerdict(b *testing.B) {
	const services = 5000
	for _, bc := range []struct {
		name    string
		rules   func(w *strings.Builder)
		program string
	}{
		{"nothing", func(w *strings.Builder) {}, "iptables-nft-restore"},
		{"5000 rules", func(w *strings.Builder) { inFilter(w, services) }, "iptables-nft-restore"},
		{"5000 rules, legacy", func(w *strings.Builder) { inFilter(w, services) }, "iptables-legacy-restore"},
		{"10000 chains of nat", func(w *strings.Builder) { inNAT(w, services) }, "iptables-nft-restore"},
	} {
		b.Run(bc.name, func(b *testing.B) {
			f := newForwarder(b)
			var w strings.Builder
			bc.rules(&w)
			if err := f.load(w.String(), bc.program); err != nil {
				b.Fatal(err)
			}
			p := Packet{In: "in0", Src: netip.MustParseAddr("10.1.0.5"), Dst: netip.MustParseAddr("203.0.113.5"),
				Proto: kernel.TCP, SrcPort: 1000, DstPort: 80}.route()
			for b.Loop() {
				if v, err := Forwarded(f.ns, p); err != nil || v.Outcome != Accepted {
					b.Fatalf("%v, %v", v, err)
				}
			}
		})
	}
}

func inFilter(w *strings.Builder, services int) {
	w.WriteString("*filter\n:FORWARD ACCEPT\n:KUBE-SERVICES -\n-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES\n")
	for i := range services {
		fmt.Fprintf(w, "-A KUBE-SERVICES -d 10.96.%d.%d/32 -p tcp -m comment --comment \"default/web-%d has no endpoints\" -m tcp --dport 80 -j REJECT\n", i/256, i%256, i)
	}
	w.WriteString("COMMIT\n")
}

func inNAT(w *strings.Builder, services int) {
	w.WriteString("*nat\n:KUBE-SERVICES -\n")
	for i := range services {
		fmt.Fprintf(w, ":KUBE-SVC-%d -\n:KUBE-SEP-%d -\n", i, i)
	}
	for i := range services {
		fmt.Fprintf(w, "-A KUBE-SERVICES -d 10.96.%d.%d/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-%d\n-A KUBE-SVC-%d -j KUBE-SEP-%d\n", i/256, i%256, i, i, i)
	}
	w.WriteString("COMMIT\n")
}
