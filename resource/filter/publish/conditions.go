package publish

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
)

// Conditions of an attachment hold for that attachment alone. All with the same conditions share a chain
// and maps of their own, so a packet is looked at once for each set of conditions and not for each
// attachment. Conditions are asked before the ports that have none.

// parseConditions understands what people write there: a part of nft(8)'s words, or of iptables(8)'s. The
// rules are alternatives, for a rule has no "or"; where is a hash of what they mean.
func parseConditions(words []string, v6 bool) (alternatives []*nft.Rule, where string, err error) {
	p := conditionParser{v6: v6, rules: []*nft.Rule{nft.NewRule("conditions").Family(v6)}}
	for _, w := range words {
		w = strings.NewReplacer("{", " { ", "}", " } ", ",", " , ", "!=", " != ", `"`, " ", "'", " ").Replace(w)
		for _, f := range strings.Fields(w) {
			if f != "!" && f != "!=" && f[0] == '!' {
				p.words = append(p.words, "!")
				f = f[1:]
			}
			p.words = append(p.words, f)
		}
	}
	if len(p.words) == 0 {
		return nil, "", nil
	}
	match := p.nft
	if p.words[0][0] == '-' || p.words[0] == "!" {
		match = p.iptables
	}
	for len(p.words) > 0 {
		if err := match(); err != nil {
			return nil, "", err
		}
	}
	if len(p.rules) > 64 {
		return nil, "", p.fail("", "is more than 64 combinations")
	}
	var all strings.Builder
	for _, r := range p.rules {
		all.WriteString(r.Code())
	}
	return p.rules, identity.ShortHash(all.String()), nil
}

const understood = "understood are, of nft's words, ip or ip6 saddr and daddr, iifname, meta mark, meta l4proto, " +
	"tcp, udp, sctp or th sport and dport, each with != and { , }; of iptables', " +
	"-s, -d, -i, -p, --sport, --dport, -m mark --mark, each with !"

type conditionParser struct {
	v6    bool
	words []string
	rules []*nft.Rule
}

func (p *conditionParser) fail(word, what string) error {
	return spec.Errorf(spec.CodeUnsupported, "%s: %s %s; %s", ConditionsKey(p.v6), strconv.Quote(word), what,
		understood)
}

func (p *conditionParser) next() string {
	if len(p.words) == 0 {
		return ""
	}
	w := p.words[0]
	p.words = p.words[1:]
	return w
}

func (p *conditionParser) accept(words ...string) bool {
	if len(p.words) > 0 && slices.Contains(words, p.words[0]) {
		p.words = p.words[1:]
		return true
	}
	return false
}

// A matcher appends one comparison to a rule.
type matcher func(r *nft.Rule, not bool)

// and appends the comparison with any of the values, or with none of them.
func (p *conditionParser) and(not bool, values []matcher) {
	if not {
		for _, r := range p.rules {
			for _, m := range values {
				m(r, true)
			}
		}
		return
	}
	var rules []*nft.Rule
	for _, r := range p.rules {
		for _, m := range values {
			c := r.Clone()
			m(c, false)
			rules = append(rules, c)
		}
	}
	p.rules = rules[:min(len(rules), 65)]
}

// nft reads one match in nft(8)'s words.
func (p *conditionParser) nft() error {
	word := p.next()
	if word == "meta" {
		word = p.next()
	}
	var value func(string) (matcher, error)
	mask := uint32(0xffffffff)
	switch word {
	case "ip", "ip6":
		field := p.next()
		if word != filter.FamilyName(p.v6) || field != "saddr" && field != "daddr" {
			return p.fail(word+" "+field, "is not understood here")
		}
		value = p.prefix(field == "daddr")
	case "iifname", "iif":
		value = p.iifname("*")
	case "l4proto":
		value = p.proto
	case "mark":
		if p.accept("&", "and") {
			w := p.next()
			n, err := strconv.ParseUint(w, 0, 32)
			if err != nil {
				return p.fail(w, "is no mask")
			}
			mask = uint32(n)
		}
		value = p.mark(mask)
	case "tcp", "udp", "sctp", "th":
		field := p.next()
		if field != "sport" && field != "dport" {
			return p.fail(word+" "+field, "is not understood")
		}
		if proto, ok := kernel.ParseProto(word); ok {
			p.and(false, []matcher{func(r *nft.Rule, not bool) { r.Proto(not, proto) }})
		}
		value = p.port(field == "dport", "-")
	default:
		return p.fail(word, "is not understood")
	}
	return p.nftValues(value)
}

