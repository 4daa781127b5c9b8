package v6

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

func (n lan) open() (*kernel.NS, int) {
	n.t.Helper()
	ns, err := kernel.Open(n.path)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(ns.Close)
	index, err := rtnl.IndexOf(ns, "br0")
	if err != nil {
		n.t.Fatal(err)
	}
	return ns, index
}

// router answers router solicitations on the lan with an advertisement.
func (n lan) router(a *advert) {
	n.t.Helper()
	ns, index := n.open()
	n.sysctl("net/ipv6/conf/br0/forwarding", "1") // else it is no member of the group that is asked
	c, err := packet.ListenICMP6(ns, index, "br0", routerSolicitation)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	n.t.Cleanup(func() { stop(); <-done; c.Close() })
	go func() {
		defer close(done)
		var buf [1500]byte
		for {
			_, _, _, err := c.Receive(ctx, time.Time{}, buf[:])
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			c.Send(a.bytes(), netip.MustParseAddrPort("[ff02::1]:0"))
		}
	}()
}

// bytes is a on the wire.
func (a *advert) bytes() []byte {
	b := []byte{routerAdvertisement, 4: 64, 15: 0}
	if a.managed {
		b[5] |= 0x80
	}
	if a.other {
		b[5] |= 0x40
	}
	b[5] |= byte(a.preference&3) << 3
	binary.BigEndian.PutUint16(b[6:], uint16(a.lifetime/time.Second))
	for _, p := range a.prefixes {
		o := []byte{ndPrefix, 4, byte(p.prefix.Bits()), 0x80, 31: 0}
		if p.auto {
			o[3] |= 0x40
		}
		binary.BigEndian.PutUint32(o[4:], 3600)
		binary.BigEndian.PutUint32(o[8:], 1800)
		copy(o[16:], p.prefix.Addr().AsSlice())
		b = append(b, o...)
	}
	if a.mtu > 0 {
		b = binary.BigEndian.AppendUint32(append(b, ndMTU, 1, 0, 0), uint32(a.mtu))
	}
	for _, s := range a.dns {
		b = append(append(b, ndDNS, 3, 0, 0, 0, 0, 14, 16), s.AsSlice()...)
	}
	for _, d := range a.search {
		text := append(label(d), 0)
		text = append(text, make([]byte, 7-(len(text)+7)%8)...)
		b = append(append(b, ndSearch, byte(1+len(text)/8), 0, 0, 0, 0, 14, 16), text...)
	}
	return b
}

// server answers DHCPv6 messages as a test wants it; the answers it returns are sent in order. Heard says how many
// there were of a type.
func (n lan) server(answer func(m *dhcpv6.Message) [][]byte) (heard func(dhcpv6.MessageType) int) {
	n.t.Helper()
	var mu sync.Mutex
	count := map[dhcpv6.MessageType]int{}
	ns, index := n.open()
	var conn *net.UDPConn
	err := ns.Do(func() (err error) {
		conn, err = net.ListenMulticastUDP("udp6", &net.Interface{Index: index},
			&net.UDPAddr{IP: net.ParseIP("ff02::1:2"), Port: serverPort})
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	send, err := packet.ListenUDP6(ns, index, "br0", netip.MustParseAddrPort("[::]:5547"))
	if err != nil {
		n.t.Fatal(err)
	}
	done := make(chan struct{})
	n.t.Cleanup(func() { conn.Close(); <-done; send.Close() })
	go func() {
		defer close(done)
		buf := make([]byte, 65536)
		for {
			k, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			m, err := dhcpv6.MessageFromBytes(buf[:k])
			if err != nil {
				n.t.Errorf("the client sent %x: %v", buf[:k], err)
				continue
			}
			mu.Lock()
			count[m.MessageType]++
			mu.Unlock()
			for _, b := range answer(m) {
				if err := send.Send(b, netip.AddrPortFrom(from.Addr().WithZone(""), from.Port())); err != nil {
					n.t.Error(err)
				}
			}
		}
	}()
	return func(typ dhcpv6.MessageType) int {
		mu.Lock()
		defer mu.Unlock()
		return count[typ]
	}
}

// reply is what a good server answers.
func reply(m *dhcpv6.Message, addr string) *dhcpv6.Message {
	r := &dhcpv6.Message{MessageType: dhcpv6.MessageTypeReply, TransactionID: m.TransactionID}
	if m.MessageType == dhcpv6.MessageTypeSolicit {
		r.MessageType = dhcpv6.MessageTypeAdvertise
	}
	r.AddOption(m.GetOneOption(optClientID))
	put(r, optServerID, []byte{0, 3, 0, 1, 2, 2, 2, 2, 2, 2})
	na := &dhcpv6.OptIANA{IaId: m.Options.OneIANA().IaId, T1: 10 * time.Second, T2: 20 * time.Second}
	na.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP(addr), PreferredLifetime: 30 * time.Second,
		ValidLifetime: time.Minute})
	r.AddOption(na)
	put(r, dhcpv6.OptionPreference, []byte{255})
	return r
}

