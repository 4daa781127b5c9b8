package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// An IPTVariant is one of the two programs called iptables. Their tables are of the same names, and neither
// sees the other's.
type IPTVariant byte

// IPTNFT keeps its tables in nf_tables, IPTLegacy in ip_tables.
const (
	IPTNFT IPTVariant = 1 + iota
	IPTLegacy
)

// String is "nft" or "legacy".
func (v IPTVariant) String() string {
	if v == IPTLegacy {
		return "legacy"
	}
	return "nft"
}

// An IPTables is one table of one family, by one variant. Nothing is executed before there is something to
// change or to read; whether there is, the kernel is asked itself.
type IPTables struct {
	ns      *NS
	Variant IPTVariant
	V6      bool
	Table   string // filter, nat, …
}

// IPTables is a table by a given variant, whether it exists or not.
func (ns *NS) IPTables(v IPTVariant, v6 bool, table string) *IPTables {
	return &IPTables{ns, v, v6, table}
}

// IPTablesOf is a table by the variant that has it on this host. Where none or both have it, that is the one
// that plain "iptables" is.
func (ns *NS) IPTablesOf(v6 bool, table string) (*IPTables, error) {
	owners, err := ns.iptOwners(v6, table)
	if err != nil {
		return nil, err
	}
	if len(owners) == 1 {
		return owners[0], nil
	}
	v, err := plainVariant(v6)
	if err != nil {
		return nil, err
	}
	return ns.IPTables(v, v6, table), nil
}

// iptOwners are the variants that have a table.
func (ns *NS) iptOwners(v6 bool, table string) (owners []*IPTables, err error) {
	for _, v := range []IPTVariant{IPTNFT, IPTLegacy} {
		t := ns.IPTables(v, v6, table)
		there, err := t.exists()
		if err != nil {
			return nil, err
		}
		if there {
			owners = append(owners, t)
		}
	}
	return owners, nil
}

// String is the table as one would list it: "iptables-nft -t nat".
func (t *IPTables) String() string { return t.command("") + " -t " + t.Table }

// command is the name of the variant's program: "ip6tables-legacy-save" for "save".
func (t *IPTables) command(what string) string {
	name := "iptables-" + t.Variant.String()
	if t.V6 {
		name = "ip6tables-" + t.Variant.String()
	}
	if what != "" {
		name += "-" + what
	}
	return name
}

// nft is the table in nf_tables.
func (t *IPTables) nft() *NFTTable {
	return &NFTTable{Family: NFProto(t.V6), Name: t.Table}
}

// exists reports whether the variant has the table. A kernel without the variant has none.
func (t *IPTables) exists() (bool, error) {
	if t.Variant == IPTLegacy {
		names, err := t.ns.legacyTables(t.V6)
		return slices.Contains(names, t.Table), err
	}
	n, err := t.ns.NFT()
	if err != nil {
		return false, ignoreNoNFT(err)
	}
	_, there, err := n.Handle(t.nft())
	return there, ignoreNoNFT(err)
}

func ignoreNoNFT(err error) error {
	if unsupported(err) {
		return nil
	}
	return err
}

// Chains tells which of these chains exist, in their order.
func (t *IPTables) Chains(names ...string) (there []bool, err error) {
	if t.Variant == IPTLegacy {
		there = make([]bool, len(names))
		chains, exists, err := t.ns.legacyChains(t.V6, t.Table)
		for i, name := range names {
			there[i] = slices.Contains(chains, name) || exists && builtinChain(name)
		}
		return there, err
	}
	n, err := t.ns.NFT()
	if err != nil {
		return make([]bool, len(names)), ignoreNoNFT(err)
	}
	there, err = n.haveChains(t.nft(), names)
	return there, ignoreNoNFT(err)
}