// nftValues reads what a match of nft(8)'s compares with: a value, or several in braces.
func (p *conditionParser) nftValues(value func(string) (matcher, error)) error {
	not := p.accept("!=")
	if !not {
		p.accept("==")
	}
	var values []matcher
	if !p.accept("{") {
		m, err := value(p.next())
		if err != nil {
			return err
		}
		p.and(not, []matcher{m})
		return nil
	}
	for {
		m, err := value(p.next())
		if err != nil {
			return err
		}
		values = append(values, m)
		switch w := p.next(); w {
		case ",":
			if p.accept("}") {
				p.and(not, values)
				return nil
			}
		case "}":
			p.and(not, values)
			return nil
		default:
			return p.fail(w, "stands where , or } should")
		}
	}
}

// iptables reads one match in iptables(8)'s words.
func (p *conditionParser) iptables() error {
	not := p.accept("!")
	word := p.next()
	var value func(string) (matcher, error)
	switch word {
	case "-m", "--match":
		if w := p.next(); not || !slices.Contains([]string{"mark", "tcp", "udp", "sctp", "multiport"}, w) {
			return p.fail(word+" "+w, "is not understood")
		}
		return nil
	case "-s", "--source", "--src":
		value = p.prefix(false)
	case "-d", "--destination", "--dst":
		value = p.prefix(true)
	case "-i", "--in-interface":
		value = p.iifname("+")
	case "-p", "--proto", "--protocol":
		value = p.proto
	case "--mark":
		value = p.mark(0xffffffff)
	case "--sport", "--source-port", "--sports", "--source-ports":
		value = p.port(false, ":")
	case "--dport", "--destination-port", "--dports", "--destination-ports":
		value = p.port(true, ":")
	default:
		return p.fail(word, "is not understood")
	}
	if p.accept("!") { // the old way to write it
		not = !not
	}
	var values []matcher
	for {
		m, err := value(p.next())
		if err != nil {
			return err
		}
		values = append(values, m)
		if !p.accept(",") {
			p.and(not, values)
			return nil
		}
	}
}

func (p *conditionParser) prefix(dst bool) func(string) (matcher, error) {
	return func(w string) (matcher, error) {
		prefix, err := netip.ParsePrefix(w)
		if err != nil {
			a, err := netip.ParseAddr(w)
			if err != nil {
				return nil, p.fail(w, "is neither an address nor a prefix")
			}
			prefix = filter.Single(a)
		}
		if prefix.Addr().Is6() != p.v6 || prefix.Addr().Is4In6() || prefix.Addr().Zone() != "" {
			return nil, p.fail(w, "is of the other family")
		}
		return func(r *nft.Rule, not bool) { r.Prefix(dst, not, prefix) }, nil
	}
}

func (p *conditionParser) iifname(wildcard string) func(string) (matcher, error) {
	return func(w string) (matcher, error) {
		name, any := strings.CutSuffix(w, wildcard)
		if err := spec.ValidIfName(name); err != nil || any && len(name) > 14 {
			return nil, p.fail(w, "is no name of a link")
		}
		if any {
			name += "*"
		}
		return func(r *nft.Rule, not bool) { r.Iifname(not, name) }, nil
	}
}

func (p *conditionParser) proto(w string) (matcher, error) {
	proto, ok := kernel.ParseProto(strings.ToLower(w))
	if !ok {
		return nil, p.fail(w, "is not tcp, udp or sctp")
	}
	return func(r *nft.Rule, not bool) { r.Proto(not, proto) }, nil
}

func (p *conditionParser) mark(mask uint32) func(string) (matcher, error) {
	return func(w string) (matcher, error) {
		value, given, both := strings.Cut(w, "/")
		n, err := strconv.ParseUint(value, 0, 32)
		m := uint64(mask)
		if err == nil && both {
			m, err = strconv.ParseUint(given, 0, 32)
		}
		if err != nil {
			return nil, p.fail(w, "is no mark")
		}
		return func(r *nft.Rule, not bool) { r.Mark(not, uint32(n), uint32(m)) }, nil
	}
}

func (p *conditionParser) port(dst bool, dash string) func(string) (matcher, error) {
	return func(w string) (matcher, error) {
		first, last, both := strings.Cut(w, dash)
		if !both {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || from > to {
			return nil, p.fail(w, "is no port")
		}
		return func(r *nft.Rule, not bool) { r.Port(dst, not, uint16(from), uint16(to)) }, nil
	}
}

// ConditionsKey returns the configuration key of the conditions of a family.
func ConditionsKey(v6 bool) string {
	if v6 {
		return "conditionsV6"
	}
	return "conditionsV4"
}
