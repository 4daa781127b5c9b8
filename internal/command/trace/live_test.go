package trace

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// A field is a host with containers: a (10.1.0.2) and b (10.1.0.3) on the bridge br0, and far (10.2.0.2) behind a veth
// pair. All answer on UDP and TCP port 7000 and 7001, the host too.
type field struct {
	*Tracer
	byName map[string]*Container
}

func newField(t *testing.T) *field {
	f := &field{Tracer: &Tracer{}, byName: map[string]*Container{"host": nil}}
	host, err := kernel.Open("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(host.Close)
	f.Host = host
	nstest.Run(t, "sh", "-ec", `ip link set lo up; echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad; ip link add br0 address 02:00:00:00:00:11 type bridge; ip addr add 10.1.0.1/24 dev br0; ip -6 addr add fd01::1/64 dev br0 nodad; ip link set br0 up
		for l in all default br0; do echo 1 > /proc/sys/net/ipv4/conf/$l/forwarding; echo 1 > /proc/sys/net/ipv6/conf/$l/forwarding; done`)
	for i, name := range []string{"a", "b", "far"} {
		path := nstest.NewNS(t)
		f.Containers = append(f.Containers, Container{Name: name, Netns: path})
		c := f.Containers[i]
		f.byName[name] = &c
		nstest.Run(t, "ip", "link", "add", "v"+name, "type", "veth", "peer", "name", "eth0", "address", fmt.Sprintf("02:00:00:00:00:0%d", i), "netns", path)
		net := 1
		if name == "far" {
			net = 2
			nstest.Run(t, "sh", "-ec", "ip link set vfar address 02:00:00:00:00:12; ip addr add 10.2.0.1/24 dev vfar; ip -6 addr add fd02::1/64 dev vfar nodad; ip link set vfar up")
		} else {
			nstest.Run(t, "ip", "link", "set", "v"+name, "master", "br0", "up")
		}
		nstest.RunIn(t, path, "sh", "-ec", fmt.Sprintf(`ip link set lo up; echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad; ip addr add 10.%d.0.%d/24 dev eth0; ip -6 addr add fd0%d::%d/64 dev eth0 nodad
			ip link set eth0 up; ip route add default via 10.%d.0.1; ip -6 route add default via fd0%d::1`, net, 2+i%2, net, 2+i%2, net, net))
		ns, err := kernel.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		if err := ns.Do(func() error { return listen(t) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := listen(t); err != nil {
		t.Fatal(err)
	}
	// Rules that drop ICMPv6 are not to drop who is asked for whose MAC address, too.
	nstest.Run(t, "sh", "-ec", `for i in 0 1; do ip neigh replace fd01::$((2+i)) lladdr 02:00:00:00:00:0$i dev br0; done; ip neigh replace fd02::2 lladdr 02:00:00:00:00:02 dev vfar`)
	for _, name := range []string{"a", "b"} {
		nstest.RunIn(t, f.byName[name].Netns, "sh", "-ec", `for i in 0 1; do ip neigh replace fd01::$((2+i)) lladdr 02:00:00:00:00:0$i dev eth0; done; ip neigh replace fd01::1 lladdr 02:00:00:00:00:11 dev eth0`)
	}
	nstest.RunIn(t, f.byName["far"].Netns, "ip", "neigh", "replace", "fd02::1", "lladdr", "02:00:00:00:00:12", "dev", "eth0")
	return f
}

// listen answers on all addresses of the thread's namespace.
func listen(t *testing.T) error {
	for _, port := range []string{":7000", ":7001"} {
		tcp, err := net.Listen("tcp", port)
		if err != nil {
			return err
		}
		udp, err := net.ListenPacket("udp", port)
		if err != nil {
			return err
		}
		t.Cleanup(func() { tcp.Close(); udp.Close() })
		go func() {
			for {
				conn, err := tcp.Accept()
				if err != nil {
					return
				}
				conn.Close()
			}
		}()
		go func() {
			buf := make([]byte, 1500)
			for {
				_, from, err := udp.ReadFrom(buf)
				if err != nil {
					return
				}
				udp.WriteTo([]byte("yes"), from)
			}
		}()
	}
	return nil
}

// A ruleMaker makes rules that its questions are likely to meet.
type ruleMaker struct{ *rand.Rand }

func (m ruleMaker) one(of ...string) string { return of[m.IntN(len(of))] }

func (m ruleMaker) condition(hook string) string {
	in := m.one("br0", "vfar", "lo", "{ br0, vfar }")
	switch m.IntN(16) {
	case 0, 1:
		if hook == "output" || hook == "postrouting" {
			return "oifname " + in
		}
		return "iifname " + in
	case 2:
		return "ip saddr " + m.one("10.1.0.2", "10.1.0.0/24", "!= 10.2.0.0/16", "{ 10.1.0.1, 10.1.0.3 }")
	case 3, 4:
		return "ip daddr " + m.one("10.2.0.2", "10.1.0.0/24", "!= 10.2.0.2", "10.9.9.9", "@some")
	case 5:
		return "ip6 daddr " + m.one("fd02::/16", "fd01::3")
	case 6, 7:
		return "th dport " + m.one("7000", "7001", "7000-7100", "{ 22, 7001 }", "> 7000", "!= 7000")
	case 8:
		return "meta l4proto " + m.one("tcp", "udp", "{ icmp, udp }", "ipv6-icmp")
	case 9:
		return "ct state " + m.one("new", "established", "invalid", "{ new, untracked }")
	case 10:
		return "ct status " + m.one("dnat", "confirmed")
	case 11:
		return "meta mark " + m.one("0", "1", "!= 1", "and 2 == 2")
	case 12:
		return "fib daddr type " + m.one("local", "unicast", "!= local")
	case 13:
		return "ct mark " + m.one("0", "5")
	case 14:
		return m.one("meta nfproto ipv4", "meta nfproto ipv6", "meta skuid 0", "ct direction original", "ct direction reply")
	}
	return "ip daddr . th dport " + m.one("{ 10.2.0.2 . 7000, 10.1.0.3 . 7001 }", "!= { 10.2.0.2 . 7001 }")
}

func (m ruleMaker) verdict(chains ...string) string {
	if len(chains) > 0 && m.IntN(4) == 0 {
		return m.one("jump ", "goto ") + m.one(chains...)
	}
	return m.one("accept", "accept", "drop", "reject", "return", "counter", "meta mark set 1", "meta mark set mark or 2", "ct mark set 5",
		"notrack", "ip dscp set cs1")
}

func (m ruleMaker) table(family, name string) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("table %s %s {\nset some { type ipv4_addr; flags interval; elements = { 10.2.0.0/25, %s } }", family, name,
		m.one("10.1.0.3", "10.9.9.9"))
	for i, to := range [][]string{nil, {"c0"}, {"c0", "c1"}} {
		line("chain c%d {", i)
		for range 1 + m.IntN(3) {
			v := m.verdict(to...)
			if v == "reject" { // only from some hooks
				v = "drop"
			}
			line("%s %s", m.condition("forward"), v)
		}
		line("}")
	}
	for _, hook := range []string{"prerouting", "input", "forward", "output", "postrouting"} {
		if m.IntN(3) == 0 {
			continue
		}
		line("chain %s { type filter hook %s priority %s; policy %s;", hook, hook, m.one("-300", "-150", "-50", "0", "20", "150"),
			m.one("accept", "accept", "accept", "drop"))
		for range m.IntN(5) {
			v := m.verdict("c1", "c2")
			if v == "reject" && (hook == "prerouting" || hook == "postrouting") {
				v = "accept"
			}
			line("%s %s %s", m.condition(hook), m.one("", m.condition(hook)), v)
		}
		line("}")
	}
	for _, nat := range [][]string{
		{"prerouting", "dnat ip to 10.2.0.2:7001", "dnat ip to 10.1.0.3", "redirect to :7001", "dnat ip to ip daddr map { 10.9.9.9 : 10.2.0.2 }"},
		{"output", "dnat ip to 10.1.0.2:7000", "redirect to :7000", "dnat ip to 10.2.0.2"},
		{"postrouting", "masquerade", "snat ip to 10.2.0.1", "masquerade"}} {
		hook, what := nat[0], nat[1:]
		if m.IntN(2) == 0 {
			continue
		}
		line("chain nat_%s { type nat hook %s priority %d;", hook, hook, m.IntN(5)-102)
		for range 1 + m.IntN(2) {
			proto := m.one("tcp", "udp")
			line("meta protocol ip meta l4proto %s %s %s", proto, m.one("", "th dport 7000", "ip daddr 10.9.9.9"), m.one(what...))
		}
		line("}")
	}
	line("}")
	return b.String()
}

func (m ruleMaker) bridgeTable() string {
	return fmt.Sprintf("table bridge two {\nchain pre { type filter hook prerouting priority -300;\nip daddr %s %s\n}\n"+
		"chain across { type filter hook forward priority 0; policy %s;\nether type arp accept\nicmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept\niifname va oifname vb meta l4proto %s accept\n}\n}\n",
		m.one("10.1.0.3", "10.2.0.0/16"), m.one("drop", "accept", "meta mark set 1"), m.one("accept", "drop"), m.one("tcp", "udp", "icmp"))
}

func (m ruleMaker) questions(f *field, n int) (all []Question) {
	for range n {
		q := Question{From: f.byName[m.one("a", "a", "b", "far", "host")], DstPort: uint16(7000 + m.IntN(3)),
			Proto: []byte{kernel.TCP, kernel.UDP, kernel.ICMP}[m.IntN(3)],
			Dst:   netip.MustParseAddr(m.one("10.1.0.3", "10.2.0.2", "10.1.0.1", "10.9.9.9", "10.1.0.2", "fd02::2", "fd01::3", "10.1.0.88"))}
		if q.Proto == kernel.ICMP {
			if q.DstPort = 0; q.Dst.Is6() {
				q.Proto = kernel.ICMPv6
			}
		}
		all = append(all, q)
	}
	return all
}

// What is foreseen of a packet is what nf_tables says that it has done with it, whatever rules there are: in each chain
// the same verdict, by the same rule.
func TestLiveIsAsForeseen(t *testing.T) {
	nstest.NeedProgram(t, "ip", "nft")
	f := newField(t)
	file := filepath.Join(t.TempDir(), "rules")
	counts := map[string]int{}
	for seed := range uint64(12) {
		m := ruleMaker{rand.New(rand.NewPCG(seed, 3))}
		rules := "flush ruleset\n" + m.table(m.one("inet", "inet", "ip"), "one")
		if m.IntN(3) == 0 {
			rules += m.table("inet", "other")
		}
		if m.IntN(2) == 0 {
			rules += m.bridgeTable()
		}
		rules = sane(t, file, rules)
		for _, q := range m.questions(f, 6) {
			a, err := f.Live(context.Background(), q)
			if err != nil {
				t.Fatal(err)
			}
			counts[string(a.Verdict)]++
			for _, h := range a.Hops {
				if h.Observed != "" {
					counts[h.Kind]++
				}
			}
			if a.Differs {
				t.Fatalf("seed %d, %s", seed, told(rules, a))
			}
			// Nobody knows what user a packet is of, nor what stands where ICMP has no ports.
			if a.Verdict == Unknown && a.Decisive() != nil && !strings.Contains(a.Why, "depends on meta skuid") &&
				!strings.Contains(a.Why, "depends on ip daddr . th dport") && !strings.Contains(a.Why, "depends on th dport") {
				t.Errorf("seed %d: no rule here throws dice: %s", seed, told(rules, a))
			}
		}
	}
	t.Log(counts)
	if counts["passes"] < 15 || counts["stops"] < 15 || counts["translation"] < 4 || counts["filter"] < 100 {
		t.Errorf("that tests one of them only: %v", counts)
	}
	if left := nstest.Run(t, "nft", "list", "tables"); strings.Contains(left, "fairlead_trace") {
		t.Errorf("left: %s", left)
	}
}

func told(rules string, a *Answer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", a.Packet)
	for _, h := range a.Hops {
		fmt.Fprintf(&b, "%s %v %s\n", h.Place, h.State, h.Text)
		if h.Observed != "" {
			fmt.Fprintf(&b, "    differs: %v; foreseen: %s %s; seen: %s\n", h.Differs, h.Chain, h.Decision, h.Observed)
		}
	}
	fmt.Fprintf(&b, "%s: %s\nlive: %s: %s\n", a.Verdict, a.Why, a.Seen, a.Result)
	return b.String() + rules
}

// sane loads what nft(8) takes of the rules: it refuses lines that contradict themselves.
func sane(t *testing.T, file, rules string) string {
	t.Helper()
	lines := strings.Split(rules, "\n")
	for range 40 {
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("nft", "-f", file).CombinedOutput()
		if err == nil {
			return strings.Join(lines, "\n")
		}
		removed := false
		for _, said := range strings.Split(string(out), "\n") {
			var n int
			_, said, _ = strings.Cut(said, file+":")
			if _, err := fmt.Sscanf(said, "%d:", &n); err == nil && n > 0 && n <= len(lines) && lines[n-1] != "" &&
				!strings.HasSuffix(lines[n-1], ";") && !strings.HasSuffix(lines[n-1], "{") {
				lines[n-1], removed = "", true
			}
		}
		if !removed {
			t.Fatalf("%v: %s\n%s", err, out, strings.Join(lines, "\n"))
		}
	}
	t.Fatalf("nft takes none of\n%s", rules)
	return ""
}
