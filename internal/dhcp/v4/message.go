package v4

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/rfc1035label"
)

// Codes of options (RFC 2132, and those named).
const (
	optMask        = 1
	optRouter      = 3
	optDNS         = 6
	optHostname    = 12
	optDomain      = 15
	optMTU         = 26
	optStatic      = 33
	optNTP         = 42
	optAddress     = 50
	optLeaseTime   = 51
	optOverload    = 52
	optServer      = 54
	optRequested   = 55
	optMaxSize     = 57
	optMessage     = 56
	optT1          = 58
	optT2          = 59
	optVendorClass = 60
	optClientID    = 61
	optSearch      = 119 // RFC 3397
	optClassless   = 121 // RFC 3442
)

// request is a message to servers, of that type, about a lease, or nil.
func request(typ dhcpv4.MessageType, l dhcp.Link, a dhcp.Ask, have *dhcp.Lease) *dhcpv4.DHCPv4 {
	m := &dhcpv4.DHCPv4{OpCode: dhcpv4.OpcodeBootRequest, HWType: 1, ClientHWAddr: l.MAC,
		ClientIPAddr: net.IPv4zero, YourIPAddr: net.IPv4zero, ServerIPAddr: net.IPv4zero, GatewayIPAddr: net.IPv4zero,
		Options: dhcpv4.Options{}}
	rand.Read(m.TransactionID[:])
	m.Options.Update(dhcpv4.OptMessageType(typ))
	if a.Broadcast {
		m.SetBroadcast()
	}
	gives := typ == dhcpv4.MessageTypeRelease || typ == dhcpv4.MessageTypeDecline
	if a.VendorClass != "" && !gives {
		m.Options[optVendorClass] = []byte(a.VendorClass)
	}
	if a.Hostname != "" && !gives {
		m.Options[optHostname] = []byte(a.Hostname)
	}
	m.Options[optClientID] = identity(a.Owner, have)
	if !gives {
		size := 1500
		if l.MTU >= 576 && l.MTU < size { // fragments would be lost
			size = l.MTU
		}
		m.Options[optMaxSize] = binary.BigEndian.AppendUint16(nil, uint16(size))
		for _, code := range a.Request {
			if code > 0 && code < 255 {
				m.Options[optRequested] = append(m.Options[optRequested], byte(code))
			}
		}
	}
	for code, value := range a.Options {
		// What a server knows a client by is said in every message, or RELEASE would name no client's lease.
		if code > 0 && code < 255 && (!gives || code == optClientID) {
			m.Options[uint8(code)] = value
			if len(value) == 0 {
				delete(m.Options, uint8(code))
			}
		}
	}
	return m
}

// ClientID is what servers know an owner by (option 61): a byte 0, that is no kind of link address, and text. It is the
// reference's, so that leases stay when its daemon is replaced. A longer one than an option has room for ends in a hash
// of it all: the reference cuts it, and two containers that begin alike are one client to servers then, and have one
// address.
func ClientID(o spec.Owner) []byte {
	id := cut(o)
	if text := o.ContainerID + "/" + o.Network + "/" + o.IfName; len(text) > longestID {
		sum := sha256.Sum256([]byte(text))
		id = append(id[:1+longestID-33], "#"+hex.EncodeToString(sum[:16])...)
	}
	return id
}

// longestID is how long the text of a client identifier can be: a byte of length, less the byte 0.
const longestID = 254

// cut is what the reference has as a client identifier.
func cut(o spec.Owner) []byte {
	id := o.ContainerID + "/" + o.Network + "/" + o.IfName
	return append([]byte{0}, id[:min(len(id), longestID)]...)
}

// idState is where a lease keeps the client identifier that it was got with, where that is not what the reference has.
const idState = "clientID"

// identity is what the servers of a lease know its owner by. One that says nothing of that was got with the
// reference's: by its daemon, or by ours of former days.
func identity(o spec.Owner, have *dhcp.Lease) []byte {
	if have == nil {
		return ClientID(o)
	}
	if id, err := hex.DecodeString(have.State[idState]); err == nil && len(id) > 0 && len(id) <= 1+longestID {
		return id
	}
	return cut(o)
}

// remember has a new lease know what it was got with.
func remember(l *dhcp.Lease, o spec.Owner) {
	if id := ClientID(o); !bytes.Equal(id, cut(o)) {
		l.State = map[string]string{idState: hex.EncodeToString(id)}
	}
}

