package kernel

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Foreign is what others have put in the way of forwarded packets.
type Foreign struct {
	Chains []BaseChain // at the forward hook of ip, ip6 and inet, with a policy of drop or any rule
	Legacy []string    // "ip" and "ip6", where legacy iptables has the table filter
}

// String is "ip filter FORWARD, inet firewalld filter_FORWARD, legacy iptables (ip)".
func (f Foreign) String() string {
	var words []string
	for _, c := range f.Chains {
		words = append(words, c.String())
	}
	for _, family := range f.Legacy {
		words = append(words, "legacy iptables ("+family+")")
	}
	return strings.Join(words, ", ")
}

// ForeignForward looks at what others have at the forward hook, but for the tables in skip, as in
// "inet fairlead". It dumps the chains of all tables, without their rules.
func (ns *NS) ForeignForward(skip ...string) (f Foreign, err error) {
	nft, err := ns.NFT()
	if err != nil {
		return f, err
	}
	chains, err := nft.BaseChains()
	if err != nil {
		return f, err
	}
	for _, c := range chains {
		if c.Forwards() && !slices.Contains(skip, c.TableName()) && (c.Drops || c.Rules > 0) {
			f.Chains = append(f.Chains, c)
		}
	}
	f.Legacy, err = ns.legacyFilter()
	return f, err
}

// ForeignFingerprint changes when somebody else adds, deletes or replaces a table, a set or a chain in one, when
// legacy iptables comes or goes, and when iptables-nft changes how many rules FORWARD has, or its policy. It asks
// for no chain but those two, so it costs the same with thousands of them; what is deeper down it does not see.
func (ns *NS) ForeignFingerprint(skip ...string) (string, error) {
	legacy, err := ns.legacyFilter()
	if err != nil {
		return "", err
	}
	nft, err := ns.NFT()
	if err != nil {
		return "", err
	}
	h := fnv.New64a()
	fmt.Fprintln(h, legacy)
	if err := nft.fingerprint(h, skip); err != nil {
		return "", err
	}
	return fmt.Sprintf("%016x", h.Sum64()), nil
}

// unsupported says of an error that the kernel has no nf_tables, so that nobody has rules there.
func unsupported(err error) bool {
	return is(err, unix.EINVAL, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT)
}

// legacyFilter are the families whose legacy iptables has a table filter in this namespace. Once it is there it
// stays until the module goes, empty or not.
func (ns *NS) legacyFilter() (families []string, err error) {
	for _, family := range []string{"ip", "ip6"} {
		names, err := ns.legacyTables(family == "ip6")
		if err != nil {
			return nil, fmt.Errorf("look for legacy iptables: %w", err)
		}
		if slices.Contains(names, "filter") {
			families = append(families, family)
		}
	}
	return families, nil
}

// TableName is "inet firewalld".
func (c BaseChain) TableName() string { return strings.TrimSuffix(c.String(), " "+c.Name) }

// Forwards reports whether packets that the host forwards pass the chain.
func (c BaseChain) Forwards() bool {
	return c.Hook == unix.NF_INET_FORWARD &&
		(c.Family == unix.NFPROTO_IPV4 || c.Family == unix.NFPROTO_IPV6 || c.Family == unix.NFPROTO_INET)
}
