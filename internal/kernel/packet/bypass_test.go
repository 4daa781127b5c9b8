package packet

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// A datagram that bypasses the routes arrives with the addresses that it was given, and the receiver learns by which
// link it came. The kernel of the receiver compares both checksums.
func TestSendUDP(t *testing.T) {
	here, there := contract.OpenNS(t), contract.OpenNS(t)
	nstest.RunIn(t, here.Path, "sh", "-ec", "ip link set lo up; ip link add v0 type veth peer name v1 netns "+there.Path+
		"; ip link set v0 up")
	nstest.RunIn(t, there.Path, "sh", "-ec", "ip link set lo up; ip link set v1 up; ip addr add 192.0.2.1/32 dev lo; "+
		"ip addr add 2001:db8::1/128 dev lo nodad; sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.v1.rp_filter=0; "+
		"ip route add 198.51.100.0/24 dev v1; ip route add 2001:db8:1::/64 dev v1")
	v0, err := rtnl.IndexOf(here, "v0")
	if err != nil {
		t.Fatal(err)
	}
	v1, err := rtnl.LinkByName(there, "v1")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to, data string }{
		{"198.51.100.7:8473", "192.0.2.1:8473", "even"},
		{"198.51.100.7:8473", "192.0.2.1:8473", "odd"},
		{"[2001:db8:1::7]:8473", "[2001:db8::1]:8473", "even"},
		{"[2001:db8:1::7]:8473", "[2001:db8::1]:8473", ""},
	} {
		from, to := netip.MustParseAddrPort(c.from), netip.MustParseAddrPort(c.to)
		conn, err := ListenUDP(there, to)
		if err != nil {
			t.Fatal(err)
		}
		buf, oob := make([]byte, 100), make([]byte, 100)
		for end := nstest.Deadline(t); ; { // a busy machine loses packets
			if err := SendUDP(here, v0, net.HardwareAddr(v1.MAC), from, to, []byte(c.data)); err != nil {
				t.Fatal(err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			n, oobn, _, sender, err := conn.ReadMsgUDPAddrPort(buf, oob)
			switch {
			case os.IsTimeout(err) && time.Now().Before(end):
				continue
			case err != nil:
				t.Fatalf("%v: %v\n%s", c, err, nstest.RunIn(t, there.Path, "cat", "/proc/net/snmp"))
			case string(buf[:n]) != c.data || sender != from || ArrivedBy(oob[:oobn]) != v1.Index:
				t.Errorf("%q from %v by %d; want %+v by %d", buf[:n], sender, ArrivedBy(oob[:oobn]), c, v1.Index)
			}
			break
		}
		conn.Close()
	}
}
