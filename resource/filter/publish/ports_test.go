package publish_test

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
)

func TestPublishLaw(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	contract.Host(t, w, "sysctl -qw net.ipv4.conf.veth1.route_localnet=0")
	p := publish.Ports{Owner: contract.Owner, To4: contract.Prefix("10.1.2.5/24"), To6: contract.Prefix("fd00::5/64"),
		SNAT: true, Mappings: []publish.Mapping{
			{Protocol: "tcp", HostPort: 8080, ContainerPort: 80},
			{Protocol: "udp", HostIP: netip.MustParseAddr("192.0.2.1"), HostPort: 53, ContainerPort: 53},
			{Protocol: "sctp", HostIP: netip.MustParseAddr("2001:db8::1"), HostPort: 9, ContainerPort: 9},
		}, Conditions6: []string{"ip6", "saddr", "!=", "{", "fd01::/64,", "fd02::/64", "}"}}
	where := func(t testing.TB, name string) string {
		return regexp.MustCompile(name + `_where_[0-9a-f]{12}`).FindString(filtertest.State(t, w))
	}
	breakElem := func(set, key string) func(*testing.T) {
		return func(t *testing.T) {
			if prefix, ok := strings.CutSuffix(set, "*"); ok {
				set = regexp.MustCompile(prefix + `_[0-9a-f]{12}`).FindString(filtertest.State(t, w))
			}
			filtertest.NFT(t, w, "delete element inet fairlead "+set+" { "+key+" }")
		}
	}
	other := func(set, key, data string) func(*testing.T) {
		return func(t *testing.T) {
			old := regexp.MustCompile(key + ` comment "([^"]*)"`).FindStringSubmatch(filtertest.State(t, w))
			filtertest.NFT(t, w, "delete element inet fairlead "+set+" { "+key+" }; add element inet fairlead "+set+
				" { "+key+
				" comment \""+
				old[1]+"\" : "+data+" }")
		}
	}
	filtertest.Test(t, w, p,
		contract.Break("any", breakElem("publish_ip_any", "tcp . 8080"),
			"nft element inet fairlead publish_ip_any { tcp . 8080 : 10.1.2.5 . 80 } is missing"),
		contract.Break("exact", breakElem("publish_ip", "192.0.2.1 . udp . 53"),
			"nft element inet fairlead publish_ip { 192.0.2.1 . udp . 53 : 10.1.2.5 . 53 } is missing"),
		contract.Break("exact6", breakElem("publish_ip6_where*", "2001:db8::1 . sctp . 9"),
			"{ 2001:db8::1 . sctp . 9 : fd00::5 . 9 } is missing"),
		contract.Break("any6", breakElem("publish_ip6_any_where*", "tcp . 8080"),
			"{ tcp . 8080 : fd00::5 . 80 } is missing"),
		contract.Break("address", other("publish_ip_any", "tcp . 8080", "10.1.2.6 . 80"), "is 10.1.2.6 . 80"),
		contract.Break("port", other("publish_ip_any", "tcp . 8080", "10.1.2.5 . 81"), "is 10.1.2.5 . 81"),
		contract.Break("somebody else's", func(t *testing.T) {
			filtertest.NFT(t, w, "delete element inet fairlead publish_ip_any { tcp . 8080 }; add element inet fairlead publish_ip_any { tcp . 8080 comment \"mine\" : 1.2.3.4 . 5 }")
		}, `belongs to "mine"`),
		contract.Break("claims", breakElem("claims_ip", "udp . 53 . 0"), "is not in claims_ip"),
		contract.Break("hairpin", breakElem("hairpin_ip*", "10.1.2.5 . tcp . 80"),
			"{ 10.1.2.5 . tcp . 80 } is missing"),
		contract.Break("hairpin6", breakElem("hairpin_ip6*", "fd00::5 . tcp . 80"),
			"{ fd00::5 . tcp . 80 } is missing"),
		contract.Break("hairpin line", func(t *testing.T) { filtertest.NFT(t, w, "flush chain inet fairlead hairpin") }, `nft rule inet fairlead hairpin "a network`),
		contract.Break("owners", func(t *testing.T) { filtertest.NFT(t, w, "flush set inet fairlead owners") },
			"is not in owners"),
		contract.Break("conditions", func(t *testing.T) { filtertest.NFT(t, w, "flush chain inet fairlead conditions") }, `nft rule inet fairlead conditions "conditions`),
		contract.Break("where", func(t *testing.T) { filtertest.NFT(t, w, "flush chain inet fairlead "+where(t, "publish_ip6")) }, `"at one address`),
		contract.Break("publish", func(t *testing.T) { filtertest.NFT(t, w, "flush chain inet fairlead publish") }, `"at any address`),
		contract.Break("guard", func(t *testing.T) { filtertest.NFT(t, w, "flush chain inet fairlead guard") }, `"127/8 from outside`),
		contract.Break("flush table", func(t *testing.T) { filtertest.NFT(t, w, "flush table inet fairlead") }, `nft rule inet fairlead output "published ports`),
		contract.Break("delete table", func(t *testing.T) { filtertest.NFT(t, w, "delete table inet fairlead") },
			"nft table inet fairlead is missing"),
		contract.Break("sysctl", func(t *testing.T) {
			contract.Host(t, w,
				"sysctl -qw net.ipv4.conf.veth1.route_localnet=0")
		}, "net/ipv4/conf/veth1/route_localnet is 0, want 1"),
	)
}

// A container may have hundreds of ports, in one transaction.
func TestPublishManyPorts(t *testing.T) {
	w := contract.NewHost(t)
	var ports []publish.Mapping
	for i := range 250 {
		ports = append(ports, filtertest.TCP("", uint16(20000+i)))
	}
	p := filtertest.PortsOf("c1", "net", "10.1.2.5/24", ports...)
	contract.Ensure(t, w, p)
	contract.Verify(t, w, p)
	contract.Remove(t, w, p)
	if s := filtertest.State(t, w); strings.Contains(s, "elements") {
		t.Errorf("left:\n%s", s)
	}
}