// Nothing that is not the answer makes a difference, and nothing strange in the answer does harm.
func TestHostileAnswers(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	l := n.host(false)
	n.router(&advert{lifetime: time.Hour})
	heard := n.server(func(m *dhcpv6.Message) [][]byte {
		wrong := func(change func(*dhcpv6.Message)) []byte {
			r := reply(m, "fd00:1::bad")
			change(r)
			return r.ToBytes()
		}
		good := reply(m, "fd00:1::900d")
		put(good, 4711, []byte("what is this"))
		put(good, optFQDN, []byte{1, 200})
		put(good, optDNS, append(net.ParseIP("ff02::1"), append(net.ParseIP("fd00:1::53"), 1, 2, 3)...))
		put(good, optSearch, []byte("\x01a\x07example\x00\x05e;vil\x00\x3fcut"))
		if m.MessageType == dhcpv6.MessageTypeSolicit {
			return [][]byte{good.ToBytes()[:len(good.ToBytes())-3], wrong(func(r *dhcpv6.Message) { put(r, optServerID, nil) }),
				wrong(func(r *dhcpv6.Message) { r.MessageType = dhcpv6.MessageTypeReply }), // that does not say that it commits
				good.ToBytes()}
		}
		return [][]byte{
			wrong(func(r *dhcpv6.Message) { put(r, optServerID, []byte{0, 3, 0, 1, 6, 6, 6, 6, 6, 6}) }),
			nil, {7}, bytes.Repeat([]byte{0xff}, 60000), bytes.Repeat([]byte{7, 0, 0, 0}, 300),
			wrong(func(r *dhcpv6.Message) { r.TransactionID[0]++ }),
			wrong(func(r *dhcpv6.Message) { put(r, optClientID, []byte{0, 3, 0, 1, 6, 6, 6, 6, 6, 6}) }),
			wrong(func(r *dhcpv6.Message) { r.Options.Del(optClientID) }),
			wrong(func(r *dhcpv6.Message) { r.Options.Del(optServerID) }),
			wrong(func(r *dhcpv6.Message) { r.MessageType = dhcpv6.MessageTypeReconfigure }),
			wrong(func(r *dhcpv6.Message) { r.MessageType ^= dhcpv6.MessageTypeReply ^ dhcpv6.MessageTypeAdvertise }),
			wrong(func(r *dhcpv6.Message) { r.Options.OneIANA().IaId[3]++ }),
			wrong(func(r *dhcpv6.Message) { r.Options.OneIANA().Options.OneAddress().IPv6Addr = net.ParseIP("ff02::1") }),
			wrong(func(r *dhcpv6.Message) { r.Options.OneIANA().Options.OneAddress().IPv6Addr = net.ParseIP("fe80::1") }),
			wrong(func(r *dhcpv6.Message) { r.Options.OneIANA().Options.OneAddress().ValidLifetime = 0 }),
			wrong(func(r *dhcpv6.Message) { r.Options.OneIANA().Options.OneAddress().PreferredLifetime = time.Hour }),
			wrong(func(r *dhcpv6.Message) { r.Options.OneIANA().T2 = time.Second }),
			wrong(func(r *dhcpv6.Message) { r.Options.Del(dhcpv6.OptionIANA) }),
			wrong(func(r *dhcpv6.Message) {
				r.AddOption(&dhcpv6.OptStatusCode{StatusCode: iana.StatusUnspecFail, StatusMessage: "\x1b[2Jno"})
			}),
			good.ToBytes()[:len(good.ToBytes())-3],
			good.ToBytes(),
		}
	})
	got, err := Client{First: nstest.Patience(t)}.Acquire(nstest.Context(t), l, owner("one"))
	if err != nil {
		t.Fatal(err)
	}
	if got.Addresses[0].Prefix.String() != "fd00:1::900d/128" ||
		!slices.Equal(got.DNS.Nameservers, []string{"fd00:1::53"}) || !slices.Equal(got.DNS.Search, []string{"a.example"}) {
		t.Errorf("lease is %+v", got)
	}
	if s, r := heard(dhcpv6.MessageTypeSolicit), heard(dhcpv6.MessageTypeRequest); s != 1 || r != 1 {
		t.Errorf("%d SOLICITs and %d REQUESTs", s, r)
	}
}

