// Package foreign finds the chains of other programs that forwarded packets pass, in nf_tables and in ip_tables.
package foreign

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
)

// Found is the list of other programs' chains that forwarded packets pass.
type Found struct {
	Chains []nft.BaseChain // at the forward hook of ip, ip6 and inet, with a policy of drop or any rule
	Legacy []string        // "ip" and "ip6", where legacy iptables has the table filter
}

// String returns a text such as "ip filter FORWARD, inet firewalld filter_FORWARD, legacy iptables (ip)".
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

// AtForward finds the chains of other programs at the forward hook. It ignores the tables in skip, written as "inet
// fairlead". It dumps the chains of all tables without their rules.
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

// Fingerprint returns a text that changes in three cases: another program adds, deletes or replaces a table, or a set
// or chain in one; legacy iptables appears or disappears; iptables-nft changes FORWARD's number of rules or its
// policy. Of single chains, it reads only FORWARD of both families. So its cost does not depend on the number of
// chains, and it does not see changes inside other chains.
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
