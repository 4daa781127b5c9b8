package plugin_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// Rules that other programs put in the way of forwarded packets, for iptables-restore and ip6tables-restore.
const (
	dockerRules = `*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
`
	ufwRules = `*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:ufw-before-forward - [0:0]
:ufw-after-forward - [0:0]
:ufw-reject-forward - [0:0]
:ufw-user-forward - [0:0]
:ufw-after-logging-forward - [0:0]
-A INPUT -p tcp -m tcp --dport 8080 -j ACCEPT
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p ICMPV -j ACCEPT
-A FORWARD -j ufw-before-forward
-A FORWARD -j ufw-after-forward
-A FORWARD -j ufw-after-logging-forward
-A FORWARD -j ufw-reject-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
COMMIT
`
	kubeRules = `*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
`
	rejectRules = `*filter
:FORWARD ACCEPT [0:0]
-A FORWARD -j REJECT
COMMIT
`
	dropRules = `*filter
:FORWARD DROP [0:0]
COMMIT
`
)

func (s *site) restore(variant, rules string) {
	s.Helper()
	s.sh("host", "iptables-"+variant+"-restore <<'END'\n"+strings.ReplaceAll(rules, "ICMPV", "icmp")+"END")
	s.sh("host", "ip6tables-"+variant+"-restore <<'END'\n"+strings.ReplaceAll(rules, "ICMPV", "ipv6-icmp")+"END")
}

// saved is what both families of both variants have.
func (s *site) saved() string {
	s.Helper()
	return s.sh("host", "for f in iptables ip6tables; do for v in nft legacy; do $f-$v-save 2>/dev/null; done; done")
}

// TestForeignRules lets containers out, and in to published ports, on hosts where others decide about forwarding.
func TestForeignRules(t *testing.T) {
	for name, rules := range map[string]string{"Docker": dockerRules, "ufw": ufwRules, "kube-proxy": kubeRules,
		"last rule REJECT": rejectRules, "policy DROP": dropRules} {
		for _, variant := range []string{"nft", "legacy"} {
			t.Run(name+"/"+variant, func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				s.restore(variant, rules)
				s.network("b", `"type":"firewall"`)
				s.network("a", published, `"type":"firewall"`)
				s.add("a1")
				a := s.runners["a"]
				if name != "kube-proxy" {
					s.network("c")
					s.add("c1")
					s.expect("to the outside, without firewall", "c1", "192.0.2.2:80", "")
				}
				if err := a.check(s.containers["a1"]); err != nil {
					t.Errorf("check: %v", err)
				}
				for v, host := range []string{"192.0.2.1", "[2001:db8::1]"} {
					s.expect("to the outside", "a1", []string{"192.0.2.2:80", "[2001:db8::2]:80"}[v], "outside")
					s.expect("from outside, published", "outside", host+":8080", "a1")
				}
				if !strings.Contains(s.saved(), "-A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD") {
					t.Errorf("no jump to CNI-FORWARD:\n%s", s.saved())
				}
				s.add("b1")
				s.sh("host", "iptables-"+variant+" -D CNI-FORWARD $(iptables-"+variant+
					" -S CNI-FORWARD | grep -- -s.10.82 | sed 's/.*FORWARD //; s/ -m comment.*//') -m comment --comment \"$(iptables-"+
					variant+" -S CNI-FORWARD | grep -- -s.10.82 | cut -d'\"' -f2)\" -j ACCEPT")
				if err := s.runners["b"].check(s.containers["b1"]); err == nil ||
					!strings.Contains(err.Error(), "-s 10.82.0.2/32") {
					t.Errorf("check without an accept: %v", err)
				}
				if err := a.del(&attachment{id: "a1", netns: s.containers["a1"].netns}); err != nil {
					t.Errorf("del without a result: %v", err)
				}
				if got := s.saved(); strings.Contains(got, "10.81.") || strings.Contains(got, "fd00:81::") {
					t.Errorf("left of a1:\n%s", got)
				} else if !strings.Contains(got, "fd00:82::2/128") {
					t.Errorf("b1's are gone too:\n%s", got)
				}
				if err := s.runners["b"].gc(); err != nil {
					t.Errorf("gc: %v", err)
				}
				if got := s.saved(); strings.Contains(got, "fd00:82:") || strings.Contains(got, "10.82.") {
					t.Errorf("left by GC:\n%s", got)
				}
			})
		}
	}
}

