package v6

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

// Codes of options (RFC 8415, 21, and those named).
const (
	optClientID = dhcpv6.OptionClientID
	optServerID = dhcpv6.OptionServerID
	optDNS      = dhcpv6.OptionDNSRecursiveNameServer // RFC 3646
	optSearch   = dhcpv6.OptionDomainSearchList
	optSNTP     = dhcpv6.OptionSNTPServerList // RFC 4075
	optNTP      = dhcpv6.OptionNTPServer      // RFC 5908
	optFQDN     = dhcpv6.OptionFQDN           // RFC 4704
)

// duidState is where a lease keeps the client's identifier: what it is made of may change with the machine.
const duidState = "duid"

// DUID is what servers know an owner by: a UUID (RFC 6355) that is made of the owner and the machine.
func DUID(o spec.Owner) []byte {
	id := identity.UUID(o)
	return append([]byte{0, byte(dhcpv6.DUID_UUID)}, id[:]...)
}

// iaid names an owner's one association of addresses, and its one of prefixes, among those of its DUID.
func iaid(o spec.Owner) [4]byte {
	h := identity.OwnerHash(o)
	return [4]byte(h[:4])
}

// message begins a message to servers. Have is the lease that it is about, or nil.
func message(typ dhcpv6.MessageType, a dhcp.Ask, have *dhcp.Lease) *dhcpv6.Message {
	m := &dhcpv6.Message{MessageType: typ}
	rand.Read(m.TransactionID[:])
	id := DUID(a.Owner)
	if have != nil {
		if was, err := hex.DecodeString(have.State[duidState]); err == nil && len(was) > 0 {
			id = was
		}
	}
	put(m, optClientID, id)
	asks := true
	switch typ {
	case dhcpv6.MessageTypeConfirm, dhcpv6.MessageTypeRelease, dhcpv6.MessageTypeDecline:
		asks = false
	}
	if asks {
		want := []byte{}
		for _, code := range append([]uint16{uint16(optDNS), uint16(optSearch), uint16(optNTP), uint16(optSNTP)},
			a.Request...) {
			if !slices.Contains(pairs(want), code) {
				want = binary.BigEndian.AppendUint16(want, code)
			}
		}
		put(m, dhcpv6.OptionORO, want)
		if a.Hostname != "" && typ != dhcpv6.MessageTypeInformationRequest {
			// That the server is to make the record for the name, and the name without an end: the server has the
			// domain.
			put(m, optFQDN, append([]byte{1}, label(a.Hostname)...))
		}
	}
	for code, value := range a.Options {
		// What a server knows a client by is said in every message, or RELEASE would name no client's lease.
		if asks || dhcpv6.OptionCode(code) == optClientID {
			put(m, dhcpv6.OptionCode(code), value)
		}
	}
	return m
}

func put(m *dhcpv6.Message, code dhcpv6.OptionCode, value []byte) {
	m.Options.Update(&dhcpv6.OptionGeneric{OptionCode: code, OptionData: value})
}

func pairs(b []byte) (list []uint16) {
	for ; len(b) >= 2; b = b[2:] {
		list = append(list, binary.BigEndian.Uint16(b))
	}
	return list
}

// associations puts what is asked for into m: addresses, and prefixes where the owner wants some. What is held already
// is named; of times the server knows better.
func associations(m *dhcpv6.Message, a dhcp.Ask, have *dhcp.Lease, addresses, prefixes bool) {
	if addresses {
		na := &dhcpv6.OptIANA{IaId: iaid(a.Owner)}
		switch {
		case have != nil:
			for _, h := range have.Addresses {
				na.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: h.Prefix.Addr().AsSlice()})
			}
		case a.Address.Is6():
			na.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: a.Address.AsSlice()})
		}
		m.AddOption(na)
	}
	if a.Delegate > 0 && prefixes {
		pd := &dhcpv6.OptIAPD{IaId: iaid(a.Owner)}
		switch {
		case have != nil && len(have.Delegated) > 0:
			for _, h := range have.Delegated {
				pd.Options.Add(iaPrefix(h.Prefix))
			}
		default: // a length alone is a wish (RFC 8168)
			pd.Options.Add(iaPrefix(netip.PrefixFrom(netip.IPv6Unspecified(), a.Delegate)))
		}
		m.AddOption(pd)
	}
}

func iaPrefix(p netip.Prefix) *dhcpv6.OptIAPrefix {
	return &dhcpv6.OptIAPrefix{Prefix: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 128)}}
}

