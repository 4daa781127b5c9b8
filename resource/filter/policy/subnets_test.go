package policy_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestSubnets follows what the packet filter knows of the addresses behind a link: several ranges of a network add up,
// a policy takes them along, networks that have the same subnet keep it for each other, and a table as the version
// before made it gets them with the next ADD.
func TestSubnets(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	contract.Host(t, w, "ip link add br7 up type bridge")
	contract.Host(t, w, "ip addr add 10.7.0.1/24 dev br7")
	contract.Host(t, w, "ip addr add 10.8.0.1/16 dev br7")
	contract.Host(t, w, "ip addr add 192.0.2.1/24 dev veth1")
	contract.Host(t, w, "ip link set veth1 up")
	of := func(network, mode string, to ...netip.Prefix) policy.Ingress {
		return policy.Ingress{Owner: spec.Owner{Network: network, ContainerID: "c1", IfName: "eth0"}, Link: "br7",
			Policy: mode, To: to}
	}
	first, second, third := contract.Prefix("10.7.0.2/24"), contract.Prefix("10.8.0.2/16"), contract.Prefix("10.9.0.2/24")
	contract.Ensure(t, w, of("a", policy.Open, first, second))
	contract.Remove(t, w, of("a", policy.Open))
	before := filtertest.Elements(t, w) // with the sets, which stay

	has := func(set, elem string, want bool) {
		t.Helper()
		if text := setText(filtertest.NFT(t, w, "list table inet fairlead"), set); strings.Contains(text,
			elem) != want {
			t.Errorf("%s has %s is to be %v:\n%s", set, elem, want, text)
		}
	}
	contract.Ensure(t, w, of("a", policy.Open, first, third)) // to the third the host has no way by the link
	has("open_ip_24", "10.7.0.0 . 10.7.0.0", true)
	has("subnet_ip_24", "10.9.0.0", false)
	contract.Ensure(t, w, of("a", policy.Strict, second))
	has("open_ip_24", "10.7.0.0", false)
	has("policed_ip_24", "10.7.0.0 . 10.7.0.0", true)
	has("policed_ip_16", "10.8.0.0 . 10.8.0.0", true)
	has("subnet_ip_16", `10.8.0.0 . "br7"`, true)
	contract.Verify(t, w, of("a", policy.Strict, first))
	if changed, err := of("a", policy.Strict, first).Ensure(t.Context(), w); changed || err != nil {
		t.Errorf("another container of the network: changed %v, %v", changed, err)
	}
	for _, c := range []struct{ what, line, says string }{
		{"subnet gone", "flush set inet fairlead policed_ip_24", "policed_ip_24 { 10.7.0.0 . 10.7.0.0 } is missing"},
		{"line gone", "flush chain inet fairlead sources", "by its own link"},
		{"rule gone", "flush chain inet fairlead input", "in whose name"},
	} {
		filtertest.NFT(t, w, c.line)
		if err := of("a", policy.Strict, first).Verify(t.Context(), w); err == nil ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.what, err)
		}
		contract.Ensure(t, w, of("a", policy.Strict, first))
		contract.Verify(t, w, of("a", policy.Strict, first))
	}

	contract.Ensure(t, w, of("b", policy.Strict, first))
	contract.Remove(t, w, of("a", policy.Strict))
	has("policed_ip_24", "10.7.0.0", true)
	has("policed_ip_16", "10.8.0.0", false)
	contract.Verify(t, w, of("b", policy.Strict, first))
	contract.Ensure(t, w, of("a", policy.Strict, first))
	contract.Remove(t, w, of("b", policy.Strict))
	contract.Verify(t, w, of("a", policy.Strict, first))
	if err := filtertest.Sweep(t.Context(), w, "a", nil); err != nil {
		t.Error(err)
	}
	if got := filtertest.Elements(t, w); got != before {
		t.Errorf("left:%s", contract.Difference(before, got))
	}

	// A link of the container's own has its addresses alone.
	own := policy.Ingress{Owner: contract.Owner, Link: "veth1", Policy: policy.Isolated,
		To: []netip.Prefix{contract.Prefix("192.0.2.5/24")}}
	contract.Ensure(t, w, own)
	contract.Remove(t, w, own)
	before = filtertest.Elements(t, w)
	contract.Ensure(t, w, own)
	has("policed_ip_32", "192.0.2.5 . 192.0.2.5", true)
	contract.Verify(t, w, own)
	if err := filtertest.SweepNFT(t.Context(), w, contract.Owner.Network,
		func(owner [8]byte) bool { return true }); err != nil {
		t.Error(err)
	}
	contract.Verify(t, w, own)
	contract.Remove(t, w, own)
	if got := filtertest.Elements(t, w); got != before {
		t.Errorf("left of an own link:%s", contract.Difference(before, got))
	}

	// As the version before left it.
	filtertest.NFT(t, w, "delete table inet fairlead")
	contract.Ensure(t, w, of("a", policy.Strict, first))
	after := filtertest.Elements(t, w)
	filtertest.NFT(t, w, `flush chain inet fairlead input; delete chain inet fairlead input; flush chain inet fairlead sources;
		flush chain inet fairlead marking; flush chain inet fairlead ends; flush chain inet fairlead bothends; flush chain inet fairlead marking_ip_24; delete chain inet fairlead marking_ip_24;
		flush chain inet fairlead subnet_ip_24; delete chain inet fairlead subnet_ip_24;
		delete set inet fairlead subnet_ip_24;
		delete set inet fairlead policed_ip_24; delete set inet fairlead open_ip_24; delete set inet fairlead strict_ip_24; flush chain inet fairlead forward;
		delete chain inet fairlead sources; flush set inet fairlead owners`)
	contract.Ensure(t, w, of("a", policy.Strict, first))
	if got := filtertest.Elements(t, w); got != after {
		t.Errorf("upgraded:%s", contract.Difference(after, got))
	}
	contract.Verify(t, w, of("a", policy.Strict, first))
}

