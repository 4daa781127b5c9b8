// Package resolv is the resolv.conf of a container: what networks say of DNS, completed by what the host can say to
// it. The server of names is package nameserver.
package resolv

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/spec"
)

// MergeDNS adds what another network's result says. Each network may know names that the others do not.
func MergeDNS(to *spec.DNS, from spec.DNS) {
	add := func(to *[]string, from []string) {
		for _, s := range from {
			if !slices.Contains(*to, s) {
				*to = append(*to, s)
			}
		}
	}
	add(&to.Nameservers, from.Nameservers)
	add(&to.Search, from.Search)
	add(&to.Options, from.Options)
	if to.Domain == "" {
		to.Domain = from.Domain
	}
}

// Where resolv.conf lies, and where systemd-resolved keeps the one with the servers that it asks itself.
const (
	EtcResolv     = "/etc/resolv.conf"
	SystemdResolv = "/run/systemd/resolve/resolv.conf"
)

// ResolvConf is the resolv.conf(5) that a command should see: what dns says, and the host's servers where it
// says none. Nil leaves the host's file as it is. A server on the host's loopback is out of reach from
// another namespace, so those are taken that systemd-resolved asks itself, or it is noted that names will
// not resolve.
func ResolvConf(dns spec.DNS, etc, systemd string) (content []byte, note string) {
	host, _ := plainfile.ReadLinked(etc, plainfile.MaxSize) // a host without one has no names either
	servers, loopback := Nameservers(host)
	if len(servers) == 0 && len(loopback) > 0 {
		host, _ = plainfile.ReadLinked(systemd, plainfile.MaxSize)
		servers, _ = Nameservers(host)
	}
	search := slices.Clone(dns.Search)
	if dns.Domain != "" && !slices.Contains(search, dns.Domain) {
		search = append(search, dns.Domain) // of domain and search, only the last one in the file would count
	}
	asked := len(dns.Nameservers)+len(search)+len(dns.Options) > 0
	switch {
	case len(dns.Nameservers) > 0:
		servers = dns.Nameservers
	case len(servers) == 0 && len(loopback) > 0:
		note = fmt.Sprintf("names will not resolve: %s names %s, which is out of reach from another network "+
			"namespace; "+
			"give --dns ADDRESS",
			etc, strings.Join(loopback, ", "))
		if !asked {
			return nil, note
		}
	case !asked && len(loopback) > 0:
		return host, ""
	case !asked:
		return nil, ""
	}
	var b strings.Builder
	fmt.Fprintln(&b, "# Made by fairlead run from the networks' results.")
	for _, s := range servers {
		fmt.Fprintln(&b, "nameserver", s)
	}
	if len(search) > 0 {
		fmt.Fprintln(&b, "search", strings.Join(search, " "))
	}
	if len(dns.Options) > 0 {
		fmt.Fprintln(&b, "options", strings.Join(dns.Options, " "))
	}
	return []byte(b.String()), note
}

// Nameservers are those of a resolv.conf; those on loopback only the host itself reaches.
func Nameservers(conf []byte) (reachable, loopback []string) {
	for line := range strings.Lines(string(conf)) {
		word := strings.Fields(line)
		if len(word) < 2 || word[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(word[1]); err == nil && a.IsLoopback() {
			loopback = append(loopback, word[1])
		} else {
			reachable = append(reachable, word[1])
		}
	}
	return reachable, loopback
}