// chainQuestion asks for a chain by name.
func (t *NFTTable) chainQuestion(name string) *question {
	return &question{op: unix.NFT_MSG_GETCHAIN, family: t.Family, answer: func([]byte) {},
		fill: named(unix.NFTA_CHAIN_TABLE, t, unix.NFTA_CHAIN_NAME, name)}
}

// An IPTRule is a rule of a chain. What was not read by iptables-save has no words.
type IPTRule struct {
	Chain    string
	Words    []string       // as iptables(8) takes them after "-A chain"
	Jump     string         // the chain or target; "" where it could not be told
	Comment  string         // of -m comment
	Src, Dst netip.Prefix   // where one address or prefix is asked for, and not its contrary
	Proto    string         // tcp, udp, sctp
	Ports    [][2]uint16    // destination ports, first and last
	To       netip.AddrPort // of -j DNAT; port 0 is the same port

	handle uint64
}

// NewIPTRule is a rule to append.
func NewIPTRule(chain string, words ...string) IPTRule { return parseIPTRule(chain, words) }

// String is "-A chain words", quoted so that iptables-restore reads the same words.
func (r IPTRule) String() string { return r.line("-A") }

// line is the rule after a command: -A, -D, -I or -C.
func (r IPTRule) line(command string) string {
	words := append([]string{command, quoteIPT(r.Chain)}, r.Words...)
	for i, w := range words[2:] {
		words[2+i] = quoteIPT(w)
	}
	return strings.Join(words, " ")
}

// Append, Insert and Delete are lines for Apply.
func (r IPTRule) Append() string { return r.line("-A") }

// Insert puts the rule first.
func (r IPTRule) Insert() string { return r.line("-I") }

// Delete deletes the first rule that says the same; there has to be one.
func (r IPTRule) Delete() string { return r.line("-D") }

// Same reports whether two rules have the same words.
func (r IPTRule) Same(s IPTRule) bool { return r.Chain == s.Chain && slices.Equal(r.Words, s.Words) }

func parseIPTRule(chain string, words []string) IPTRule {
	r := IPTRule{Chain: chain, Words: words}
	for i := 0; i+1 < len(words); i++ {
		not := i > 0 && words[i-1] == "!"
		prefix := func() (p netip.Prefix) {
			if not {
				return p
			}
			p, err := netip.ParsePrefix(words[i+1])
			if a, aerr := netip.ParseAddr(words[i+1]); err != nil && aerr == nil {
				p = netip.PrefixFrom(a, a.BitLen())
			}
			return p
		}
		switch words[i] {
		case "-j", "-g":
			r.Jump = words[i+1]
		case "--comment":
			r.Comment = words[i+1]
		case "-s":
			r.Src = prefix()
		case "-d":
			r.Dst = prefix()
		case "-p":
			r.Proto = words[i+1]
		case "--dport", "--dports", "--destination-ports":
			r.Ports = parsePorts(words[i+1])
		case "--to-destination":
			if a, err := netip.ParseAddr(words[i+1]); err == nil {
				r.To = netip.AddrPortFrom(a, 0)
			} else if ap, err := netip.ParseAddrPort(words[i+1]); err == nil {
				r.To = ap
			}
		default:
			continue
		}
		i++
	}
	return r
}

// parsePorts reads "80,8000:8010".
func parsePorts(list string) (ports [][2]uint16) {
	for _, w := range strings.Split(list, ",") {
		first, last, both := strings.Cut(w, ":")
		if !both {
			last = first
		}
		a, aerr := strconv.ParseUint(first, 10, 16)
		b, berr := strconv.ParseUint(last, 10, 16)
		if aerr == nil && berr == nil {
			ports = append(ports, [2]uint16{uint16(a), uint16(b)})
		}
	}
	return ports
}