// parse reads a server's answer to m.
func parse(b []byte, m *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, error) {
	r, err := dhcpv4.FromBytes(b)
	if err != nil {
		return nil, err
	}
	switch {
	case r.OpCode != dhcpv4.OpcodeBootReply:
		return nil, errors.New("no reply")
	case r.TransactionID != m.TransactionID:
		return nil, errors.New("an answer to another client")
	case string(r.ClientHWAddr) != string(m.ClientHWAddr):
		return nil, fmt.Errorf("for %v", r.ClientHWAddr)
	}
	if id := r.Options[optClientID]; len(id) > 0 && string(id) != string(m.Options[optClientID]) { // RFC 6842
		return nil, errors.New("for another client")
	}
	// Two old fields of the message may hold more options (RFC 2131, 4.1).
	if o := r.Options[optOverload]; len(o) == 1 && len(b) >= 236 {
		if o[0]&1 != 0 {
			err = errors.Join(err, r.Options.FromBytes(b[108:236]))
		}
		if o[0]&2 != 0 {
			err = errors.Join(err, r.Options.FromBytes(b[44:108]))
		}
	}
	return r, err
}

const (
	defaultTime = time.Hour // where a server does not say; the reference's
	leastTime   = 2 * time.Second
)

// lease is what an ACK, or an OFFER, gives.
func lease(r *dhcpv4.DHCPv4, l dhcp.Link) (*dhcp.Lease, error) {
	prefix, err := prefixOf(r)
	if err != nil {
		return nil, err
	}
	valid, ok := seconds(r.Options[optLeaseTime])
	if !ok {
		valid = defaultTime
	}
	valid = max(valid, leastTime)
	out := &dhcp.Lease{
		Addresses: []dhcp.Address{{Prefix: prefix, Valid: valid}},
		Valid:     valid, Link: l.Name, MAC: l.MAC.String(),
	}
	out.T1, out.T2 = times(valid, r.Options[optT1], r.Options[optT2])
	if s := addrs(r.Options[optServer]); len(s) == 1 {
		out.Server.Addr = s[0]
	}
	if routers := slices.DeleteFunc(addrs(r.Options[optRouter]),
		func(a netip.Addr) bool { return !router(a, out.Addresses[0].Prefix) }); len(routers) > 0 {
		out.Gateway = routers[0]
	}
	if m := r.Options[optMTU]; len(m) == 2 {
		if mtu := int(binary.BigEndian.Uint16(m)); mtu >= 68 {
			out.MTU = mtu
		}
	}
	out.Routes = routes(r.Options, out, l.MTU)
	for _, s := range addrs(r.Options[optDNS]) {
		if ordinary(s) {
			out.DNS.Nameservers = append(out.DNS.Nameservers, s.String())
		}
	}
	if d := text(r.Options[optDomain]); name(d) {
		out.DNS.Domain = d
	}
	if s := r.Options[optSearch]; len(s) > 0 {
		if labels, err := rfc1035label.FromBytes(s); err == nil {
			for _, d := range labels.Labels {
				if name(d) && !slices.Contains(out.DNS.Search, d) {
					out.DNS.Search = append(out.DNS.Search, d)
				}
			}
		}
	}
	for _, s := range addrs(r.Options[optNTP]) {
		if ordinary(s) {
			out.NTP = append(out.NTP, s)
		}
	}
	return out, nil
}

// prefixOf is the address that a server gives, with the length of its subnet.
func prefixOf(r *dhcpv4.DHCPv4) (netip.Prefix, error) {
	addr, _ := netip.AddrFromSlice(r.YourIPAddr.To4())
	if !ordinary(addr) {
		return netip.Prefix{}, fmt.Errorf("the offered address %v is invalid", addr)
	}
	mask := net.IPMask(r.Options[optMask])
	bits, size := mask.Size()
	if len(mask) == 0 {
		return netip.Prefix{}, errors.New("the answer has no subnet mask (option 1)")
	}
	// Shorter than any class was, it takes in what is no host's; and the kernel has no route to a subnet that begins
	// with 0.0.0.0.
	if size != 32 || bits < 8 || netip.PrefixFrom(addr, bits).Masked().Addr().IsUnspecified() {
		return netip.Prefix{}, fmt.Errorf("the subnet mask %v of %v is not valid for a host", net.IP(mask), addr)
	}
	if subnet := netip.PrefixFrom(addr, bits); bits < 31 && (addr == subnet.Masked().Addr() || addr == last(subnet)) {
		return netip.Prefix{}, fmt.Errorf("the offered address %v is the network address of the subnet", subnet)
	}
	return netip.PrefixFrom(addr, bits), nil
}

