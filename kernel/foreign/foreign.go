// Package foreign looks for what others have put in the way of forwarded packets, in nf_tables and in ip_tables.
package foreign

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/xtables"
)

// Found is what others have put in the way of forwarded packets.
type Found struct {
	Chains []nft.BaseChain // at the forward hook of ip, ip6 and inet, with a policy of drop or any rule
	Legacy []string        // "ip" and "ip6", where legacy iptables has the table filter
}

// String is "ip filter FORWARD, inet firewalld filter_FORWARD, legacy iptables (ip)".
func (f Found) String() string {
	var words []string
	for _, c := range f.Chains {
		words = append(words, c.String())
	}
	for _, family := range f.Legacy {
		words = append(words, "legacy iptables ("+family+")")
	}
	return strings.Join(words, ", ")
}

// AtForward looks at what others have at the forward hook, but for the tables in skip, as in
// "inet fairlead". It dumps the chains of all tables, without their rules.
func AtForward(ns *kernel.NS, skip ...string) (f Found, err error) {
	conn, err := nft.Open(ns)
	if err != nil {
		return f, err
	}
	chains, err := conn.BaseChains()
	if err != nil {
		return f, err
	}
	for _, c := range chains {
		if c.Forwards() && !slices.Contains(skip, c.TableName()) && (c.Drops || c.Rules > 0) {
			f.Chains = append(f.Chains, c)
		}
	}
	f.Legacy, err = legacyFilter(ns)
	return f, err
}

// Fingerprint changes when somebody else adds, deletes or replaces a table, a set or a chain in one, when
// legacy iptables comes or goes, and when iptables-nft changes how many rules FORWARD has, or its policy. It asks
// for no chain but those two, so it costs the same with thousands of them; what is deeper down it does not see.
func Fingerprint(ns *kernel.NS, skip ...string) (string, error) {
	legacy, err := legacyFilter(ns)
	if err != nil {
		return "", err
	}
	conn, err := nft.Open(ns)
	if err != nil {
		return "", err
	}
	h := fnv.New64a()
	fmt.Fprintln(h, legacy)
	if err := conn.Fingerprint(h, skip); err != nil {
		return "", err
	}
	return fmt.Sprintf("%016x", h.Sum64()), nil
}

// legacyFilter are the families whose legacy iptables has a table filter in this namespace. Once it is there it
// stays until the module goes, empty or not.
func legacyFilter(ns *kernel.NS) (families []string, err error) {
	for _, family := range []string{"ip", "ip6"} {
		names, err := xtables.LegacyTables(ns, family == "ip6")
		if err != nil {
			return nil, fmt.Errorf("look for legacy iptables: %w", err)
		}
		if slices.Contains(names, "filter") {
			families = append(families, family)
		}
	}
	return families, nil
}
