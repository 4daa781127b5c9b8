package filter

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/nft"
	"github.com/fairlead-cni/fairlead/plan"
)

// nftState is what nft(8) shows of both tables, and so also shows that it can read them.
func nftState(t testing.TB, w *kernel.World) string {
	t.Helper()
	if err := nft.Ended(w); err != nil {
		t.Error(err)
	}
	return nstest.RunIn(t, w.Host.Path, "nft", "list", "ruleset")
}

// What attachments share and leave: chains that are named after what they do, empty maps and rules that
// belong to them.
var (
	sharedChain = regexp.MustCompile(`(?m)^\tchain \w+_[0-9a-f]{12} \{\n(\t\t.*\n)*\t\}\n\n?`)
	sharedMap   = regexp.MustCompile(`(?m)^\t(map|set) \w+_[0-9a-f]{12} \{\n\t\ttype .*\n(\t\tflags .*\n)?\t\}\n\n?`)
	sharedRule  = regexp.MustCompile(`(?m)^.* jump \w+_[0-9a-f]{12} .*\n`)
)

func elements(t testing.TB, w *kernel.World) string {
	s := nftState(t, w)
	for _, r := range []*regexp.Regexp{sharedChain, sharedMap, sharedRule} {
		s = r.ReplaceAllString(s, "")
	}
	// The order of tables and chains is the order in which they were made, and counts for nothing.
	lines := strings.Split(s, "\n")
	slices.Sort(lines)
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// skeleton makes the tables, so that the state before the first Ensure has them.
func skeleton(t testing.TB, w *kernel.World) {
	t.Helper()
	for _, table := range []*nft.Table{inetTable(), bridgeTable()} {
		if err := withFilter(t.Context(), w, table,
			func(f filter) error { return f.ensureBase(newChainSet(f.t)) }); err != nil {
			t.Fatal(err)
		}
	}
}

func nftLaw(t *testing.T, w *kernel.World, r plan.Resource, breakers ...contract.Breakage) {
	t.Helper()
	skeleton(t, w)
	contract.Terms{State: func(t testing.TB) string { return elements(t, w) }}.Test(t, w, r, breakers...)
}

// nft runs one command of nft(8) on the host, once what was removed has ended.
func runNFT(t testing.TB, w *kernel.World, line string) string {
	t.Helper()
	if err := nft.Ended(w); err != nil {
		t.Error(err)
	}
	return nstest.RunIn(t, w.Host.Path, "nft", line)
}

func TestMasqueradeLaw(t *testing.T) {
	w := contract.NewWorld(t)
	m := Masquerade{Owner: contract.Owner, From: []netip.Prefix{contract.Prefix("10.1.2.5/24"),
		contract.Prefix("fd00::5/64")}, Except: []netip.Prefix{contract.Prefix("192.0.2.0/24"), contract.Prefix("2001:db8::/32")}}
	shared := func(t testing.TB, family string) string {
		return regexp.MustCompile(`masquerade_` + family + `_[0-9a-f]{12}`).FindString(nftState(t, w))
	}
	nftLaw(t, w, m,
		contract.Break("element", func(t *testing.T) {
			runNFT(t, w,
				"delete element inet fairlead "+shared(t, "ip")+" { 10.1.2.5 }")
		},
			"{ 10.1.2.5 } is missing"),
		contract.Break("element6", func(t *testing.T) {
			runNFT(t, w,
				"delete element inet fairlead "+shared(t, "ip6")+" { fd00::5 }")
		},
			"{ fd00::5 } is missing"),
		contract.Break("tag", func(t *testing.T) {
			s := shared(t, "ip")
			runNFT(t, w, "delete element inet fairlead "+s+" { 10.1.2.5 }; add element inet fairlead "+s+
				" { 10.1.2.5 comment \"mine\" }")
		}, `belongs to "mine"`),
		contract.Break("line", func(t *testing.T) { runNFT(t, w, "flush chain inet fairlead masquerading") }, `nft rule inet fairlead masquerading "a network`),
		contract.Break("owners", func(t *testing.T) { runNFT(t, w, "flush set inet fairlead owners") }, "is not in owners"),
		contract.Break("chain", func(t *testing.T) { runNFT(t, w, "flush chain inet fairlead "+shared(t, "ip")) }, `"its own network`),
		contract.Break("chain6", func(t *testing.T) { runNFT(t, w, "flush chain inet fairlead "+shared(t, "ip6")) }, `"multicast`),
		contract.Break("foreign rule", func(t *testing.T) { runNFT(t, w, "insert rule inet fairlead postrouting accept") },
			"that is not ours"),
		contract.Break("flush table", func(t *testing.T) { runNFT(t, w, "flush table inet fairlead") }, `nft rule inet fairlead postrouting "out of a network`),
		contract.Break("delete table", func(t *testing.T) { runNFT(t, w, "delete table inet fairlead") },
			"nft table inet fairlead is missing"),
	)
}

func TestSpoofCheckLaw(t *testing.T) {
	w := contract.NewWorld(t)
	s := SpoofCheck{Owner: contract.Owner, Link: "veth1", MAC: "02:00:00:00:00:01"}
	nftLaw(t, w, s,
		contract.Break("link", func(t *testing.T) { runNFT(t, w, "delete element bridge fairlead spoofcheck { veth1 }") },
			"nft element bridge fairlead spoofcheck { veth1 } is missing"),
		contract.Break("address", func(t *testing.T) {
			runNFT(t, w, "delete element bridge fairlead allowed { veth1 . 02:00:00:00:00:01 }")
		}, "nft element bridge fairlead allowed { veth1 . 02:00:00:00:00:01 } is missing"),
		contract.Break("rule", func(t *testing.T) { runNFT(t, w, "flush chain bridge fairlead prerouting") },
			"source address of somebody else"),
		contract.Break("owners", func(t *testing.T) { runNFT(t, w, "flush set bridge fairlead owners") }, "is not in owners"),
	)
}

func TestPublishLaw(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	contract.Host(t, w, "sysctl -qw net.ipv4.conf.veth1.route_localnet=0")
	p := Publish{Owner: contract.Owner, To4: contract.Prefix("10.1.2.5/24"), To6: contract.Prefix("fd00::5/64"),
		SNAT: true, Ports: []PortMapping{
			{Protocol: "tcp", HostPort: 8080, ContainerPort: 80},
			{Protocol: "udp", HostIP: netip.MustParseAddr("192.0.2.1"), HostPort: 53, ContainerPort: 53},
			{Protocol: "sctp", HostIP: netip.MustParseAddr("2001:db8::1"), HostPort: 9, ContainerPort: 9},
		}, Conditions6: []string{"ip6", "saddr", "!=", "{", "fd01::/64,", "fd02::/64", "}"}}
	where := func(t testing.TB, name string) string {
		return regexp.MustCompile(name + `_where_[0-9a-f]{12}`).FindString(nftState(t, w))
	}
	breakElem := func(set, key string) func(*testing.T) {
		return func(t *testing.T) {
			if prefix, ok := strings.CutSuffix(set, "*"); ok {
				set = regexp.MustCompile(prefix + `_[0-9a-f]{12}`).FindString(nftState(t, w))
			}
			runNFT(t, w, "delete element inet fairlead "+set+" { "+key+" }")
		}
	}
	other := func(set, key, data string) func(*testing.T) {
		return func(t *testing.T) {
			old := regexp.MustCompile(key + ` comment "([^"]*)"`).FindStringSubmatch(nftState(t, w))
			runNFT(t, w, "delete element inet fairlead "+set+" { "+key+" }; add element inet fairlead "+set+" { "+key+
				" comment \""+
				old[1]+"\" : "+data+" }")
		}
	}
	nftLaw(t, w, p,
		contract.Break("any", breakElem("publish_ip_any", "tcp . 8080"),
			"nft element inet fairlead publish_ip_any { tcp . 8080 : 10.1.2.5 . 80 } is missing"),
		contract.Break("exact", breakElem("publish_ip", "192.0.2.1 . udp . 53"),
			"nft element inet fairlead publish_ip { 192.0.2.1 . udp . 53 : 10.1.2.5 . 53 } is missing"),
		contract.Break("exact6", breakElem("publish_ip6_where*", "2001:db8::1 . sctp . 9"),
			"{ 2001:db8::1 . sctp . 9 : fd00::5 . 9 } is missing"),
		contract.Break("any6", breakElem("publish_ip6_any_where*", "tcp . 8080"), "{ tcp . 8080 : fd00::5 . 80 } is missing"),
		contract.Break("address", other("publish_ip_any", "tcp . 8080", "10.1.2.6 . 80"), "is 10.1.2.6 . 80"),
		contract.Break("port", other("publish_ip_any", "tcp . 8080", "10.1.2.5 . 81"), "is 10.1.2.5 . 81"),
		contract.Break("somebody else's", func(t *testing.T) {
			runNFT(t, w, "delete element inet fairlead publish_ip_any { tcp . 8080 }; add element inet fairlead publish_ip_any { tcp . 8080 comment \"mine\" : 1.2.3.4 . 5 }")
		}, `belongs to "mine"`),
		contract.Break("claims", breakElem("claims_ip", "udp . 53 . 0"), "is not in claims_ip"),
		contract.Break("hairpin", breakElem("hairpin_ip*", "10.1.2.5 . tcp . 80"), "{ 10.1.2.5 . tcp . 80 } is missing"),
		contract.Break("hairpin6", breakElem("hairpin_ip6*", "fd00::5 . tcp . 80"), "{ fd00::5 . tcp . 80 } is missing"),
		contract.Break("hairpin line", func(t *testing.T) { runNFT(t, w, "flush chain inet fairlead hairpin") }, `nft rule inet fairlead hairpin "a network`),
		contract.Break("owners", func(t *testing.T) { runNFT(t, w, "flush set inet fairlead owners") }, "is not in owners"),
		contract.Break("conditions", func(t *testing.T) { runNFT(t, w, "flush chain inet fairlead conditions") }, `nft rule inet fairlead conditions "conditions`),
		contract.Break("where", func(t *testing.T) { runNFT(t, w, "flush chain inet fairlead "+where(t, "publish_ip6")) }, `"at one address`),
		contract.Break("publish", func(t *testing.T) { runNFT(t, w, "flush chain inet fairlead publish") }, `"at any address`),
		contract.Break("guard", func(t *testing.T) { runNFT(t, w, "flush chain inet fairlead guard") }, `"127/8 from outside`),
		contract.Break("flush table", func(t *testing.T) { runNFT(t, w, "flush table inet fairlead") }, `nft rule inet fairlead output "published ports`),
		contract.Break("delete table", func(t *testing.T) { runNFT(t, w, "delete table inet fairlead") },
			"nft table inet fairlead is missing"),
		contract.Break("sysctl", func(t *testing.T) {
			contract.Host(t, w,
				"sysctl -qw net.ipv4.conf.veth1.route_localnet=0")
		}, "net/ipv4/conf/veth1/route_localnet is 0, want 1"),
	)
}
