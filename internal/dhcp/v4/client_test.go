package v4

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/kernel/rtnl"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// What is said to a server is what the reference says, and what the configuration adds.
func TestQuestions(t *testing.T) {
	w := newWire(t)
	c := w.acquire(t)
	q := w.next(t)
	if q.MessageType() != dhcpv4.MessageTypeDiscover || string(q.Options[optClientID]) != "\x00c1/net/eth0" ||
		string(q.Options[optHostname]) != "pod" ||
		string(q.Options[optVendorClass]) != "fairlead" ||
		string(q.Options[optRequested]) != string([]byte{1, 121, 3, 33, 6, 15, 119, 26, 42, 58, 59}) ||
		binary.BigEndian.Uint16(q.Options[optMaxSize]) != 1500 || q.IsBroadcast() {
		t.Errorf("DISCOVER %s", q.Summary())
	}
	w.send(t, answerTo(q, dhcpv4.MessageTypeOffer).ToBytes())
	q = w.next(t)
	if q.MessageType() != dhcpv4.MessageTypeRequest || string(q.Options[optServer]) != string(own.AsSlice()) ||
		string(q.Options[optAddress]) != string(leased.AsSlice()) || !q.ClientIPAddr.IsUnspecified() {
		t.Errorf("REQUEST %s", q.Summary())
	}
	before := time.Now()
	w.send(t, answerTo(q, dhcpv4.MessageTypeAck).ToBytes())
	g := <-c
	if g.err != nil {
		t.Fatal(g.err)
	}
	l := g.lease
	if l.Addresses[0].Prefix != netip.PrefixFrom(leased, 24) || l.Valid != 100*time.Second || l.T1 != 50*time.Second ||
		l.T2 != 87500*time.Millisecond ||
		l.Server.Addr != own || l.Server.MAC != w.mac.String() || l.Asked.After(before) {
		t.Errorf("lease %+v", l)
	}

	// To renew it: from the address to its server alone.
	if err := rtnl.AddAddr(w.link.NS, w.link.Index, kernelAddr(l)); err != nil {
		t.Fatal(err)
	}
	neighbour(t, w, own)
	c = do(t, func(ctx context.Context) (*dhcp.Lease,
		error) {
		return patient().Renew(ctx, w.link, owner(), l)
	})
	q = w.next(t)
	if q.dst != own || !q.ClientIPAddr.Equal(leased.AsSlice()) || q.Options[optServer] != nil ||
		q.Options[optAddress] != nil || q.Options[optHostname] == nil {
		t.Errorf("to renew, to %v: %s", q.dst, q.Summary())
	}
	w.send(t, answerTo(q, dhcpv4.MessageTypeAck).ToBytes())
	if g := <-c; g.err != nil {
		t.Error(g.err)
	}
	// To rebind and to confirm it: to all.
	for name, f := range map[string]func(context.Context) (*dhcp.Lease, error){
		"rebind":  func(ctx context.Context) (*dhcp.Lease, error) { return patient().Rebind(ctx, w.link, owner(), l) },
		"confirm": func(ctx context.Context) (*dhcp.Lease, error) { return patient().Confirm(ctx, w.link, owner(), l) },
	} {
		c = do(t, f)
		q = w.next(t)
		if q.dst.As4() != [4]byte{255, 255, 255, 255} || q.ClientIPAddr.IsUnspecified() != (name == "confirm") ||
			(q.Options[optAddress] != nil) != (name == "confirm") || q.Options[optServer] != nil {
			t.Errorf("to %s, to %v: %s", name, q.dst, q.Summary())
		}
		w.send(t, answerTo(q, dhcpv4.MessageTypeAck).ToBytes())
		if g := <-c; g.err != nil || g.lease.Addresses[0].Prefix.Addr() != leased {
			t.Error(name, g.err)
		}
	}
	if err := patient().Release(t.Context(), w.link, owner(), l); err != nil {
		t.Fatal(err)
	}
	q = w.next(t)
	if q.MessageType() != dhcpv4.MessageTypeRelease || q.dst != own || !q.ClientIPAddr.Equal(leased.AsSlice()) ||
		string(q.Options[optClientID]) != "\x00c1/net/eth0" || q.Options[optRequested] != nil {
		t.Errorf("RELEASE to %v: %s", q.dst, q.Summary())
	}
}

