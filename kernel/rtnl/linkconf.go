package rtnl

import (
	"strings"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
)

// Settings returns the link's sysctls that an administrator may have set. Keys are the path after net/ipv4/conf/LINK
// or net/ipv6/conf/LINK with the family in front: "ipv4 rp_filter". The values come with every answer about a link,
// so no file is read.
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
				all[f.family+" "+name] = int32(netlink.U32(f.values[4*i:]))
			}
		}
	}
	return all
}
