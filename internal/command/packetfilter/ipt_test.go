package packetfilter

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
)

// iptMatch is a condition in iptables(8)'s words.
func (g *grammar) iptMatch(v6 bool) string {
	not := g.one("", "", "! ")
	if v6 && g.IntN(3) == 0 {
		return not + g.one("-s fd01::5", "-d fd02::/16", "-s fd05::/12", "-d fd02:0:3::4")
	}
	if !v6 && g.IntN(3) == 0 {
		return not + g.one("-s ", "-d ") + g.one(g.addr(), g.prefix())
	}
	switch g.IntN(16) {
	case 0, 1:
		return not + g.one("-i in0", "-i br-+", "-o out0", "-o eth+", "-o +", "-i br-in")
	case 2:
		return g.one("-p tcp", "-p udp", "! -p tcp", "-p esp")
	case 3:
		return "-p tcp -m tcp " + not + g.one("--dport 80", "--dport 22:443", "--sport 1000", "--syn",
			"--tcp-flags SYN,ACK SYN,ACK")
	case 4:
		return "-p udp -m udp " + not + g.one("--dport 53", "--dport 8000:", "--sport :33000")
	case 5:
		return g.one("-p tcp", "-p udp") + " -m multiport " + not +
			g.one("--dports 22,80", "--dports 22:79,443,8000:9000", "--sports 1000,33000", "--ports 53,60000,22:30")
	case 6:
		return "-m conntrack " + not + g.one("--ctstate NEW", "--ctstate RELATED,ESTABLISHED", "--ctstate INVALID",
			"--ctstate DNAT", "--ctstate NEW,DNAT")
	case 7:
		return g.one("-m state --state NEW", "-m state --state ESTABLISHED", "-m conntrack --ctstatus SEEN_REPLY",
			"-m conntrack --ctproto 17")
	case 8:
		return "-m mark " + not + g.one("--mark 1", "--mark 0x4000/0x4000", "--mark 0", "--mark 0x1/0x1")
	case 9:
		return "-m comment --comment \"a word\""
	case 10:
		return "-m addrtype " + g.one("--dst-type LOCAL", "! --dst-type LOCAL", "--src-type UNICAST",
			"--dst-type UNICAST,BROADCAST")
	case 11:
		if !v6 && g.IntN(3) == 0 {
			return "-f"
		}
	}
	return ""
}

func (g *grammar) iptRule(chain string, v6 bool, chains []string) string {
	target := ""
	switch n := g.IntN(12); {
	case n < 4:
		target = "-j ACCEPT"
	case n < 6:
		target = "-j DROP"
	case n == 6:
		target = "-j REJECT"
	case n == 7:
		target = "-j RETURN"
	case n == 8:
		target = g.one("-j LOG", "")
	case len(chains) > 0 && n == 9:
		target = "-g " + g.one(chains...)
	case len(chains) > 0:
		target = "-j " + g.one(chains...)
	}
	m := g.iptMatch(v6) + " " + g.maybe(g.iptMatch(v6))
	if g.IntN(40) == 0 {
		g.open = true
		m += " " + g.one("-m limit --limit 1/day", "-m statistic --mode random --probability 0.5", "-m length --length 20:30")
	}
	return "-A " + chain + " " + m + " " + target
}

func (g *grammar) iptTable(v6 bool, table string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n:FORWARD %s [0:0]\n:c1 -\n:c2 -\n:c3 -\n", table, g.one("ACCEPT", "DROP"))
	var chains []string
	for _, c := range []string{"c3", "c2", "c1", "FORWARD"} {
		for range 1 + g.IntN(5) {
			rule := g.iptRule(c, v6, chains)
			if table == "mangle" {
				if strings.Contains(rule, "REJECT") {
					rule = strings.Replace(rule, "-j REJECT",
						"-j MARK "+g.one("--set-mark 1", "--set-xmark 0x4000/0x4000", "--or-mark 1", "--and-mark 0x4000"), 1)
				}
			}
			fmt.Fprintln(&b, rule)
		}
		chains = append(chains, c)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// restore loads what a variant of iptables-restore takes of the rules: it refuses lines that contradict themselves.
func (f *forwarder) restore(rules string, command ...string) (string, error) {
	for {
		err := f.load(rules, command...)
		if err == nil {
			return rules, nil
		}
		var exit *exec.ExitError
		line := 0
		for _, word := range []string{"line: ", "line "} { // "Error occurred at line: 7", "line 7 failed"
			if _, said, ok := strings.Cut(err.Error(), word); ok && line == 0 {
				fmt.Sscan(said, &line)
			}
		}
		lines := strings.Split(rules, "\n")
		if !errors.As(err, &exit) || line < 1 || line > len(lines) {
			return "", err
		}
		if lines[line-1] == "COMMIT" { // the kernel refuses some rule
			for line--; line > 0 && !strings.HasPrefix(lines[line-1], "-A"); line-- {
			}
			if line == 0 {
				return "", err
			}
		}
		rules = strings.Join(append(lines[:line-1:line-1], lines[line:]...), "\n")
	}
}

// What is said of a packet is what the kernel does with it, whichever iptables made the rules.
func TestVerdictOfIPTables(t *testing.T) {
	f := newForwarder(t)
	accepted, dropped, rounds := 0, 0, 5
	for _, variant := range []string{"nft", "legacy"} {
		for _, v6 := range []bool{false, true} {
			name := "iptables-" + variant
			if v6 {
				name = "ip6tables-" + variant
			}
			if out, err := exec.Command("nsenter", "--net="+f.path, name, "-L", "-n").CombinedOutput(); err != nil {
				t.Logf("%s: %s", name, out)
				continue
			}
			for seed := range uint64(rounds) {
				g := &grammar{Rand: rand.New(rand.NewPCG(seed, 2))}
				rules := g.iptTable(v6, "filter") + g.iptTable(v6, "mangle")
				if err := f.load(probe(), "nft", "-f", "-"); err != nil {
					t.Fatal(err)
				}
				rules, err := f.restore(rules, name+"-restore")
				if err != nil {
					t.Fatalf("%s, seed %d: %v", name, seed, err)
				}
				packets := g.packets(60)
				n := 0
				for _, p := range packets {
					if p.is6() == v6 {
						packets[n] = p
						n++
					}
				}
				a, d := f.compare(fmt.Sprintf("%s, seed %d\n%s", name, seed, rules), g.open, packets[:n])
				accepted, dropped = accepted+a, dropped+d
				if t.Failed() {
					return
				}
			}
			open := "*filter\n:FORWARD ACCEPT\nCOMMIT\n*mangle\n:FORWARD ACCEPT\nCOMMIT\n"
			if err := f.load(open, name+"-restore"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if accepted < 5*rounds || dropped < 5*rounds {
		t.Errorf("%d accepted and %d dropped: that tests one of them only", accepted, dropped)
	}
}