// Whatever else is on the wire, the client takes the answer that is for it, and no other.
func TestHostile(t *testing.T) {
	w := newWire(t)
	c := w.acquire(t)
	q := w.next(t)
	none := func(*dhcpv4.DHCPv4) {}
	evil := answerTo(q, dhcpv4.MessageTypeOffer,
		func(r *dhcpv4.DHCPv4) { r.YourIPAddr = netip.MustParseAddr("10.66.6.6").AsSlice() })
	spoil := func(f func(*dhcpv4.DHCPv4)) []byte {
		r := answerTo(q, dhcpv4.MessageTypeOffer)
		r.YourIPAddr = evil.YourIPAddr
		f(r)
		return r.ToBytes()
	}
	bad := map[string][]byte{
		"another transaction":   spoil(func(r *dhcpv4.DHCPv4) { r.TransactionID[0] ^= 1 }),
		"another MAC":           spoil(func(r *dhcpv4.DHCPv4) { r.ClientHWAddr = []byte{2, 0, 0, 0, 0, 1} }),
		"another client":        spoil(func(r *dhcpv4.DHCPv4) { r.Options[optClientID] = []byte("\x00c2/net/eth0") }),
		"a request":             spoil(func(r *dhcpv4.DHCPv4) { r.OpCode = dhcpv4.OpcodeBootRequest }),
		"an ACK":                spoil(func(r *dhcpv4.DHCPv4) { r.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeAck)) }),
		"a NAK":                 spoil(func(r *dhcpv4.DHCPv4) { r.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeNak)) }),
		"no type":               spoil(func(r *dhcpv4.DHCPv4) { delete(r.Options, 53) }),
		"nobody's":              spoil(func(r *dhcpv4.DHCPv4) { delete(r.Options, optServer) }),
		"no mask":               spoil(func(r *dhcpv4.DHCPv4) { delete(r.Options, optMask) }),
		"a mask with holes":     spoil(func(r *dhcpv4.DHCPv4) { r.Options[optMask] = []byte{255, 0, 255, 0} }),
		"a mask of everything":  spoil(func(r *dhcpv4.DHCPv4) { r.Options[optMask] = []byte{0, 0, 0, 0} }),
		"half of everything":    spoil(func(r *dhcpv4.DHCPv4) { r.Options[optMask] = []byte{128, 0, 0, 0} }),
		"more than a class":     spoil(func(r *dhcpv4.DHCPv4) { r.Options[optMask] = []byte{254, 0, 0, 0} }),
		"a subnet of 0.0.0.0":   spoil(func(r *dhcpv4.DHCPv4) { r.YourIPAddr = []byte{0, 0, 0, 5} }),
		"no address":            spoil(func(r *dhcpv4.DHCPv4) { r.YourIPAddr = []byte{0, 0, 0, 0} }),
		"multicast":             spoil(func(r *dhcpv4.DHCPv4) { r.YourIPAddr = []byte{224, 0, 0, 1} }),
		"loopback":              spoil(func(r *dhcpv4.DHCPv4) { r.YourIPAddr = []byte{127, 0, 0, 1} }),
		"the subnet's own":      spoil(func(r *dhcpv4.DHCPv4) { r.YourIPAddr = []byte{10, 9, 0, 0} }),
		"the subnet's last":     spoil(func(r *dhcpv4.DHCPv4) { r.YourIPAddr = []byte{10, 9, 0, 255} }),
		"cut short":             spoil(none)[:100],
		"cut in an option":      spoil(none)[:245],
		"without a cookie":      append(spoil(none)[:236], 0, 0, 0, 0),
		"an option of its size": append(spoil(none)[:240], 53, 255, 2),
		"nothing":               nil,
		"a byte":                {2},
		"noise":                 noise(300),
		"more than fits":        append(spoil(func(r *dhcpv4.DHCPv4) { r.TransactionID[1] ^= 1 }), noise(1100)...),
	}
	for name, b := range bad {
		t.Log(name)
		w.send(t, b)
	}
	// Whole frames that are wrong below: a sum, a length, a fragment, another port.
	for _, f := range []func([]byte){
		func(b []byte) { b[26] ^= 1 },
		func(b []byte) { b[10] ^= 1 },
		func(b []byte) { binary.BigEndian.PutUint16(b[2:], 9000) },
		func(b []byte) { binary.BigEndian.PutUint16(b[24:], 4) },
		func(b []byte) { b[0] = 0x4f },
		func(b []byte) { b[6] = 0x20 },
	} {
		b := frame(own, netip.AddrFrom4([4]byte{255, 255, 255, 255}), evil.ToBytes())
		binary.BigEndian.PutUint16(b[20:], serverPort)
		binary.BigEndian.PutUint16(b[22:], clientPort)
		f(b)
		if err := w.server.Send(b, w.link.MAC); err != nil {
			t.Fatal(err)
		}
	}
	w.send(t, answerTo(q, dhcpv4.MessageTypeOffer).ToBytes())
	for q = w.next(t); q.MessageType() == dhcpv4.MessageTypeDiscover; q = w.next(t) {
	}
	if string(q.Options[optAddress]) != string(leased.AsSlice()) {
		t.Fatalf("it took %v", netip.AddrFrom4([4]byte(q.Options[optAddress])))
	}
	// An ACK and a NAK of somebody whose offer was not taken are none to this.
	stranger := func(r *dhcpv4.DHCPv4) { r.Options[optServer] = other.AsSlice(); r.YourIPAddr = evil.YourIPAddr }
	w.sendFrom(t, other, answerTo(q, dhcpv4.MessageTypeNak, stranger).ToBytes())
	w.sendFrom(t, other, answerTo(q, dhcpv4.MessageTypeAck, stranger).ToBytes())
	w.send(t, answerTo(q, dhcpv4.MessageTypeAck).ToBytes())
	if g := <-c; g.err != nil || g.lease.Addresses[0].Prefix.Addr() != leased {
		t.Errorf("got %+v", g)
	}
}