// times are T1 and T2. A server's are taken where they are in order, else half and seven eighths (RFC 2131, 4.4.5).
func times(valid time.Duration, o1, o2 []byte) (t1, t2 time.Duration) {
	if valid == dhcp.Forever {
		return dhcp.Forever, dhcp.Forever
	}
	t2, ok := seconds(o2)
	if !ok || t2 >= valid {
		t2 = valid / 8 * 7
	}
	t1, ok = seconds(o1)
	if !ok || t1 > t2 {
		t1 = min(valid/2, t2)
	}
	return t1, t2
}

// seconds reads a time that is not zero.
func seconds(b []byte) (time.Duration, bool) {
	if len(b) != 4 {
		return 0, false
	}
	n := binary.BigEndian.Uint32(b)
	if n == 0xffffffff {
		return dhcp.Forever, true
	}
	return time.Duration(n) * time.Second, n > 0
}

// routes are those of option 121, which says all where it is there, else those of 33 and by the first router of 3.
func routes(o dhcpv4.Options, l *dhcp.Lease, linkMTU int) (rs []spec.Route) {
	subnet := l.Addresses[0].Prefix
	add := func(dst netip.Prefix, gw netip.Addr) {
		if !dst.IsValid() || gw.IsValid() && !gw.IsUnspecified() && !router(gw, subnet) {
			return
		}
		r := spec.Route{Dst: dst.Masked(), GW: gw}
		onLink := 253
		switch {
		case gw.IsUnspecified():
			r.Scope = &onLink // and the gateway of zeroes stays, or plugins would fill in that of the address
		case !subnet.Contains(gw): // as where each address is its own subnet
			r.Scope = &onLink
		}
		if l.MTU > 0 && l.MTU < linkMTU {
			r.MTU = l.MTU
		}
		if !slices.ContainsFunc(rs, func(have spec.Route) bool { return have.Dst == r.Dst }) {
			rs = append(rs, r)
		}
	}
	if b, ok := o[optClassless]; ok {
		for len(b) > 0 {
			bits := int(b[0])
			n := 1 + (bits+7)/8
			if bits > 32 || len(b) < n+4 {
				break
			}
			var dst [4]byte
			copy(dst[:], b[1:n])
			add(netip.PrefixFrom(netip.AddrFrom4(dst), bits), netip.AddrFrom4([4]byte(b[n:n+4])))
			b = b[n+4:]
		}
		if len(rs) > 0 { // an empty or unreadable one says nothing
			return rs
		}
	}
	pairs := addrs(o[optStatic])
	for i := 0; i+1 < len(pairs); i += 2 {
		if !pairs[i].IsUnspecified() {
			add(netip.PrefixFrom(pairs[i], class(pairs[i])), pairs[i+1])
		}
	}
	if l.Gateway.IsValid() {
		add(netip.PrefixFrom(netip.IPv4Unspecified(), 0), l.Gateway)
	}
	return rs
}

// class is the length of the prefix that an address had before there were subnet masks; option 33 is that old.
func class(a netip.Addr) int {
	switch b := a.As4()[0]; {
	case b < 128:
		return 8
	case b < 192:
		return 16
	}
	return 24
}

// ordinary reports whether an address can be a host's.
func ordinary(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && a.As4()[0] < 240
}

// router reports whether an address can be a router's for who has the prefix: it is neither that one itself nor its
// subnet's.
func router(a netip.Addr, own netip.Prefix) bool {
	return ordinary(a) && a != own.Addr() && (own.Bits() >= 31 || a != own.Masked().Addr() && a != last(own))
}

// last is a subnet's broadcast address.
func last(p netip.Prefix) netip.Addr {
	a := p.Addr().As4()
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|(1<<(32-p.Bits())-1))
	return netip.AddrFrom4(a)
}

func addrs(b []byte) (as []netip.Addr) {
	for ; len(b) >= 4; b = b[4:] {
		as = append(as, netip.AddrFrom4([4]byte(b)))
	}
	return as
}

func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

// name reports whether a server's text may stand in a resolv.conf: labels of letters and digits, with hyphens inside.
func name(s string) bool {
	if len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(s, "."), ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.ContainsFunc(label, func(r rune) bool {
				return r != '-' && r != '_' && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z')
			}) {
			return false
		}
	}
	return true
}

// said is the text that a server gives with a NAK.
func said(r *dhcpv4.DHCPv4) string {
	return cmp.Or(text(r.Options[optMessage]), "no reason given")
}