// TestForgedBeforePolicy: what was begun in the name of a network's address before the network had a policy is
// forgotten with the first container, by both backends, so that its replies do not pass the policy. What was
// translated, or is of others, goes on.
func TestForgedBeforePolicy(t *testing.T) {
	in := policy.Ingress{Owner: spec.Owner{Network: "a", ContainerID: "c1", IfName: "eth0"}, Link: "br7",
		Policy: policy.Strict, To: []netip.Prefix{contract.Prefix("10.7.0.2/24"), contract.Prefix("fd00:7::2/64")}}
	for name, r := range map[string]plan.Resource{"nftables": in,
		"iptables": policy.IngressIPTables{Owner: in.Owner, Link: in.Link, Policy: in.Policy, To: in.To, V4: true,
			V6: true}} {
		t.Run(name, func(t *testing.T) {
			w := contract.NewWorld(t)
			for _, line := range []string{"link add br7 up type bridge", "addr add 10.7.0.1/24 dev br7",
				"addr add fd00:7::1/64 dev br7 nodad"} {
				contract.Host(t, w, "ip %s", line)
			}
			begin := func(src, dst string, more ...string) {
				t.Helper()
				for _, proto := range []string{"tcp --state SYN_SENT", "udp"} {
					args := strings.Fields("-I -s " + src + " -d " + dst + " --timeout 100 -p " + proto +
						" --sport 53 --dport 5000")
					nstest.RunIn(t, w.Host.Path, "conntrack", append(args, more...)...)
				}
			}
			known := func() string {
				text := nstest.RunIn(t, w.Host.Path, "conntrack", "-L", "-f", "ipv4") +
					nstest.RunIn(t, w.Host.Path, "conntrack", "-L", "-f", "ipv6")
				var srcs []string
				for _, line := range strings.Split(text, "\n") {
					// The bridge's own IGMP is no matter of this test.
					if _, after, ok := strings.Cut(line, "src="); ok &&
						(strings.HasPrefix(line, "tcp") || strings.HasPrefix(line, "udp")) {
						srcs = append(srcs, strings.Fields(line)[0]+" "+strings.Fields(after)[0])
					}
				}
				slices.Sort(srcs)
				return strings.Join(srcs, ", ")
			}
			begin("10.7.0.9", "192.0.2.7")
			begin("fd00:7::9", "2001:db8::7")
			begin("10.7.0.5", "192.0.2.7", "--src-nat", "192.0.2.1")
			begin("10.99.0.2", "10.7.0.9")
			if n := strings.Count(known(), ","); n != 7 {
				t.Fatalf("conntrack has %s", known())
			}
			contract.Ensure(t, w, r)
			if got := known(); got != "tcp 10.7.0.5, tcp 10.99.0.2, udp 10.7.0.5, udp 10.99.0.2" {
				t.Errorf("conntrack has %s", got)
			}
			begin("10.7.0.9", "192.0.2.7") // by its own link, as has been asked
			contract.Ensure(t, w, r)
			if got := known(); !strings.Contains(got, "10.7.0.9") {
				t.Errorf("a second time: conntrack has %s", got)
			}
		})
	}
}