func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// An address that somebody else has is declined, where conflicts are looked for, and another one taken.
func TestConflict(t *testing.T) {
	w := newWire(t)
	nstest.RunIn(t, w.serverPath, "ip", "addr", "add", leased.String()+"/24", "dev", "eth0") // whose kernel answers
	a := owner()
	a.Probe, a.Broadcast = true, true
	c := do(t, func(ctx context.Context) (*dhcp.Lease, error) { return patient().Acquire(ctx, w.link, a) })
	var seen []string
	for range 10 {
		q := w.next(t)
		seen = append(seen, q.MessageType().String())
		second := func(r *dhcpv4.DHCPv4) {
			if len(seen) > 3 {
				r.YourIPAddr = netip.MustParseAddr("10.9.0.78").AsSlice()
			}
		}
		switch q.MessageType() {
		case dhcpv4.MessageTypeDiscover:
			if !q.IsBroadcast() {
				t.Error("no broadcast is asked for")
			}
			w.send(t, answerTo(q, dhcpv4.MessageTypeOffer, second).ToBytes())
		case dhcpv4.MessageTypeRequest:
			w.send(t, answerTo(q, dhcpv4.MessageTypeAck, second).ToBytes())
		case dhcpv4.MessageTypeDecline:
			if string(q.Options[optAddress]) != string(leased.AsSlice()) ||
				string(q.Options[optServer]) != string(own.AsSlice()) || !q.ClientIPAddr.IsUnspecified() ||
				q.Options[optRequested] != nil {
				t.Errorf("DECLINE %s", q.Summary())
			}
		}
		if len(seen) == 5 {
			break
		}
	}
	if got := strings.Join(seen, " "); got != "DISCOVER REQUEST DECLINE DISCOVER REQUEST" {
		t.Errorf("it says %s", got)
	}
	if g := <-c; g.err != nil || g.lease.Addresses[0].Prefix.String() != "10.9.0.78/24" {
		t.Errorf("got %+v", g)
	}
}

