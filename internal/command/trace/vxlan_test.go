package trace

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/command/packetfilter"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// A packet is followed into a packet of VXLAN, and out of one. Rules see what is inside as the kernel shows it to them.
func TestVXLAN(t *testing.T) {
	nstest.Need(t, "vxlan", "id", "1", "dstport", "1")
	far := nstest.NewNS(t)
	nstest.Run(t, "sh", "-ec", `sysctl -qw net.ipv4.ip_forward=1; ip link set lo up
		ip link add up0 type veth peer name far0 netns `+filepath.Base(far)+`; ip link set up0 up; ip -n `+filepath.Base(far)+` link set far0 up; ip addr add 192.0.2.1/24 dev up0
		ip neigh replace 192.0.2.2 lladdr 02:00:00:00:00:02 dev up0 nud reachable
		ip link add vx0 address 02:00:00:00:00:0a type vxlan id 7 dstport 8472 local 192.0.2.1 nolearning; ip link set vx0 up
		ip addr add 10.1.0.1/32 dev vx0; ip route add 10.2.0.0/24 via 10.9.0.9 dev vx0 onlink
		ip neigh replace 10.9.0.9 lladdr 02:00:00:00:00:0b dev vx0 nud permanent
		bridge fdb replace 02:00:00:00:00:0b dev vx0 dst 192.0.2.2 self permanent`)
	out := Question{Dst: netip.MustParseAddr("10.2.0.2"), Proto: kernel.ICMP}
	inner := packetfilter.Packet{Src: netip.MustParseAddr("10.2.0.2"), Dst: netip.MustParseAddr("10.1.0.1"), Proto: kernel.ICMP,
		DstMAC: [6]byte{2, 5: 0xa}}
	in := Question{In: "up0", Src: netip.MustParseAddr("192.0.2.2"), Dst: netip.MustParseAddr("192.0.2.1"), Proto: kernel.UDP,
		DstPort: 8472, Inner: &inner, VNI: 7}
	otherID, otherMAC, elsewhere := in, in, inner
	otherID.VNI = 8
	elsewhere.DstMAC[5] = 0xc
	otherMAC.Inner = &elsewhere
	rule := func(hook, match string) string {
		return "nft 'table inet x { chain c { type filter hook " + hook + " priority 0; " + match + " drop; }; }'"
	}
	const mend = "nft delete table inet x"
	for _, c := range []struct {
		name, spoil, mend string
		q                 Question
		state             State
		wants             []string
	}{
		{"out", "", "", out, Passes, []string{"vx0 puts it into UDP to 192.0.2.2 port 8472 (VXLAN id 7)", "leaves by up0"}},
		{"no forwarding entry", "bridge fdb del 02:00:00:00:00:0b dev vx0 self",
			"bridge fdb replace 02:00:00:00:00:0b dev vx0 dst 192.0.2.2 self permanent", out, Stops, []string{"no forwarding entry"}},
		{"no neighbour", "ip neigh del 10.9.0.9 dev vx0",
			"ip neigh replace 10.9.0.9 lladdr 02:00:00:00:00:0b dev vx0 nud permanent", out, Stops, []string{"10.9.0.9 on vx0 is not known"}},
		{"a rule about what goes out", rule("output", "udp dport 8472 @th,96,24 7 @th,336,32 0x0a010001"), mend, out, Stops,
			[]string{"output: dropped by table inet x"}},
		{"a rule about what another one sends", rule("output", "udp dport 8472 @th,96,24 8"), mend, out, Passes, nil},
		{"in", "", "", in, Passes, []string{"vx0 takes the packet that is inside", "10.1.0.1 is an address of its own"}},
		{"another identifier", "", "", otherID, Stops, []string{"no device of VXLAN that is up has id 8 and port 8472"}},
		{"another MAC address", "", "", otherMAC, Stops, []string{"vx0 is at 02:00:00:00:00:0a, and the packet is for 02:00:00:00:00:0c"}},
		{"a rule about what comes in", rule("input", "udp dport 8472 @th,224,16 0x0800 @th,368,32 0x0a010001"), mend, in, Stops,
			[]string{"input: dropped by table inet x"}},
		{"a rule about the way back", rule("prerouting", "iifname up0 fib saddr . iif oif missing"), mend, in, Passes, nil},
		{"a source without a way back", "ip route add blackhole default; " + rule("prerouting", "iifname up0 fib saddr . iif oif exists"),
			"ip route del blackhole default; " + mend, in, Stops, []string{"prerouting: dropped by table inet x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			nstest.Run(t, "sh", "-ec", c.spoil)
			defer nstest.Run(t, "sh", "-ec", c.mend)
			host, err := kernel.Open("")
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			answer, err := (&Tracer{Host: host}).Trace(c.q)
			if err != nil {
				t.Fatal(err)
			}
			var said []string
			for _, h := range answer.Hops {
				said = append(said, string(h.State)+" "+h.Text)
			}
			text := strings.Join(said, "\n")
			if answer.Verdict != c.state {
				t.Errorf("%s: %s\n%s", answer.Verdict, answer.Why, text)
			}
			for _, want := range c.wants {
				if !strings.Contains(text, want) {
					t.Errorf("want %q:\n%s", want, text)
				}
			}
		})
	}
}
