package packetfilter

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// TestMain runs each test in a host of its own.
func TestMain(m *testing.M) { nstest.Main(m) }

// A grammar makes rules and packets that are likely to meet.
type grammar struct {
	*rand.Rand
	open bool // a rule that nobody can decide was made
}

func (g *grammar) one(of ...string) string { return of[g.IntN(len(of))] }

func (g *grammar) maybe(s string) string { return g.one("", s) }

// packets are some of each kind that the grammar's rules ask for.
func (g *grammar) packets(n int) (all []Packet) {
	flows := map[Packet]bool{}
	for len(all) < n {
		p := Packet{In: g.one("in0", "br-in"), Mark: probeMarks()[g.IntN(4)],
			Src: netip.MustParseAddr(g.one("10.1.0.5", "10.1.7.8", "10.5.0.5",
				"192.0.2.77")), Dst: netip.MustParseAddr(g.one(probeDsts()...))}
		p.Proto = []byte{kernel.TCP, kernel.UDP, unix.IPPROTO_ESP}[g.IntN(3)]
		if g.IntN(4) == 0 {
			p.Src, p.Dst = netip.MustParseAddr(g.one("fd01::5", "fd01:0:7::8", "fd05::1")), netip.MustParseAddr(g.one("fd02::1",
				"fd02:0:3::4", "fd09::9"))
			p.Mark = 0
		}
		if p.Proto != unix.IPPROTO_ESP {
			p.SrcPort, p.DstPort = []uint16{1000, 33000, 60000}[g.IntN(3)], []uint16{22, 53, 80, 443, 8080, 30080}[g.IntN(6)]
			switch {
			case p.Src.Is4() && g.IntN(6) == 0:
				p.DNAT, p.SrcPort = true, 41000
			case g.IntN(12) == 0:
				p.Reply, p.SrcPort = true, 42000
			}
		}
		flow := Packet{Src: p.Src, Dst: p.Dst, Proto: p.Proto, SrcPort: p.SrcPort, DstPort: p.DstPort}
		if !flows[flow] {
			flows[flow] = true
			all = append(all, p.route())
		}
	}
	return all
}

func (g *grammar) addr() string {
	return g.one("10.1.0.5", "10.1.7.8", "10.2.3.4", "203.0.113.5", "10.9.0.9")
}

func (g *grammar) prefix() string {
	return g.one("10.1.0.0/16", "10.2.0.0/22", "10.0.0.0/8", "10.4.0.0/15", "192.0.2.64/27", "0.0.0.0/1")
}

func (g *grammar) not() string { return g.one("", "", "!= ") }

// nftMatch is a condition in nft(8)'s words.
func (g *grammar) nftMatch() string {
	side := g.one("saddr", "daddr")
	port := g.one("tcp dport", "udp dport", "th dport", "th sport")
	switch g.IntN(24) {
	case 0:
		return "ip " + side + " " + g.not() + g.addr()
	case 1, 2:
		return "ip " + side + " " + g.not() + g.prefix()
	case 3:
		return "ip6 " + side + " " + g.not() + g.one("fd01::5", "fd00::/8", "fd02::/32", "fd09::/16")
	case 4:
		return g.one("iifname", "oifname") + " " + g.not() + g.one("in0", `"br-*"`, "eth9", "out0", `{ in0, eth9 }`, `{ "br-*", "eth*" }`)
	case 5:
		return g.one("iif in0", "oif eth9", "iif != br-in", "oif { out0, in0 }")
	case 6:
		return port + " " + g.not() + g.one("80", "22-443", "{ 22, 80, 1000 }", "{ 53-79, 400-9000 }", "30000-32767")
	case 7:
		return port + " " + g.one("< 80", ">= 443", "> 1000", "<= 8080")
	case 8:
		return "meta l4proto " + g.one("tcp", "udp", "{ tcp, udp }", "esp", "!= tcp")
	case 9:
		return "ip protocol " + g.one("tcp", "udp", "!= udp")
	case 10:
		return "ct state " + g.one("new", "established,related", "invalid", "!= new", "{ new, untracked }")
	case 11:
		return "ct status " + g.one("dnat", "seen-reply", "confirmed")
	case 12:
		return "meta mark " + g.one("1", "0x4000", "and 0x4000 == 0x4000", "and 1 == 0", "!= 0", "{ 1, 0x4001 }", "1-0x4000")
	case 13:
		return "ip saddr @addrs"
	case 14:
		return "ip daddr " + g.not() + "@nets"
	case 15:
		return "ip daddr . meta l4proto . th dport @triples"
	case 16:
		return "ip saddr . ip daddr " + g.not() + "@pairs"
	case 17:
		return "ip daddr . th dport @ranges"
	case 18:
		return "fib " + g.one("daddr", "saddr") + " type " + g.one("local", "unicast", "!= local", "{ local, broadcast }")
	case 19:
		return "meta nfproto " + g.one("ipv4", "ipv6")
	case 20:
		return g.one("tcp flags syn / fin,syn,rst,ack", "ip frag-off & 0x1fff != 0", "meta pkttype host", "meta protocol ip",
			"ip6 nexthdr tcp")
	case 21:
		return "iifname . oifname " + g.one("@links", "{ in0 . out0, br-in . eth9 }")
	case 22:
		return "iifname . ip saddr . th dport @mixed"
	}
	return ""
}

