package kernel

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// AddAltName gives a link one more name, of up to 127 bytes (Linux 5.5).
func (ns *NS) AddAltName(name, alt string) error {
	const how = unix.NLM_F_CREATE | unix.NLM_F_APPEND | unix.NLM_F_EXCL
	if err := ns.altName(unix.RTM_NEWLINKPROP, how, alt, 0, attrText(unix.IFLA_IFNAME, name)); err != nil {
		return fmt.Errorf("altname %s of link %s: %w", alt, name, err)
	}
	return nil
}

// LinkByAltName is the link that has an alternative name. A kernel that knows none has no such link.
func (ns *NS) LinkByAltName(alt string) (*Link, error) {
	l, err := ns.getLink(alt, 0, attrText(unix.IFLA_ALT_IFNAME, alt))
	if is(err, unix.EINVAL) || is(err, unix.EOPNOTSUPP) {
		return nil, NoLink{alt}
	}
	return l, err
}

// DelAltNames takes such names from the link of that index. It goes on past one that is not there.
func (ns *NS) DelAltNames(index int, names ...string) error {
	var errs []error
	for _, alt := range names {
		if err := ns.altName(unix.RTM_DELLINKPROP, 0, alt, index); err != nil {
			errs = append(errs, fmt.Errorf("altname %s of link #%d: %w", alt, index, err))
		}
	}
	return errors.Join(errs...)
}

// altName is about the link of an index, or of what is said by.
func (ns *NS) altName(proto, flags int, alt string, index int, by ...*nl.RtAttr) error {
	req := newRequest(proto, flags|unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	for _, a := range by {
		req.AddData(a)
	}
	list := nl.NewRtAttr(unix.IFLA_PROP_LIST|unix.NLA_F_NESTED, nil)
	list.AddRtAttr(unix.IFLA_ALT_IFNAME, nl.ZeroTerminated(alt))
	req.AddData(list)
	return ns.tell(req)
}

// AltNames are the link's other names.
func (l *Link) AltNames() (names []string) {
	EachAttr(l.altNames, func(kind uint16, v []byte) {
		if kind == unix.IFLA_ALT_IFNAME {
			names = append(names, text(v))
		}
	})
	return names
}

// Settings are the link's sysctls that somebody may have set, by what stands after net/ipv4/conf/LINK or
// net/ipv6/conf/LINK: "ipv4 rp_filter". They come with every answer about a link, and cost no file.
func (l *Link) Settings() map[string]int32 {
	all := map[string]int32{}
	for _, f := range []struct {
		family, names string
		values        []byte
	}{
		{"ipv4", // IPV4_DEVCONF_… from 1 on
			`forwarding - proxy_arp accept_redirects secure_redirects send_redirects - rp_filter accept_source_route -
			log_martians - arp_filter - - - - arp_announce arp_ignore promote_secondaries arp_accept arp_notify accept_local
			src_valid_mark proxy_arp_pvlan route_localnet - - ignore_routes_with_linkdown`, l.conf4},
		{"ipv6", // DEVCONF_… from 0 on
			`forwarding - - accept_ra accept_redirects autoconf dad_transmits router_solicitations - - use_tempaddr - - - - - -
			accept_ra_defrtr accept_ra_pinfo accept_ra_rtr_pref - - proxy_ndp optimistic_dad accept_source_route - disable_ipv6
			accept_dad - ndisc_notify - - - - - accept_ra_mtu - - - ignore_routes_with_linkdown - - keep_addr_on_down - - - -
			addr_gen_mode`, l.conf6},
	} {
		for i, name := range strings.Fields(f.names) {
			if name != "-" && len(f.values) >= 4*(i+1) {
				all[f.family+" "+name] = int32(u32(f.values[4*i:]))
			}
		}
	}
	return all
}

// A Saved is an address or a route as the kernel says it, with everything that it has: what RestoreAddr and
// RestoreRoute make again.
type Saved []byte

// SaveAddrs are the addresses of a link that stay until somebody takes them away, without those that the kernel makes.
func (ns *NS) SaveAddrs(index int) (list []Saved, err error) {
	msgs, err := ns.addrs(index)
	for _, m := range msgs {
		a := parseAddr(m)
		if ip := a.Prefix.Addr(); !a.Dynamic && !(ip.Is6() && ip.IsLinkLocalUnicast()) {
			list = append(list, m)
		}
	}
	return list, err
}

// RestoreAddr makes an address again, on the link of that index; one that is there already is EEXIST.
func (ns *NS) RestoreAddr(index int, s Saved) error {
	m := slices.Clone(s)
	if len(m) < unix.SizeofIfAddrmsg {
		return unix.EINVAL
	}
	copy(m[4:], nl.Uint32Attr(uint32(index)))
	if err := ns.again(unix.RTM_NEWADDR, m); err != nil {
		return fmt.Errorf("add address %v: %w", parseAddr(m).Prefix, err)
	}
	return nil
}

// SaveRoutes are the routes out by a link that somebody made, those before others that these lead over.
func (ns *NS) SaveRoutes(index int) (list []Saved, err error) {
	for _, family := range []uint8{IPv4, IPv6} {
		msgs, err := ns.routes(RouteFilter{Family: family, Link: index})
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			r := parseRoute(m)
			if len(r) != 1 || r[0].Link != index || r[0].Type != Unicast || r[0].Protocol <= unix.RTPROT_KERNEL ||
				r[0].Protocol == ByRA {
				continue
			}
			list = append(list, m)
		}
	}
	slices.SortStableFunc(list, func(a, b Saved) int { return cmp.Compare(hops(a), hops(b)) })
	return list, nil
}

func hops(s Saved) int {
	if r := parseRoute(s); len(r) == 1 && r[0].Via.IsValid() {
		return 1
	}
	return 0
}

// RestoreRoute makes a route again, out by the link of that index; one to the same destination of the same metric is
// EEXIST.
func (ns *NS) RestoreRoute(index int, s Saved) error {
	m := slices.Clone(s)
	if len(m) < unix.SizeofRtMsg {
		return unix.EINVAL
	}
	copy(m[8:], nl.Uint32Attr(u32(m[8:])&unix.RTNH_F_ONLINK)) // the others say how it was
	EachAttr(m[unix.SizeofRtMsg:], func(kind uint16, v []byte) {
		if kind == unix.RTA_OIF {
			copy(v, nl.Uint32Attr(uint32(index)))
		}
	})
	if err := ns.again(unix.RTM_NEWROUTE, m); err != nil {
		r := parseRoute(m)
		return fmt.Errorf("add route %v: %w", r[0].Dst, err)
	}
	return nil
}

func (ns *NS) again(proto int, m []byte) error {
	req := newRequest(proto, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddRawData(bytes.Clone(m))
	return ns.tell(req)
}
