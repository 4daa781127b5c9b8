package support

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/doctor"
	"github.com/fairlead-cni/fairlead/internal/command/cli/inspect"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/command/packetfilter"
	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

const oNonblock = unix.O_NONBLOCK // so that a pipe does not block

// system adds what is known of the machine.
func (c *collector) system() {
	c.part("system.txt", "the kernel and the distribution", func() ([]byte, error) {
		var b bytes.Buffer
		var errs []error
		for _, path := range []string{"/proc/version", "/etc/os-release", "/proc/uptime", "/proc/loadavg",
			"/proc/meminfo",
			"/proc/sys/kernel/tainted", "/proc/net/stat/nf_conntrack", "/proc/net/stat/arp_cache",
			"/proc/net/softnet_stat",
			"/proc/net/ip_tables_names", "/proc/net/ip6_tables_names", "/proc/self/status"} {
			text, err := os.ReadFile(path)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
			if err == nil {
				fmt.Fprintf(&b, "== %s\n%s\n", path, text)
			}
		}
		return b.Bytes(), errors.Join(errs...)
	})
	c.file("modules.txt", "/proc/modules", "the modules of the kernel")
	c.part("clients.json", "the installed runtimes, and the CNI versions they support", func() ([]byte, error) {
		found := []map[string]any{}
		for _, c := range doctor.Clients() {
			found = append(found, map[string]any{"name": c.Name, "version": c.Version, "takes": c.Speaks})
		}
		return json.Marshal(found)
	})
}

// host adds the network of the host.
func (c *collector) host() {
	c.network("host", "the host", "")
	const nft = "nf_tables of all programs, in the words of nft(8) as doctor reads them"
	c.part("host/nftables.txt", nft, func() ([]byte, error) {
		return c.ofNamespace("", func(ns *kernel.NS, w io.Writer) error { return packetfilter.DumpNFT(ns, w, 500) })
	})
	c.part("host/iptables-legacy.txt", "the rules of legacy iptables, as doctor reads them", func() ([]byte, error) {
		return c.ofNamespace("", packetfilter.DumpLegacy)
	})
}

// ofNamespace returns what write writes about a namespace. The names of links and tables may have any characters, and
// are shown as on a terminal.
func (c *collector) ofNamespace(path string, write func(*kernel.NS, io.Writer) error) ([]byte, error) {
	ns := c.Host
	if path != "" {
		var err error
		if ns, err = c.Host.Enter(path); err != nil {
			return nil, err
		}
		defer ns.Close()
	}
	var b bytes.Buffer
	err := write(ns, &b)
	return printable(b.String()), err
}

// printable returns lines as they are shown on a terminal, with their tabs.
func printable(text string) []byte {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		indented := strings.TrimLeft(line, "\t")
		b.WriteString(line[:len(line)-len(indented)])
		b.WriteString(string(term.Printable(indented)) + "\n")
	}
	return []byte(b.String())
}

// network adds a namespace's links, addresses, routes, rules, neighbours and sysctls.
func (c *collector) network(top, whose, path string) {
	c.part(top+"/network.txt", "links, addresses, routes, rules, neighbours and sysctls of "+whose,
		func() ([]byte, error) {
			return c.ofNamespace(path, networkText)
		})
	c.part(top+"/listeners.txt", "listening sockets of "+whose, func() ([]byte, error) {
		return c.ofNamespace(path, func(ns *kernel.NS, w io.Writer) error {
			_, err := fmt.Fprintln(w, strings.Join(inspect.Listening(ns, c.Holder), "\n"))
			return err
		})
	})
}