func (g *grammar) nftVerdict(chains []string) string {
	to := ""
	if len(chains) > 0 {
		to = g.one(chains...)
	}
	switch n := g.IntN(13); {
	case n < 4:
		return "accept"
	case n < 6:
		return "drop"
	case n == 6:
		return "reject"
	case n == 7:
		return "return"
	case n == 8:
		return "meta mark set " + g.one("1", "0", "meta mark or 0x4000", "meta mark and 0x4000", "ct mark")
	case to == "":
		return "counter"
	case n == 9:
		return "goto " + to
	case n == 10:
		return g.one("ip daddr vmap @where", "meta l4proto vmap { tcp : jump "+to+", udp : drop, esp : return }",
			"th dport vmap { 22-80 : accept, 443 : goto "+to+", * : continue }", "iifname vmap { in0 : jump "+to+
				", br-in : accept }")
	}
	return "jump " + to
}

func (g *grammar) nftRule(chains []string) string {
	v := g.nftVerdict(chains)
	m := g.nftMatch() + " " + g.maybe(g.nftMatch())
	if g.IntN(40) == 0 {
		g.open = true
		m += g.one(" limit rate 1/day burst 5 packets", " meta random < 0.5", " ip ttl 64", " numgen inc mod 2 0")
	}
	if strings.Contains(v, "ct mark") {
		g.open = true // conntrack's mark is not known
	}
	return m + g.maybe(" counter") + g.maybe(" log") + " " + v
}

func (g *grammar) nftTable(family, name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s %s {\n", family, name)
	fmt.Fprintf(&b, "set addrs { type ipv4_addr; elements = { %s, 198.51.100.1 } }\n", g.addr())
	fmt.Fprintf(&b, "set nets { type ipv4_addr; flags interval; auto-merge; elements = { %s, 172.16.0.0/12, 10.9.0.0-10.9.0.9, %s } }\n", g.prefix(), g.prefix())
	fmt.Fprintf(&b, "set triples { type ipv4_addr . inet_proto . inet_service; elements = { %s . tcp . 80, %s . udp . 53, 10.2.0.1 . tcp . 443 } }\n", g.addr(), g.addr())
	fmt.Fprintf(&b, "set pairs { type ipv4_addr . ipv4_addr; flags interval; elements = { 10.1.0.0/16 . %s, 10.5.0.1-10.5.0.9 . 10.0.0.0/8 } }\n", g.prefix())
	fmt.Fprintf(&b, "set ranges { type ipv4_addr . inet_service; flags interval; elements = { %s . 1-79, 10.2.0.0/16 . 80-8080 } }\n", g.addr())
	fmt.Fprintf(&b, "set links { type ifname . ifname; elements = { in0 . eth9, br-in . out0 } }\n")
	fmt.Fprintf(&b, "set mixed { type ifname . ipv4_addr . inet_service; elements = { in0 . %s . 80, br-in . %s . 443, in0 . 10.1.7.8 . 22 } }\n", g.addr(), g.addr())
	var chains []string
	for _, c := range []string{"c3", "c2", "c1"} {
		if c == "c1" {
			fmt.Fprintf(&b, "map where { type ipv4_addr : verdict; elements = { %s : drop, 10.2.0.1 : jump c2, 192.0.2.1 : accept } }\n", g.one("10.2.3.4", "10.9.0.9"))
		}
		fmt.Fprintf(&b, "chain %s {\n", c)
		for range 1 + g.IntN(5) {
			fmt.Fprintln(&b, g.nftRule(chains))
		}
		b.WriteString("}\n")
		chains = append(chains, c)
	}
	for i := range 1 + g.IntN(2) {
		fmt.Fprintf(&b, "chain f%d { type filter hook forward priority %d; policy %s;\n", i, g.IntN(5),
			g.one("accept", "drop"))
		for range 2 + g.IntN(7) {
			fmt.Fprintln(&b, g.nftRule(chains))
		}
		b.WriteString("}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// loadSane loads what nft(8) takes of the rules: it refuses lines that contradict themselves.
func (f *forwarder) loadSane(rules string) (string, error) {
	lines, before := strings.Split(rules, "\n"), strings.Count(probe(), "\n")
	for {
		err := f.load(probe()+strings.Join(lines, "\n"), "nft", "-f", "-")
		if err == nil {
			return strings.Join(lines, "\n"), nil
		}
		removed := false
		for _, said := range strings.Split(err.Error(), "\n") {
			_, said, _ = strings.Cut(said, "/dev/stdin:")
			number, _, _ := strings.Cut(said, ":")
			if n, nerr := strconv.Atoi(number); nerr == nil && n > before && n-before <= len(lines) &&
				!strings.HasSuffix(lines[n-before-1], "{") {
				removed = removed || lines[n-before-1] != ""
				lines[n-before-1] = ""
			}
		}
		if !removed {
			return "", err
		}
	}
}

// What is said of a packet is what the kernel does with it, whatever rules of nf_tables there are.
func TestVerdictOfNFT(t *testing.T) {
	f := newForwarder(t)
	accepted, dropped, rounds := 0, 0, 25
	for seed := range uint64(rounds) {
		g := &grammar{Rand: rand.New(rand.NewPCG(seed, 1))}
		rules := g.nftTable(g.one("inet", "ip"), "one")
		if g.IntN(3) == 0 {
			rules += g.nftTable("inet", "two")
		}
		var err error
		if rules, err = f.loadSane(rules); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, rules)
		}
		a, d := f.compare(fmt.Sprintf("seed %d\n%s", seed, rules), g.open, g.packets(40))
		accepted, dropped = accepted+a, dropped+d
		if t.Failed() {
			return
		}
	}
	if accepted < 5*rounds || dropped < 5*rounds {
		t.Errorf("%d accepted and %d dropped: that tests one of them only", accepted, dropped)
	}
}
