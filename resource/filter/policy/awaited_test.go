package policy_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

func ingressOf(network, container, link, mode string, to ...netip.Prefix) policy.Ingress {
	return policy.Ingress{Owner: spec.Owner{Network: network, ContainerID: container, IfName: "eth0"}, Link: link,
		Policy: mode, To: to}
}

// TestAddressBehindRouter: an address that the host reaches by a link through a router is not one of the link's network.
func TestAddressBehindRouter(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Host(t, w, "ip link add br7 up type bridge")
	contract.Host(t, w, "ip addr add 10.7.0.1/24 dev br7")
	contract.Host(t, w, "ip route add 10.20.0.0/24 via 10.7.0.9")
	in := ingressOf("a", "c1", "br7", policy.Strict, contract.Prefix("10.7.0.2/24"), contract.Prefix("10.20.0.2/24"))
	contract.Ensure(t, w, in)
	contract.Verify(t, w, in)
	policed := setText(filtertest.NFT(t, w, "list table inet fairlead"), "policed_ip_24")
	if !strings.Contains(policed, "10.7.0.0") || strings.Contains(policed, "10.20.0.0") {
		t.Errorf("policed_ip_24 has %s", policed)
	}
}

// TestMulticastOfNetwork: what is for everybody arrives with a network's address by a link that is not the network's,
// for nobody answers it. What is for one host does not.
func TestMulticastOfNetwork(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	for _, line := range []string{"ip link add br7 up type bridge", "ip addr add 10.7.0.1/24 dev br7",
		"ip addr add fd00:7::1/64 dev br7 nodad", "ip link set veth1 up", "ip addr add 192.0.2.1/24 dev veth1",
		"ip addr add 2001:db8::1/64 dev veth1 nodad", "sysctl -qw net.ipv4.conf.all.rp_filter=0",
		"sysctl -qw net.ipv4.conf.veth1.rp_filter=0"} {
		contract.Host(t, w, "%s", line)
	}
	for _, line := range []string{"ip link set eth0 up", "ip addr add 10.7.0.9/24 dev eth0",
		"ip addr add 192.0.2.9/24 dev eth0", "ip addr add 2001:db8::9/64 dev eth0 nodad",
		"ip addr add fd00:7::9/64 dev eth0 nodad", "ip route replace default dev eth0",
		"ip -6 route replace default dev eth0"} {
		contract.Container(t, w, "%s", line)
	}
	contract.Ensure(t, w, ingressOf("a", "c1", "br7", policy.Strict, contract.Prefix("10.7.0.2/24"),
		contract.Prefix("fd00:7::2/64")))
	for _, c := range []struct{ network, from, one, all, other string }{
		{"udp4", "10.7.0.9:0", "192.0.2.1", "224.0.0.251", "192.0.2.9:0"},
		{"udp4", "10.7.0.9:0", "192.0.2.1", "255.255.255.255", "192.0.2.9:0"},
		{"udp6", "[fd00:7::9]:0", "2001:db8::1", "ff02::fb%eth0", "[2001:db8::9]:0"},
	} {
		t.Run(c.all, func(t *testing.T) {
			var at net.PacketConn
			if err := w.Host.Do(func() (err error) {
				at, err = net.ListenPacket(c.network, ":5000")
				return err
			}); err != nil {
				t.Fatal(err)
			}
			defer at.Close()
			join(t, at.(*net.UDPConn), contract.Host(t, w, "ip -o link show veth1"))
			at.SetReadDeadline(nstest.Deadline(t))
			// The last one arrives in any case, and ends the wait.
			for _, way := range [][2]string{{c.from, c.one}, {c.from, c.all}, {c.other, c.one}} {
				to := way[1]
				if err := w.Container.Do(func() error {
					from, err := net.ResolveUDPAddr(c.network, way[0])
					if err != nil {
						return err
					}
					d := net.Dialer{LocalAddr: from}
					conn, err := d.Dial(c.network, net.JoinHostPort(to, "5000"))
					if err != nil {
						return err
					}
					defer conn.Close()
					_, err = conn.Write([]byte(to))
					return err
				}); err != nil {
					t.Fatal(err)
				}
			}
			b := make([]byte, 100)
			if n, _, err := at.ReadFrom(b); err != nil || string(b[:n]) != c.all {
				t.Errorf("got %q, %v; want %s first", b[:n], err, c.all)
			}
		})
	}
}