// parse reads an answer to m. Of options it looks only into those that count, so that one that was not asked for cannot
// spoil the others.
func parse(b []byte, m *dhcpv6.Message) (*dhcpv6.Message, error) {
	if len(b) < dhcpv6.MessageHeaderSize {
		return nil, errors.New("too short")
	}
	r := &dhcpv6.Message{MessageType: dhcpv6.MessageType(b[0]), TransactionID: dhcpv6.TransactionID(b[1:4])}
	if r.MessageType != dhcpv6.MessageTypeAdvertise && r.MessageType != dhcpv6.MessageTypeReply {
		return nil, errors.New("not an answer")
	}
	if r.TransactionID != m.TransactionID {
		return nil, errors.New("an answer to another client")
	}
	err := r.Options.FromBytesWithParser(b[dhcpv6.MessageHeaderSize:],
		func(code dhcpv6.OptionCode, data []byte) (dhcpv6.Option, error) {
			switch code {
			case dhcpv6.OptionIANA, dhcpv6.OptionIAPD, dhcpv6.OptionStatusCode:
				return dhcpv6.ParseOption(code, data)
			}
			return &dhcpv6.OptionGeneric{OptionCode: code, OptionData: bytes.Clone(data)}, nil
		})
	switch {
	case err != nil:
		return nil, err
	case !bytes.Equal(option(r, optClientID), option(m, optClientID)):
		return nil, errors.New("for another client")
	case len(option(r, optServerID)) == 0:
		return nil, errors.New("the answer has no server identifier")
	}
	if asked := option(m, optServerID); asked != nil && !bytes.Equal(asked, option(r, optServerID)) {
		return nil, errors.New("from another server than the one that was asked")
	}
	return r, nil
}

// option is the value of the first option of a code; nil: there is none.
func option(m *dhcpv6.Message, code dhcpv6.OptionCode) []byte {
	if o, ok := m.GetOneOption(code).(*dhcpv6.OptionGeneric); ok {
		return append([]byte{}, o.OptionData...)
	}
	return nil
}

// A refusal is a status other than success.
type refusal struct {
	code iana.StatusCode
	text string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("%v (status %d, %q)", r.code, uint16(r.code), cmp.Or(r.text, "no reason given"))
}

// Is says what it means to who keeps a lease.
func (r *refusal) Is(target error) bool {
	switch r.code {
	case iana.StatusNoAddrsAvail, iana.StatusNoPrefixAvail:
		return target == dhcp.ErrEmpty
	case iana.StatusNoBinding, iana.StatusNotOnLink:
		return target == dhcp.ErrRefused
	}
	return false
}

func status(s *dhcpv6.OptStatusCode) error {
	if s == nil || s.StatusCode == iana.StatusSuccess {
		return nil
	}
	return &refusal{s.StatusCode, printable(s.StatusMessage)}
}

