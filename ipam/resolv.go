package ipam

import (
	"strings"

	"github.com/fairlead-cni/fairlead/spec"
)

// ParseResolvConf reads the text of a resolv.conf. As in the reference's host-local, several search and
// options lines add up, and the last domain counts. A comment begins with no key.
func ParseResolvConf(text string) spec.DNS {
	var dns spec.DNS
	for _, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, f[1])
		case "domain":
			dns.Domain = f[1]
		case "search":
			dns.Search = append(dns.Search, f[1:]...)
		case "options":
			dns.Options = append(dns.Options, f[1:]...)
		}
	}
	return dns
}