// What odd servers say is told to who has to find out.
func TestOddAnswerIsTold(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	l := n.host(false)
	n.server(func(m *dhcpv6.Message) [][]byte {
		r := reply(m, "fd00:1::1")
		r.Options.Del(dhcpv6.OptionIANA)
		r.AddOption(&dhcpv6.OptStatusCode{StatusCode: iana.StatusUnspecFail, StatusMessage: "\x1b[2Jgo away"})
		return [][]byte{r.ToBytes()}
	})
	err := untilSaid(t, "go away", func(ctx context.Context) error {
		_, err := Client{First: 200 * time.Millisecond}.Acquire(ctx, l, owner("one"))
		return err
	})
	if err == nil || strings.Contains(err.Error(), "\x1b") ||
		!strings.Contains(err.Error(), "server fe80::") {
		t.Errorf("%q", err)
	}
}

// A server that changes its mind is asked again, not for ever; one that takes an address back ends the lease.
func TestServerChangesItsMind(t *testing.T) {
	t.Parallel()
	n := newLAN(t, "fd00:1::1/64")
	l := n.host(false)
	requests := 0 // the server's alone
	heard := n.server(func(m *dhcpv6.Message) [][]byte {
		r := reply(m, "fd00:1::5")
		switch m.MessageType {
		case dhcpv6.MessageTypeRequest:
			if requests++; requests < 3 {
				put(r, dhcpv6.OptionIANA, nil)
				r.Options.Del(dhcpv6.OptionIANA)
				r.AddOption(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoAddrsAvail})
			}
		case dhcpv6.MessageTypeRenew:
			r.Options.OneIANA().Options.OneAddress().ValidLifetime = 0
			r.Options.OneIANA().Options.OneAddress().PreferredLifetime = 0
		case dhcpv6.MessageTypeRebind: // the old one goes, a new one comes
			r.Options.OneIANA().Options.OneAddress().ValidLifetime = 0
			r.Options.OneIANA().Options.OneAddress().PreferredLifetime = 0
			r.Options.OneIANA().Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP("fd00:1::6"), PreferredLifetime: 5e9,
				ValidLifetime: 6e9})
		}
		return [][]byte{r.ToBytes()}
	})
	a := owner("one")
	got := acquire(t, l, a)
	if requests := heard(dhcpv6.MessageTypeRequest); requests != 3 || got.Addresses[0].Prefix.String() != "fd00:1::5/128" {
		t.Errorf("%d requests, lease %+v", requests, got)
	}
	_, err := Client{}.Renew(nstest.Context(t), l, a, got)
	wantErr(t, err, dhcp.ErrRefused)
	next, err := Client{}.Rebind(nstest.Context(t), l, a, got)
	if err != nil || len(next.Addresses) != 1 || next.Addresses[0].Prefix.String() != "fd00:1::6/128" {
		t.Errorf("%+v, %v", next, err)
	}
}

// The neighbours are asked while servers have their second, so that nobody waits for both; and one who has what is
// offered is heard.
func TestAskedEarly(t *testing.T) {
	t.Parallel()
	for took := leaseOnceGranted(t); took > probeLimit*3/4; took = leaseOnceGranted(t) { // the machine may be busy, not always
		if t.Failed() || time.Now().After(nstest.Deadline(t)) {
			t.Fatalf("the lease always takes %v more once it was granted", took)
		}
	}
}

// leaseOnceGranted returns how long the client takes for a lease once the server has it asked for, where a neighbour has the
// first address that is offered.
func leaseOnceGranted(t *testing.T) time.Duration {
	n := newLAN(t, "fd00:1::1/64")
	n.router(&advert{managed: true, lifetime: time.Hour})
	l, squatter := n.host(false), n.host(false)
	show(t, squatter, "addr", "add", "fd00:1::5/64", "dev", "eth0", "nodad")
	nstest.RunIn(t, n.path, "busybox", "ping", "-q", "-c", "1", "-W", "5", "fd00:1::5") // it can be heard
	var requested atomic.Int64
	solicits := 0
	heard := n.server(func(m *dhcpv6.Message) [][]byte {
		if m.MessageType == dhcpv6.MessageTypeSolicit {
			solicits++
		}
		if m.MessageType == dhcpv6.MessageTypeRequest {
			requested.Store(time.Now().UnixNano())
		}
		r := reply(m, []string{"fd00:1::5", "fd00:1::6"}[min(max(solicits-1, 0), 1)])
		r.Options.Del(dhcpv6.OptionPreference)
		return [][]byte{r.ToBytes()}
	})
	got := acquire(t, l, owner("one"))
	took := time.Since(time.Unix(0, requested.Load()))
	if got.Addresses[0].Prefix.String() != "fd00:1::6/128" || heard(dhcpv6.MessageTypeDecline) != 1 {
		t.Errorf("%d DECLINEs, lease %+v", heard(dhcpv6.MessageTypeDecline), got)
	}
	return took
}