// A NAK to a REQUEST begins anew; one to a lease that is held ends it, but the word of its own server counts more.
func TestRefused(t *testing.T) {
	w := newWire(t)
	c := w.acquire(t)
	q := w.next(t)
	w.send(t, answerTo(q, dhcpv4.MessageTypeOffer).ToBytes())
	q = w.next(t)
	w.send(t, answerTo(q, dhcpv4.MessageTypeNak).ToBytes())
	if q = w.next(t); q.MessageType() != dhcpv4.MessageTypeDiscover {
		t.Fatalf("after a NAK it says %v", q.MessageType())
	}
	w.send(t, answerTo(q, dhcpv4.MessageTypeOffer).ToBytes())
	q = w.next(t)
	w.send(t, answerTo(q, dhcpv4.MessageTypeAck).ToBytes())
	l := (<-c).lease
	if l == nil {
		t.Fatal("no lease")
	}
	confirm := func(ctx context.Context) (*dhcp.Lease, error) { return patient().Confirm(ctx, w.link, owner(), l) }
	stranger := func(r *dhcpv4.DHCPv4) { r.Options[optServer] = other.AsSlice() }

	c = do(t, confirm)
	q = w.next(t)
	w.sendFrom(t, other, answerTo(q, dhcpv4.MessageTypeNak, stranger).ToBytes())
	w.send(t, answerTo(q, dhcpv4.MessageTypeAck).ToBytes())
	if g := <-c; g.err != nil {
		t.Errorf("a stranger's NAK before the ACK: %v", g.err)
	}
	c = do(t, func(ctx context.Context) (*dhcp.Lease, error) { return quick().Confirm(ctx, w.link, owner(), l) })
	q = w.next(t)
	w.sendFrom(t, other, answerTo(q, dhcpv4.MessageTypeNak, stranger,
		func(r *dhcpv4.DHCPv4) { r.Options[optMessage] = []byte("wrong network") }).ToBytes())
	if g := <-c; !errors.Is(g.err, dhcp.ErrRefused) || !strings.Contains(g.err.Error(), `server 10.9.0.2: "wrong network"`) {
		t.Errorf("a NAK, and nobody else: %v", g.err)
	}
}

// Nobody, and somebody whose answers are of no use, are an end in time; the latter is told of.
func TestNobody(t *testing.T) {
	w := newWire(t)
	ask := func(within time.Duration) chan got {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		t.Cleanup(cancel)
		return doIn(ctx, func(ctx context.Context) (*dhcp.Lease, error) { return quick().Acquire(ctx, w.link, owner()) })
	}
	if g := <-ask(time.Second); !errors.Is(g.err, dhcp.ErrNoServer) ||
		g.err.Error() != "link eth0: no DHCP server answered" {
		t.Errorf("got %v", g.err)
	}
	const odd = "link eth0: no DHCP server answered with a lease: server 10.9.0.1: the answer has no subnet mask (option 1)"
	var g got
	for bound := 3 * time.Second; time.Now().Before(nstest.Deadline(t)); bound *= 2 { // a busy machine's server may be late
		c := ask(bound)
		for g = (got{}); g.err == nil && g.lease == nil; {
			// The first ones are of the client that has given up, and who answers those answers nobody.
			if q, err := w.hearUntil(t, time.Now().Add(50*time.Millisecond)); err == nil {
				w.send(t, answerTo(q, dhcpv4.MessageTypeOffer,
					func(r *dhcpv4.DHCPv4) { delete(r.Options, optMask) }).ToBytes())
			}
			select {
			case g = <-c:
			default:
			}
		}
		if g.err == nil || g.err.Error() == odd {
			break
		}
	}
	if !errors.Is(g.err, dhcp.ErrNoServer) || g.err.Error() != odd {
		t.Errorf("got %v", g.err)
	}
}