// join has a socket get what is sent to the groups of the test by a link.
func join(t *testing.T, c *net.UDPConn, line string) {
	t.Helper()
	var link int
	if _, err := fmt.Sscanf(line, "%d:", &link); err != nil {
		t.Fatal(err)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var serr error
	err = raw.Control(func(fd uintptr) {
		if c.LocalAddr().(*net.UDPAddr).IP.To4() != nil {
			serr = unix.SetsockoptIPMreqn(int(fd), unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
				&unix.IPMreqn{Multiaddr: [4]byte{224, 0, 0, 251}, Ifindex: int32(link)})
			return
		}
		serr = unix.SetsockoptIPv6Mreq(int(fd), unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP,
			&unix.IPv6Mreq{Multiaddr: [16]byte{0xff, 2, 15: 0xfb}, Interface: uint32(link)})
	})
	if err != nil || serr != nil {
		t.Fatal(err, serr)
	}
}

// TestPolicyAwaitsLink: while a network's bridge is gone, its policy stays as it is, and waits for the bridge.
func TestPolicyAwaitsLink(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Host(t, w, "ip link add br7 up type bridge")
	contract.Host(t, w, "ip addr add 10.7.0.1/24 dev br7")
	in := ingressOf("net", "c1", "br7", policy.Strict, contract.Prefix("10.7.0.2/24"))
	closed := policy.FailClosed{Owner: in.Owner, Link: "br7", Policy: policy.Strict, To: in.To}
	contract.Ensure(t, w, in)
	contract.Ensure(t, w, closed)
	before := filtertest.Elements(t, w)
	contract.Host(t, w, "ip link del br7")
	for _, more := range [][]netip.Prefix{nil, {contract.Prefix("10.8.0.2/24")}} { // to these there is no way now
		in.To, closed.To = append(in.To, more...), append(closed.To, more...)
		contract.Verify(t, w, in)
		contract.Verify(t, w, closed)
		if changed, err := in.Ensure(t.Context(), w); changed || err != nil {
			t.Errorf("changed %v, %v", changed, err)
		}
		if changed, err := closed.Ensure(t.Context(), w); changed || err != nil {
			t.Errorf("rules: changed %v, %v", changed, err)
		}
	}
	if err := policy.SweepNetwork(t.Context(), w, "other", true); err != nil { // of which it is not
		t.Error(err)
	}
	contract.Verify(t, w, closed)
	if got := filtertest.Elements(t, w); got != before {
		t.Errorf("differs:%s", contract.Difference(before, got))
	}
}

// TestLeavingInterrupted: of an attachment whose DEL was killed after it had begun, the policy is needed no more. GC
// takes it off the bridge, and so does a second DEL.
func TestLeavingInterrupted(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Host(t, w, "ip link add br7 up type bridge")
	filtertest.MakeTables(t, w)
	before := filtertest.Elements(t, w)
	in, second := ingressOf("net", "c1", "br7", policy.Strict), ingressOf("net", "c2", "br7", policy.Strict)
	for what, end := range map[string]func() error{
		"DEL": func() error { return in.Remove(t.Context(), w) },
		"GC of another": func() error {
			contract.Ensure(t, w, second)
			return filtertest.Sweep(t.Context(), w, "net", []spec.Owner{in.Owner})
		},
	} {
		contract.Ensure(t, w, in)
		if err := w.Store.Put("policed", in.Owner, "br7 leaving"); err != nil {
			t.Fatal(err)
		}
		if link, err := policy.BridgeOf(w, in.Owner); link != "br7" || err != nil {
			t.Errorf("%s: the bridge is %q, %v", what, link, err)
		}
		if err := end(); err != nil {
			t.Error(what, err)
		}
		if got := filtertest.Elements(t, w); got != before {
			t.Errorf("%s left:%s", what, contract.Difference(before, got))
		}
	}
}

// TestAddWhileLeaving has an ADD come when the last DEL has seen that nobody needs the policy: it stays.
func TestAddWhileLeaving(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Host(t, w, "ip link add br7 up type bridge")
	reach(t, w, "br7", "10.7.0.0/24")
	to := contract.Prefix("10.7.0.2/24")
	in := ingressOf("net", "c1", "br7", policy.Strict, to)
	closed := policy.FailClosed{Owner: in.Owner, Link: "br7", Policy: policy.Strict, To: in.To}
	contract.Ensure(t, w, in)
	contract.Ensure(t, w, closed)
	before := filtertest.Elements(t, w)
	looked := 0
	if err := policy.ReleaseBridge(t.Context(), w, "net", "br7", func([8]byte) bool {
		looked++
		said := strings.Contains(filtertest.NFT(t, w, "list set inet fairlead owners"), `comment "leaving"`)
		if said != (looked > 1) {
			t.Errorf("look %d: the packet filter says that the network leaves: %v", looked, said)
		}
		return looked > 1 // somebody came
	}); err != nil {
		t.Error(err)
	}
	contract.Verify(t, w, in)
	contract.Verify(t, w, closed)
	if got := filtertest.Elements(t, w); got != before {
		t.Errorf("differs:%s", contract.Difference(before, got))
	}
}

// TestHoldersOfPolicy: of what a network gives up on its bridge, others get what they have recorded for this bridge,
// and nothing that would let in what one of them keeps out.
func TestHoldersOfPolicy(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Host(t, w, "ip link add br7 up type bridge")
	contract.Host(t, w, "ip link add br8 up type bridge")
	within := func() bool {
		return strings.Contains(setText(filtertest.NFT(t, w, "list table inet fairlead"), "within"), `"br7"`)
	}
	first := ingressOf("a", "c1", "br7", policy.Strict)
	second := ingressOf("b", "c1", "br7", policy.SameBridge)
	contract.Ensure(t, w, first)
	contract.Ensure(t, w, second)
	contract.Ensure(t, w, ingressOf("c", "c1", "br8", policy.Isolated))
	contract.Remove(t, w, first)
	contract.Verify(t, w, second)
	if !within() {
		t.Error("isolated on another bridge: br7 is not in within")
	}

	contract.Ensure(t, w, first)
	isolated := ingressOf("d", "c1", "br7", policy.Isolated)
	contract.Ensure(t, w, isolated)
	contract.Remove(t, w, first)
	contract.Verify(t, w, second)
	contract.Verify(t, w, isolated)
	if within() {
		t.Error("isolated on the bridge: br7 is in within")
	}
}