func networkText(ns *kernel.NS, w io.Writer) error {
	links, err := rtnl.Links(ns)
	name := map[int]string{}
	for _, l := range links {
		name[l.Index] = l.Name
	}
	fmt.Fprintln(w, "LINKS AND ADDRESSES")
	for _, l := range links {
		fmt.Fprintln(w, linkText(l, name))
		addrs, aerr := rtnl.Addrs(ns, l.Index)
		err = errors.Join(err, aerr)
		for _, a := range addrs {
			fmt.Fprintf(w, "    %v scope %d%s%s%s\n", a.Prefix, a.Scope, flag(a.Tentative, "tentative"),
				flag(a.DADFailed, "dadfailed"), flag(a.Dynamic, "dynamic"))
		}
		if vlans, verr := rtnl.PortVLANs(ns, l.Index); l.Port != nil && verr == nil && len(vlans) > 0 {
			fmt.Fprintf(w, "    VLANs %+v\n", vlans)
		}
	}
	for _, family := range []uint8{rtnl.IPv4, rtnl.IPv6} {
		routes, rerr := rtnl.Routes(ns, rtnl.RouteFilter{Family: family})
		fmt.Fprintf(w, "\nROUTES OF IPV%d\n", map[uint8]int{rtnl.IPv4: 4, rtnl.IPv6: 6}[family])
		for _, r := range routes {
			fmt.Fprintf(w, "%s dev %s table %d type %d proto %d scope %d\n", inspect.RouteText(r), name[r.Link],
				r.Table, r.Type, r.Protocol, r.Scope)
		}
		rules, lerr := rtnl.Rules(ns, family)
		fmt.Fprintln(w, "\nRULES")
		for _, r := range rules {
			fmt.Fprintf(w, "%d: from %s to %s%s%s mark 0x%x/0x%x table %d action %d proto %d\n", r.Priority,
				anyOr(r.From),
				anyOr(r.To), flag(r.IIF != "", "iif "+r.IIF), flag(r.OIF != "", "oif "+r.OIF), r.Mark, r.Mask, r.Table,
				r.Action, r.Protocol)
		}
		fmt.Fprintln(w, "\nNEIGHBOURS")
		var nerr error
		for _, l := range links {
			list, one := rtnl.NeighbourMessages(ns, family, l.Index)
			nerr = errors.Join(nerr, one)
			for _, m := range list {
				n := m.Neighbour()
				fmt.Fprintf(w, "%v dev %s lladdr %v state 0x%x\n", n.Addr, l.Name, n.MAC, n.State)
			}
		}
		err = errors.Join(err, rerr, lerr, nerr)
	}
	fmt.Fprintln(w, "\nSYSCTLS")
	for _, key := range sysctlKeys(links) {
		if v, serr := procsys.Get(ns, key); serr == nil {
			fmt.Fprintf(w, "%s = %s\n", key, v)
		}
	}
	return err
}

func anyOr(p netip.Prefix) string {
	if !p.IsValid() {
		return "any"
	}
	return p.String()
}

func flag(is bool, word string) string {
	if is {
		return " " + word
	}
	return ""
}

func linkText(l *rtnl.Link, name map[int]string) string {
	peer := name[l.Peer]
	if l.PeerAway {
		peer = fmt.Sprintf("#%d of another namespace (%d)", l.Peer, l.PeerNS)
	}
	state := "down"
	if l.Up {
		state = "up"
	}
	text := fmt.Sprintf("%d: %s%s %s%s mtu %d %v%s%s%s", l.Index, l.Name, flag(l.Kind != "", l.Kind), state,
		flag(l.Operational, "running"), l.MTU, l.MAC, flag(l.Master != 0, "master "+name[l.Master]),
		flag(l.Peer != 0, "peer "+peer), flag(l.Promisc, "promisc"))
	if l.Alias != "" {
		text += fmt.Sprintf(" alias %q", l.Alias)
	}
	if alt := l.AltNames(); len(alt) > 0 {
		text += fmt.Sprintf(" altnames %q", alt)
	}
	if l.Kind == "bridge" {
		text += flag(l.Data.Filtering, "vlan_filtering")
	}
	if l.Data.VLAN != 0 {
		text += fmt.Sprintf(" vlan %d", l.Data.VLAN)
	}
	return text
}

// sysctlKeys returns the sysctls that packets of containers depend on.
func sysctlKeys(links []*rtnl.Link) (keys []string) {
	keys = []string{"net/ipv4/ip_forward", "net/ipv4/ip_unprivileged_port_start", "net/ipv4/ip_local_port_range",
		"net/ipv4/ip_local_reserved_ports", "net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables",
		"net/netfilter/nf_conntrack_max", "net/netfilter/nf_conntrack_count", "net/ipv4/neigh/default/gc_thresh3",
		"net/ipv6/neigh/default/gc_thresh3"}
	names := []string{"all", "default"}
	for _, l := range links[:min(len(links), 64)] {
		names = append(names, l.Name)
	}
	for _, name := range names {
		for _, key := range []string{"ipv4/conf/%s/forwarding", "ipv4/conf/%s/rp_filter", "ipv4/conf/%s/route_localnet",
			"ipv4/conf/%s/arp_ignore", "ipv4/conf/%s/proxy_arp", "ipv6/conf/%s/forwarding", "ipv6/conf/%s/disable_ipv6",
			"ipv6/conf/%s/accept_ra", "ipv6/conf/%s/accept_dad"} {
			keys = append(keys, "net/"+fmt.Sprintf(key, name))
		}
	}
	return slices.Compact(keys)
}
