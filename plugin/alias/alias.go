// Package alias lets the containers of a network find each other by name. Other containers of the same network resolve
// the container's name and its aliases to its addresses (A and AAAA), and its addresses to its name (PTR). Several
// containers may share an alias. An alias that is another container's own name leads to that container alone. Names are
// in lower case and are valid in their network only.
//
// The name server of the node, `fairlead dns`, answers. It listens on the gateway addresses of the networks, so the
// host must have these on the link that leads to the container: use bridge with isGateway, or ptp. With ovs, add the
// gateway's address to the bridge's interface yourself (ip addr add 10.1.0.1/24 dev ovs0), and set no vlan and no
// trunk. The result's dns names these addresses. All other names are forwarded to the name servers that dns named
// before, or else to those of the host. The plugin starts no program: enable fairlead-dns.socket, which starts the
// server at the first ADD, or run `fairlead dns`. Without a name server ADD fails with code 11, and STATUS with code
// 50.
//
// The container's names are K8S_POD_NAME of args.cni or CNI_ARGS (podman's name of the container), and the container
// ID, cut to 12 characters if it is longer than 63. Host firewalls must let containers reach port 53 of the gateways,
// UDP and TCP.
package alias

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/dnslabel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/names"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the alias plugin.
var Plugin = sdk.Chained("alias", "lets the containers of a network find each other by name", want,
	func(conf) []plan.Kind { return []plan.Kind{names.Kind()} })

type conf struct {
	// Domain in which the names are valid too, such as "dns.podman". It becomes the first search domain of the
	// container. The server answers that a name in the domain does not exist if no container has it. Default: none.
	DomainName string `json:"domainName"`
	DNS        struct {
		// Addresses of the name servers that all other names are forwarded to. Default: the name servers of the
		// previous result, or those of the host's /etc/resolv.conf.
		Nameservers []string `json:"nameservers" want:"address" says:"an address, such as 192.0.2.53 or 2001:db8::53"`
		// Local domain of the container (domain in resolv.conf). Default: that of the previous result.
		Domain string `json:"domain"`
		// Search domains of the container, after domainName. Default: those of the previous result.
		Search []string `json:"search"`
		// Options of the container's resolv.conf, such as "ndots:2". Default: those of the previous result.
		Options []string `json:"options"`
	} `json:"dns"`

	RuntimeConfig struct {
		// More names of the container (clause K9): a list of DNS labels, or, as podman sends it, an object with a list
		// for each network.
		Aliases aliases `json:"aliases"`
	} `json:"runtimeConfig"`
}

// aliases are names, as one list or by network.
type aliases struct {
	list []string
	of   map[string][]string
}

// UnmarshalJSON implements json.Unmarshaler.
func (a *aliases) UnmarshalJSON(b []byte) error {
	into := any(&a.list)
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		into = &a.of
	}
	if json.Unmarshal(b, into) != nil {
		return errors.New(`want a list of names, such as ["db", "primary-db"], or an object of such lists by network`)
	}
	return nil
}

// mostAliases bounds what one container may have: a record has to fit in a file.
const mostAliases = 256

func want(c conf, r *sdk.Request) (answer sdk.Answer, err error) {
	p := plan.Plan{plan.Prerequisite(names.Server{Network: r.Network})}
	n := names.Names{Owner: r.Owner, Domain: strings.ToLower(strings.TrimSuffix(c.DomainName, "."))}
	n.DNS = spec.DNS{Domain: c.DNS.Domain, Search: c.DNS.Search, Options: c.DNS.Options}
	if c.DomainName != "" {
		if err := domain(n.Domain); err != nil {
			return answer, bad("domainName: %q: %w", c.DomainName, err)
		}
	}
	if err := c.names(&n, r, &answer); err != nil {
		return answer, err
	}
	for i, s := range c.DNS.Nameservers {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return answer, bad("dns.nameservers[%d]: %q: want an address, such as 192.0.2.53 or 2001:db8::53", i, s)
		}
		n.Upstream = append(n.Upstream, a)
	}
	if r.Prev == nil { // STATUS
		answer.Plan = p
		return answer, nil
	}
	n.Link, _ = r.GatewayLink()
	for _, ip := range r.ContainerIPs() {
		n.Addrs = append(n.Addrs, ip.Address)
		if gw := ip.Gateway; gw.IsValid() && !gw.IsLinkLocalUnicast() && !slices.Contains(n.Gateways, gw) {
			n.Gateways = append(n.Gateways, gw)
		}
	}
	if len(n.Addrs) == 0 {
		return answer, bad("prevResult: has no address of %s, so names cannot lead to it: configure ipam",
			r.IfName)
	}
	if len(c.DNS.Nameservers) == 0 {
		n.Upstream = upstream(n.Gateways, r, &answer)
	}
	answer.Plan = append(p, n)
	return answer, nil
}

// upstream are the name servers that the result names so far. The final result, which CHECK has, names the gateways.
func upstream(gateways []netip.Addr, r *sdk.Request, answer *sdk.Answer) (all []netip.Addr) {
	for i, s := range r.Prev.DNS.Nameservers {
		a, err := netip.ParseAddr(s)
		if err != nil {
			answer.Warn("prevResult.dns.nameservers[%d]: %q: is not an address, so the name server ignores it", i, s)
		} else if !slices.Contains(gateways, a) {
			all = append(all, a)
		}
	}
	return all
}

// names are the container's own, and its aliases.
func (c conf) names(n *names.Names, r *sdk.Request, answer *sdk.Answer) error {
	add := func(to *[]string, s string) {
		if s = strings.ToLower(s); !slices.Contains(n.Names, s) && !slices.Contains(*to, s) {
			*to = append(*to, s)
		}
	}
	const told = "K8S_POD_NAME"
	if s := r.CNIArg(told); s != "" {
		if err := dnslabel.Valid(s); err != nil {
			answer.Warn("%s: %q: %v, so other containers cannot use this name", told, s, err)
		} else {
			add(&n.Names, s)
		}
	}
	id := r.ContainerID
	if len(id) > dnslabel.MaxLength {
		id = id[:12]
	}
	if dnslabel.Valid(id) == nil {
		add(&n.Names, id)
	}
	asked, path := c.RuntimeConfig.Aliases.list, "runtimeConfig.aliases"
	if of := c.RuntimeConfig.Aliases.of; of != nil {
		asked, path = of[r.Network], path+"."+r.Network
	}
	if len(asked) > mostAliases {
		return bad("%s: %d names: want at most %d", path, len(asked), mostAliases)
	}
	for i, s := range asked {
		if err := dnslabel.Valid(s); err != nil {
			return bad("%s[%d]: %q: %w", path, i, s, err)
		}
		add(&n.Aliases, s)
	}
	if len(n.Names)+len(n.Aliases) == 0 && r.ContainerID != "" {
		answer.Warn("CNI_CONTAINERID: %q: is not a DNS label, and there is no alias: other containers cannot find "+
			"the container by name",
			r.ContainerID)
	}
	return nil
}

// domain is nil for a domain name.
func domain(s string) error {
	for part := range strings.SplitSeq(s, ".") {
		if dnslabel.Valid(part) != nil || len(s) > 190 {
			return fmt.Errorf("want a domain, such as dns.podman: at most 190 characters, DNS labels with dots " +
				"between them")
		}
	}
	return nil
}

func bad(format string, args ...any) error { return spec.Errorf(spec.CodeConfig, format, args...) }