// TestNoForeignRules executes nothing and makes nothing of iptables where nobody has rules there.
func TestNoForeignRules(t *testing.T) {
	s := newSite(t)
	s.network("a", published, `"type":"firewall"`)
	s.add("a1")
	s.expect("to the outside", "a1", "192.0.2.2:80", "outside")
	s.expect("from outside, published", "outside", "192.0.2.1:8080", "a1")
	if got := s.sh("host", "nft list tables; cat /proc/net/ip_tables_names /proc/net/ip6_tables_names"); strings.Contains(got, "filter") {
		t.Errorf("tables of iptables came to be:\n%s", got)
	}
}

// TestForeignTable: of a chain of somebody else's that may drop whatever a container sends ADD, CHECK and STATUS warn,
// and none of them fails for it. Where the packets get is what the kernel makes of all rules.
func TestForeignTable(t *testing.T) {
	const table = "nft 'add table inet site; add chain inet site hosts { type filter hook forward priority 5; policy accept; }; %s'"
	warning := regexp.MustCompile(`may drop the container's packets.*chain="table inet site chain hosts \(a rule drops all\)" fix="nft 'insert rule inet site hosts iifname`)
	for rule, want := range map[string]struct{ add, status, passes bool }{
		"drop":                              {true, true, false},
		"ct state established accept; drop": {true, true, false},
		"ip saddr 10.81.0.0/24 drop":        {false, false, false},
		"ip saddr 10.83.0.0/24 drop":        {false, false, true},
		"tcp dport 25 drop":                 {false, false, true},
		"iifname br-a accept; ct state established accept; drop": {false, true, true},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			r := s.network("a", `"type":"firewall"`)
			s.add("a1")
			s.sh("host", fmt.Sprintf(table, "add rule inet site hosts "+
				strings.ReplaceAll(rule, "; ", "; add rule inet site hosts ")))
			a := &attachment{id: "a2", netns: nstest.NewNS(t)}
			for verb, said := range map[string]string{"ADD": r.addSaying(a), "CHECK": r.saying("CHECK", a)} {
				if said != "" != want.add || want.add && !warning.MatchString(said) {
					t.Errorf("%s says %q", verb, said)
				}
			}
			r.must("check", r.check(a))
			r.must("del", r.del(a))
			if said := r.saying("STATUS", &attachment{}); said != "" != want.status || want.status &&
				!warning.MatchString(said) {
				t.Errorf("STATUS says %q", said)
			}
			who := "outside"
			if !want.passes {
				who = ""
			}
			s.expect("to the outside", "a1", "192.0.2.2:80", who)
		})
	}
}

// saying is what the last plugin of the chain says on stderr.
func (r *runner) saying(verb string, a *attachment) string {
	r.t.Helper()
	file := filepath.Join(r.t.TempDir(), "stderr")
	_, err := r.run(len(r.chain.plugins)-1, verb, a, "", "sh", "-c", `exec "$@" 2>`+file, "sh")
	r.must(verb, err)
	b, err := os.ReadFile(file)
	r.must("read what was said", err)
	return string(b)
}

// TestForeignIPTables: the backend that was asked for does not lift what iptables drops, of either variant, and another
// one does. ADD says so and goes on.
func TestForeignIPTables(t *testing.T) {
	for variant, owner := range map[string]string{"nft": "iptables-nft", "legacy": "iptables-legacy"} {
		t.Run(variant, func(t *testing.T) {
			s := newSite(t)
			s.restore(variant, dropRules)
			r := s.network("a", `"type":"firewall","backend":"nftables"`)
			s.add("a1")
			s.expect("to the outside", "a1", "192.0.2.2:80", "")
			want := "table ip6 filter chain FORWARD (" + owner + `, policy drop)" fix="backend \"auto\" puts an accept there"`
			for verb, said := range map[string]string{"ADD": r.saying("ADD", s.containers["a1"]),
				"CHECK":  r.saying("CHECK", s.containers["a1"]),
				"STATUS": r.saying("STATUS", &attachment{})} {
				if !strings.Contains(said, want) || strings.Count(said, "level=WARN") != 2 {
					t.Errorf("%s says %s, want %s", verb, said, want)
				}
			}
			r.chain.plugins[1] = `"type":"firewall"`
			for verb, said := range map[string]string{"ADD": r.saying("ADD", s.containers["a1"]),
				"CHECK":  r.saying("CHECK", s.containers["a1"]),
				"STATUS": r.saying("STATUS", &attachment{})} {
				if said != "" {
					t.Errorf("with auto, %s says %s", verb, said)
				}
			}
			s.expect("to the outside", "a1", "192.0.2.2:80", "outside")
		})
	}
}