// lease is what an answer gives.
func lease(r *dhcpv6.Message, l dhcp.Link, a dhcp.Ask, have *dhcp.Lease, addresses bool) (*dhcp.Lease, error) {
	if err := status(r.Options.Status()); err != nil {
		return nil, err
	}
	out := &dhcp.Lease{Link: l.Name, MAC: l.MAC.String(), T1: dhcp.Forever, T2: dhcp.Forever,
		State: map[string]string{duidState: hex.EncodeToString(option(r, optClientID))}}
	out.Server.ID = option(r, optServerID)
	var errs []error
	if addresses {
		err := error(nil)
		if out.Addresses, err = nonTemporary(r, a, have, out); err == nil && len(out.Addresses) == 0 {
			err = errors.New("the answer has no address")
		}
		errs = append(errs, err)
	}
	if a.Delegate > 0 {
		err := error(nil)
		if out.Delegated, err = delegated(r, a, out); err == nil && len(out.Delegated) == 0 {
			err = &refusal{iana.StatusNoPrefixAvail, "it delegates no prefix"}
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, x := range slices.Concat(out.Addresses, out.Delegated) {
		out.Valid = max(out.Valid, x.Valid)
	}
	configuration(r, out)
	if have != nil {
		out.Gateway, out.Routes, out.MTU = have.Gateway, have.Routes, have.MTU
	}
	return out, nil
}

// configuration is what an answer says beside addresses.
func configuration(r *dhcpv6.Message, out *dhcp.Lease) {
	for _, s := range addrs(option(r, optDNS)) {
		if ordinary(s) {
			out.DNS.Nameservers = append(out.DNS.Nameservers, s.String())
		}
	}
	out.DNS.Search = names(option(r, optSearch))
	for b := option(r, optNTP); len(b) >= 4; { // suboptions, of which 1 is a server's address
		n := int(binary.BigEndian.Uint16(b[2:]))
		if len(b) < 4+n {
			break
		}
		if binary.BigEndian.Uint16(b) == 1 && n == 16 {
			out.NTP = append(out.NTP, netip.AddrFrom16([16]byte(b[4:20])))
		}
		b = b[4+n:]
	}
	if len(out.NTP) == 0 {
		out.NTP = addrs(option(r, optSNTP))
	}
	out.NTP = slices.DeleteFunc(out.NTP, func(a netip.Addr) bool { return !ordinary(a) })
}

// most is how many addresses or prefixes of an answer count.
const most = 16

func nonTemporary(r *dhcpv6.Message, a dhcp.Ask, have, out *dhcp.Lease) (list []dhcp.Address, err error) {
	for _, ia := range r.Options.IANA() {
		if ia.IaId != iaid(a.Owner) || ia.T2 > 0 && ia.T1 > ia.T2 {
			continue
		}
		err = errors.Join(err, status(ia.Options.Status()))
		for _, o := range ia.Options.Addresses() {
			ip, _ := netip.AddrFromSlice(o.IPv6Addr)
			switch {
			case !ordinary(ip) || ip.IsLinkLocalUnicast() || len(list) == most:
				continue
			case o.ValidLifetime == 0 && have != nil && slices.Contains(have.Prefixes(), netip.PrefixFrom(ip, 128)):
				err = errors.Join(err, &refusal{iana.StatusNoBinding, "it takes the address back"})
			}
			list = add(list, netip.PrefixFrom(ip, 128), o.PreferredLifetime, o.ValidLifetime)
		}
		times(out, ia.T1, ia.T2, list)
	}
	if len(list) > 0 {
		err = nil
	}
	return list, err
}

func delegated(r *dhcpv6.Message, a dhcp.Ask, out *dhcp.Lease) (list []dhcp.Address, err error) {
	for _, ia := range r.Options.IAPD() {
		if ia.IaId != iaid(a.Owner) || ia.T2 > 0 && ia.T1 > ia.T2 {
			continue
		}
		err = errors.Join(err, status(ia.Options.Status()))
		for _, o := range ia.Options.Prefixes() {
			if o.Prefix == nil || len(list) == most {
				continue
			}
			bits, size := o.Prefix.Mask.Size()
			ip, _ := netip.AddrFromSlice(o.Prefix.IP)
			if size != 128 || !ordinary(ip) || ip.IsLinkLocalUnicast() {
				continue
			}
			list = add(list, netip.PrefixFrom(ip, bits).Masked(), o.PreferredLifetime, o.ValidLifetime)
		}
		times(out, ia.T1, ia.T2, list)
	}
	if len(list) > 0 {
		err = nil
	}
	return list, err
}

// add appends what is valid. A lifetime of zero takes back.
func add(list []dhcp.Address, p netip.Prefix, preferred, valid time.Duration) []dhcp.Address {
	known := slices.ContainsFunc(list, func(h dhcp.Address) bool { return h.Prefix == p })
	if preferred > valid || valid == 0 || known {
		return list
	}
	return append(list, dhcp.Address{Prefix: p, Preferred: max(lifetime(preferred), 1), Valid: lifetime(valid)})
}

// lifetime is a time of a message, where all ones are without end.
func lifetime(d time.Duration) time.Duration {
	if d >= 0xffffffff*time.Second {
		return dhcp.Forever
	}
	return d
}

// times brings T1 and T2 of an association into those of the lease, which are the earliest. Zero leaves them to the
// client: half and four fifths of the shortest preferred lifetime, as a server should choose them (RFC 8415, 21.4).
func times(out *dhcp.Lease, t1, t2 time.Duration, list []dhcp.Address) {
	shortest, end := dhcp.Forever, dhcp.Forever
	for _, x := range list {
		if end = min(end, x.Valid); x.Preferred > 1 {
			shortest = min(shortest, x.Preferred)
		} else {
			shortest = min(shortest, x.Valid)
		}
	}
	if len(list) == 0 {
		return
	}
	t1, t2 = lifetime(t1), lifetime(t2)
	if t2 == 0 && shortest != dhcp.Forever {
		t2 = max(shortest/5*4, t1)
	}
	if t1 == 0 && shortest != dhcp.Forever {
		t1 = min(shortest/2, cmp.Or(t2, dhcp.Forever))
	}
	t1, t2 = min(cmp.Or(t1, dhcp.Forever), end), min(cmp.Or(t2, dhcp.Forever), end)
	out.T1, out.T2 = min(out.T1, t1), min(out.T2, t2)
}
