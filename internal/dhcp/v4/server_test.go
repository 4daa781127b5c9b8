package v4

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// A wire is two namespaces with a cable between them: a client's and that of servers which the test plays.
type wire struct {
	link   dhcp.Link
	server *packet.UDP4Conn
	mac    net.HardwareAddr

	serverPath string
	last       spoken // that next has returned
}

var (
	own    = netip.MustParseAddr("10.9.0.1")
	other  = netip.MustParseAddr("10.9.0.2")
	leased = netip.MustParseAddr("10.9.0.77")
)

func newWire(t *testing.T) *wire {
	t.Helper()
	client, server := nstest.NewNS(t), nstest.NewNS(t)
	nstest.Run(t, "ip", "link", "add", "eth0", "netns", filepath.Base(client), "type", "veth", "peer", "name", "eth0",
		"netns", filepath.Base(server))
	nstest.RunIn(t, client, "ip", "link", "set", "eth0", "up")
	nstest.RunIn(t, server, "ip", "link", "set", "eth0", "up")
	open := func(path string) (*kernel.NS, *rtnl.Link) {
		ns, err := kernel.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(ns.Close)
		l, err := rtnl.LinkByName(ns, "eth0")
		if err != nil {
			t.Fatal(err)
		}
		return ns, l
	}
	ns, l := open(client)
	sns, sl := open(server)
	conn, err := packet.ListenUDP4(sns, sl.Index, serverPort)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return &wire{link: dhcp.Link{NS: ns, Name: "eth0", Index: l.Index, MAC: l.MAC, MTU: l.MTU}, server: conn, mac: sl.MAC,
		serverPath: server}
}

// A question is what a server received.
type question struct {
	*dhcpv4.DHCPv4
	dst netip.Addr
}

// next is the next message of a client that does not say the last one again, as clients do on a slow machine.
func (w *wire) next(t *testing.T) question {
	t.Helper()
	for {
		q := w.hear(t)
		if is := (spoken{q.TransactionID, q.MessageType()}); is != w.last {
			w.last = is
			return q
		}
	}
}

// hear is the next message of a client, whichever.
func (w *wire) hear(t *testing.T) question {
	t.Helper()
	q, err := w.hearUntil(t, nstest.Deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// hearUntil is the next message of a client, or os.ErrDeadlineExceeded.
func (w *wire) hearUntil(t *testing.T, end time.Time) (q question, err error) {
	t.Helper()
	buf := make([]byte, 2048)
	n, _, _, err := w.server.Receive(t.Context(), end, buf)
	if err != nil {
		return q, err
	}
	m, err := dhcpv4.FromBytes(buf[28:n])
	if err != nil {
		t.Fatal(err)
	}
	return question{m, netip.AddrFrom4([4]byte(buf[16:20]))}, nil
}

// spoken is what tells a message from those before it.
type spoken struct {
	dhcpv4.TransactionID
	dhcpv4.MessageType
}

// answer is a server's to q, which change may spoil.
func answerTo(q question, typ dhcpv4.MessageType, change ...func(*dhcpv4.DHCPv4)) *dhcpv4.DHCPv4 {
	r, _ := dhcpv4.NewReplyFromRequest(q.DHCPv4, dhcpv4.WithMessageType(typ))
	r.YourIPAddr = leased.AsSlice()
	r.Options[optServer] = own.AsSlice()
	r.Options[optMask] = []byte{255, 255, 255, 0}
	r.Options[optLeaseTime] = binary.BigEndian.AppendUint32(nil, 100)
	for _, f := range change {
		f(r)
	}
	return r
}

func (w *wire) send(t *testing.T, payload []byte) {
	t.Helper()
	w.sendFrom(t, own, payload)
}

func (w *wire) sendFrom(t *testing.T, from netip.Addr, payload []byte) {
	t.Helper()
	b := frame(from, netip.AddrFrom4([4]byte{255, 255, 255, 255}), payload)
	binary.BigEndian.PutUint16(b[20:], serverPort)
	binary.BigEndian.PutUint16(b[22:], clientPort) // the sum is of both
	if err := w.server.Send(b, net.HardwareAddr{255, 255, 255, 255, 255, 255}); err != nil {
		t.Fatal(err)
	}
}

func owner() dhcp.Ask {
	return dhcp.Ask{Owner: spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}, Hostname: "pod",
		VendorClass: "fairlead", Request: dhcp.Requested4()}
}

type got struct {
	lease *dhcp.Lease
	err   error
}

// do runs a method of the client beside the server that the test is.
func do(t *testing.T, f func(context.Context) (*dhcp.Lease, error)) chan got {
	return doIn(nstest.Context(t), f)
}

func doIn(ctx context.Context, f func(context.Context) (*dhcp.Lease, error)) chan got {
	c := make(chan got, 1)
	go func() {
		l, err := f(ctx)
		c <- got{l, err}
	}()
	return c
}

// patient is a client that waits long enough for the server that the test is, also on a busy machine.
func patient() Client { return Client{First: 3 * time.Second} }

// quick is a client that does not wait long.
func quick() Client { return Client{First: 100 * time.Millisecond, Max: 400 * time.Millisecond} }

func (w *wire) acquire(t *testing.T) chan got {
	return do(t, func(ctx context.Context) (*dhcp.Lease,
		error) {
		return patient().Acquire(ctx, w.link, owner())
	})
}
