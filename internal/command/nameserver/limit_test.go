package nameserver

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/resource/names"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/miekg/dns"
)

// second adds the network net2 to the rig: the gateway 10.2.0.1, and a container with 10.2.0.2.
func (r *rig) second() (netns string) {
	r.Helper()
	netns = nstest.NewNS(r)
	nstest.Run(r, "sh", "-ec", "ip link add gw1 type veth peer name eth0 netns "+strings.TrimPrefix(netns, "/run/netns/")+
		"; ip addr add 10.2.0.1/16 dev gw1; ip link set gw1 up")
	r.Cleanup(func() { nstest.Run(r, "ip", "link", "del", "gw1") })
	nstest.RunIn(r, netns, "sh", "-ec",
		"ip addr add 10.2.0.2/16 dev eth0; ip link set eth0 up; ip route add default via 10.2.0.1")
	o := spec.Owner{Network: "net2", ContainerID: "other", IfName: "eth0"}
	rec := names.Record{Network: o.Network, ContainerID: o.ContainerID, IfName: o.IfName, Names: []string{"other"},
		Addrs: addrs("10.2.0.2/16"), Gateways: []netip.Addr{netip.MustParseAddr("10.2.0.1")}}
	if err := r.memory.Put(names.Kept, o, rec); err != nil {
		r.Fatal(err)
	}
	q := names.Question{Network: o.Network, Record: names.RecordOf(o.Network, identity.OwnerHash(o))}
	if err := names.Ask(r.Context(), Socket(r.memory), q); err != nil {
		r.Fatal(err)
	}
	return netns
}

// wants asks from a namespace, and expects an answer.
func (r *rig) wants(netns, network, gateway, name, want string) {
	r.Helper()
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), dns.TypeA)
	var a *dns.Msg
	if err := nstest.In(netns, func() (err error) {
		c := dns.Client{Net: network, Timeout: 5 * time.Second}
		for end := nstest.Deadline(r); ; { // a datagram may be lost
			a, _, err = c.Exchange(m, net.JoinHostPort(gateway, "53"))
			if err == nil || !os.IsTimeout(err) || time.Now().After(end) {
				break
			}
		}
		return err
	}); err != nil {
		r.Fatalf("%s of %s by %s: %v", name, gateway, network, err)
	}
	if got := said(a); got != want {
		r.Fatalf("%s of %s by %s: %q, want %q", name, gateway, network, got, want)
	}
}

// A container that gives itself addresses gets more than a client's part of what the server forwards and of its
// connections, but not what the containers of other networks need, whichever gateway it asks.
func TestClientWithManyAddresses(t *testing.T) {
	r := newRig(t)
	var never atomic.Int32
	newUpstream(t, "127.0.0.5", func(w dns.ResponseWriter, q, m *dns.Msg) {
		if strings.HasPrefix(q.Question[0].Name, "www.") {
			says("192.0.2.1")(w, q, m)
		} else {
			never.Add(1)
		}
	})
	resolv(t, "127.0.0.5")
	r.record(true, "c1", names.Record{Addrs: addrs("10.1.0.2/16")})
	other := r.second()
	const clients = 48
	var add strings.Builder
	for i := range clients {
		fmt.Fprintf(&add, "addr add 10.1.1.%d/16 dev eth0\n", i)
	}
	nstest.RunIn(t, r.netns, "sh", "-ec", "ip -batch - <<'E'\n"+add.String()+"E")

	var open []net.Conn
	t.Cleanup(func() {
		for _, c := range open {
			c.Close()
		}
	})
	dial := func(network, gateway string, i int) {
		t.Helper()
		from := &net.TCPAddr{IP: net.IPv4(10, 1, 1, byte(i))}
		d := net.Dialer{Deadline: nstest.Deadline(t), LocalAddr: from}
		if network == "udp" {
			d.LocalAddr = &net.UDPAddr{IP: from.IP}
		}
		c, err := d.Dial(network, net.JoinHostPort(gateway, "53"))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	for _, gateway := range []string{gw4, "10.2.0.1"} {
		if err := nstest.In(r.netns, func() error {
			for i := range clients {
				for range mostConnsOfOne {
					dial("tcp", gateway, i)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			r.wants(other, "tcp", "10.2.0.1", "other", "10.2.0.2")
		}
	}

	held, begun := len(open), time.Now()
	if err := nstest.In(r.netns, func() error {
		for i := range 12 {
			dial("udp", gw4, i)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for n := range mostOfAClient {
		for i, c := range open[held:] {
			m := new(dns.Msg)
			m.SetQuestion(fmt.Sprintf("n%d.c%d.example.com.", n, i), dns.TypeA)
			b, _ := m.Pack()
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.wants(r.netns, "udp", gw4, "c1", "10.1.0.2") // all queries before are read then
	for range 10 {
		r.wants(other, "udp", "10.2.0.1", "www.example.com", "192.0.2.1")
	}
	// Each takes all the time that it may, and frees its place for another.
	turns := int(time.Since(begun)/forwardTime) + 1
	if got, most := int(never.Load()), turns*mostForwards/shares; got > most {
		t.Errorf("%d queries of one network were forwarded, want at most %d", got, most)
	}
}