// quoteIPT quotes a word as iptables-save does.
func quoteIPT(w string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("!-_./:,+[]%@=", r)
	}
	if w != "" && strings.IndexFunc(w, func(r rune) bool { return !plain(r) }) < 0 {
		return w
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", " ", "\x00", "").Replace(w) + `"`
}

// splitIPT takes a line of iptables-save apart.
func splitIPT(line string) (words []string) {
	var word []byte
	in, quoted := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case quoted && c == '\\' && i+1 < len(line):
			i++
			word = append(word, line[i])
		case c == '"':
			quoted = !quoted
			in = true
		case !quoted && (c == ' ' || c == '\t'):
			if in {
				words = append(words, string(word))
				word, in = nil, false
			}
		default:
			word = append(word, c)
			in = true
		}
	}
	if in {
		words = append(words, string(word))
	}
	return words
}

// Save is what iptables-save says of the table: the rules of each chain, in order. A table that does not
// exist has none, and then nothing is executed.
func (t *IPTables) Save(ctx context.Context) (chains map[string][]IPTRule, err error) {
	chains = map[string][]IPTRule{}
	if there, err := t.exists(); err != nil || !there {
		return chains, err
	}
	out, err := t.run(ctx, "", "save", "-t", t.Table)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, ":"); ok {
			name, _, _ = strings.Cut(name, " ")
			chains[name] = nil
		} else if rest, ok := strings.CutPrefix(line, "-A "); ok {
			if words := splitIPT(rest); len(words) > 0 {
				chains[words[0]] = append(chains[words[0]], parseIPTRule(words[0], words[1:]))
			}
		}
	}
	return chains, nil
}

// Apply makes all these changes, or none: lines as iptables-restore takes them, without the table and COMMIT.
// A line ":CHAIN -" makes a chain, and empties one that exists; "-N CHAIN" fails if it exists.
func (t *IPTables) Apply(ctx context.Context, lines ...string) error {
	if len(lines) == 0 {
		return nil
	}
	in := "*" + t.Table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
	_, err := t.run(ctx, in, "restore", "--noflush")
	return err
}

// Missing are those of the rules that the table lacks. Nothing is changed.
func (t *IPTables) Missing(ctx context.Context, rules ...IPTRule) (missing []IPTRule, err error) {
	chains := map[string]bool{}
	for _, r := range rules {
		chains[r.Chain] = false
	}
	for name := range chains {
		there, err := t.Chains(name)
		if err != nil {
			return nil, err
		}
		chains[name] = there[0]
	}
	var left []IPTRule
	for _, r := range rules {
		if chains[r.Chain] {
			left = append(left, r)
		} else {
			missing = append(missing, r)
		}
	}
	for len(left) > 0 {
		// A line that fails ends it, so those before it are there, and those after it are asked again.
		lines := make([]string, len(left))
		for i, r := range left {
			lines[i] = r.line("-C")
		}
		args := []string{"--noflush"}
		if t.Variant == IPTLegacy { // nft looks at nothing when it is told to test
			args = append(args, "--test")
		}
		_, err := t.run(ctx, "*"+t.Table+"\n"+strings.Join(lines, "\n")+"\nCOMMIT\n", "restore", args...)
		if err == nil {
			break
		}
		var failed *IPTError
		if !errors.As(err, &failed) || failed.Line < 2 || failed.Line-2 >= len(left) {
			return nil, err
		}
		missing = append(missing, left[failed.Line-2])
		left = left[failed.Line-1:]
	}
	return missing, nil
}

// An IPTError is what a program says that failed. Line is that of its input, from 1 on; 0 is unknown.
type IPTError struct {
	Program, Says string
	Line          int
	Err           error
}

func (e *IPTError) Error() string { return fmt.Sprintf("%s: %v: %s", e.Program, e.Err, e.Says) }

func (e *IPTError) Unwrap() error { return e.Err }

// Misuse reports whether a line was not understood, rather than refused.
func (e *IPTError) Misuse() bool {
	var exit interface{ ExitCode() int }
	return errors.As(e.Err, &exit) && exit.ExitCode() == 2
}
