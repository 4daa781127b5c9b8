package v6

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"
)

// An advert is what a router says of itself and of the link (RFC 4861, 4.2).
type advert struct {
	router         netip.Addr
	managed, other bool // addresses, or other things, are to be had by DHCPv6
	preference     int  // 1 high, 0, -1 low (RFC 4191)
	lifetime       time.Duration
	mtu            int
	prefixes       []advertPrefix
	dns            []netip.Addr // RFC 8106
	search         []string
}

type advertPrefix struct {
	prefix           netip.Prefix
	auto             bool // hosts give themselves addresses of it
	preferred, valid time.Duration
}

// Options of router advertisements.
const (
	ndPrefix = 3
	ndMTU    = 5
	ndDNS    = 25
	ndSearch = 31
)

// parseAdvert reads a router advertisement that came from an address, with a hop limit. One that is no neighbour's, or
// that RFC 4861 (6.1.2) has thrown away, is an error; an option that cannot be read is left out.
func parseAdvert(b []byte, from netip.Addr, hops int) (*advert, error) {
	switch {
	case len(b) < 16 || b[0] != routerAdvertisement || b[1] != 0:
		return nil, errors.New("not a router advertisement")
	case hops != 255:
		return nil, errors.New("not from this link")
	case !from.IsLinkLocalUnicast():
		return nil, errors.New("not from a link-local address")
	}
	a := &advert{router: from, managed: b[5]&0x80 != 0, other: b[5]&0x40 != 0,
		lifetime: time.Duration(binary.BigEndian.Uint16(b[6:])) * time.Second}
	switch b[5] >> 3 & 3 {
	case 1:
		a.preference = 1
	case 3:
		a.preference = -1
	case 2: // reserved: such a router is no default router
		a.lifetime = 0
	}
	for b = b[16:]; len(b) >= 2; {
		n := int(b[1]) * 8
		if n == 0 || n > len(b) {
			return nil, errors.New("an option of a wrong length")
		}
		a.option(b[0], b[:n])
		b = b[n:]
	}
	return a, nil
}

func (a *advert) option(typ byte, o []byte) {
	switch typ {
	case ndPrefix:
		if len(o) != 32 || o[2] > 128 || len(a.prefixes) == most {
			return
		}
		p := netip.PrefixFrom(netip.AddrFrom16([16]byte(o[16:32])), int(o[2])).Masked()
		if p.Addr().IsLinkLocalUnicast() || !ordinary(p.Addr()) {
			return
		}
		a.prefixes = append(a.prefixes, advertPrefix{prefix: p, auto: o[3]&0x40 != 0, valid: seconds(o[4:]),
			preferred: seconds(o[8:])})
	case ndMTU:
		if m := binary.BigEndian.Uint32(o[4:]); len(o) == 8 && m >= 1280 && m <= 65535 {
			a.mtu = int(m)
		}
	case ndDNS:
		if len(o) >= 24 && seconds(o[4:]) > 0 {
			for _, s := range addrs(o[8:]) {
				if ordinary(s) && !slices.Contains(a.dns, s) && len(a.dns) < most {
					a.dns = append(a.dns, s)
				}
			}
		}
	case ndSearch:
		if len(o) >= 16 && seconds(o[4:]) > 0 {
			a.search = append(a.search, names(o[8:])...)
			a.search = a.search[:min(len(a.search), most)]
		}
	}
}

func seconds(b []byte) time.Duration {
	return lifetime(time.Duration(binary.BigEndian.Uint32(b)) * time.Second)
}
