package publish

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
)

// Conditions of an attachment hold for that attachment alone. All with the same conditions share a chain
// and maps of their own, so a packet is looked at once for each set of conditions and not for each
// attachment. Conditions are asked before the ports that have none.

// parseConditions understands what people write there: a part of nft(8)'s words, or of iptables(8)'s. The
// rules are alternatives, for a rule has no "or"; where is a hash of what they mean.
func parseConditions(words []string, v6 bool) (alternatives []*nft.Rule, where string, err error) {
	p := conditionParser{v6: v6, rules: []*nft.Rule{nft.NewRule("conditions").Family(v6)}, mask: ^uint32(0),
		wildcard: "*", dash: "-"}
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
		p.wildcard, p.dash = "+", ":"
	}
	for len(p.words) > 0 {
		if err := match(); err != nil {
			return nil, "", err
		}
	}
	if len(p.rules) > 64 {
		return nil, "", p.fail("", "is more than 64 combinations")
	}
	return p.rules, filter.CodeHash(p.rules), nil
}

const understood = "understood are, of nft's words, ip or ip6 saddr and daddr, iifname, meta mark, meta l4proto, " +
	"tcp, udp, sctp or th sport and dport, each with != and { , }; of iptables', " +
	"-s, -d, -i, -p, --sport, --dport, -m mark --mark, each with !"

type conditionParser struct {
	v6    bool
	words []string
	rules []*nft.Rule

	wildcard string // at the end of a link's name
	dash     string // between the ports of a range
	mask     uint32 // of a mark, where its value has none
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
	field := p.next()
	if field == "meta" {
		field = p.next()
	}
	switch word := field; word {
	case "ip", "ip6":
		field = p.next()
		if word != filter.FamilyName(p.v6) || field != "saddr" && field != "daddr" {
			return p.fail(word+" "+field, "is not understood here")
		}
	case "iif":
		field = "iifname"
	case "iifname", "l4proto":
	case "mark":
		p.mask = ^uint32(0)
		if p.accept("&", "and") {
			w := p.next()
			n, err := strconv.ParseUint(w, 0, 32)
			if err != nil {
				return p.fail(w, "is no mask")
			}
			p.mask = uint32(n)
		}
	case "tcp", "udp", "sctp", "th":
		field = p.next()
		if field != "sport" && field != "dport" {
			return p.fail(word+" "+field, "is not understood")
		}
		if proto, ok := kernel.ParseProto(word); ok {
			p.and(false, []matcher{func(r *nft.Rule, not bool) { r.Proto(not, proto) }})
		}
	default:
		return p.fail(word, "is not understood")
	}
	not := p.accept("!=")
	if !not {
		p.accept("==")
	}
	if p.accept("{") {
		return p.compare(field, not, ",", "}")
	}
	return p.compare(field, not, "", "")
}

// iptables reads one match in iptables(8)'s words.
func (p *conditionParser) iptables() error {
	not := p.accept("!")
	field := ""
	switch word := p.next(); word {
	case "-m", "--match":
		if w := p.next(); not || !slices.Contains([]string{"mark", "tcp", "udp", "sctp", "multiport"}, w) {
			return p.fail(word+" "+w, "is not understood")
		}
		return nil
	case "-s", "--source", "--src":
		field = "saddr"
	case "-d", "--destination", "--dst":
		field = "daddr"
	case "-i", "--in-interface":
		field = "iifname"
	case "-p", "--proto", "--protocol":
		field = "l4proto"
	case "--mark":
		field = "mark"
	case "--sport", "--source-port", "--sports", "--source-ports":
		field = "sport"
	case "--dport", "--destination-port", "--dports", "--destination-ports":
		field = "dport"
	default:
		return p.fail(word, "is not understood")
	}
	if p.accept("!") { // the old way to write it
		not = !not
	}
	return p.compare(field, not, ",", "")
}

// compare reads what a field is compared with: values with a comma between them, up to the word end if there is one. It
// appends the comparison with any of them.
func (p *conditionParser) compare(field string, not bool, comma, end string) error {
	var values []matcher
	for {
		m, err := p.value(field, p.next())
		if err != nil {
			return err
		}
		values = append(values, m)
		more := p.accept(comma)
		ends := p.accept(end) || end == "" && !more
		if ends {
			p.and(not, values)
			return nil
		}
		if !more {
			return p.fail(p.next(), "stands where , or } should")
		}
	}
}

// value reads a value of a field, in the words of nft(8).
func (p *conditionParser) value(field, w string) (matcher, error) {
	switch field {
	case "saddr", "daddr":
		prefix, err := netip.ParsePrefix(w)
		if a, aerr := netip.ParseAddr(w); aerr == nil {
			prefix, err = filter.Single(a), nil
		}
		switch {
		case err != nil:
			return nil, p.fail(w, "is neither an address nor a prefix")
		case prefix.Addr().Is6() != p.v6 || prefix.Addr().Is4In6():
			return nil, p.fail(w, "is of the other family")
		}
		return func(r *nft.Rule, not bool) { r.Prefix(field == "daddr", not, prefix) }, nil
	case "iifname":
		name, any := strings.CutSuffix(w, p.wildcard)
		if err := spec.ValidIfName(name); err != nil || any && len(name) > 14 {
			return nil, p.fail(w, "is no name of a link")
		}
		if any {
			name += "*"
		}
		return func(r *nft.Rule, not bool) { r.Iifname(not, name) }, nil
	case "l4proto":
		proto, ok := kernel.ParseProto(strings.ToLower(w))
		if !ok {
			return nil, p.fail(w, "is not tcp, udp or sctp")
		}
		return func(r *nft.Rule, not bool) { r.Proto(not, proto) }, nil
	case "mark":
		value, given, both := strings.Cut(w, "/")
		n, err := strconv.ParseUint(value, 0, 32)
		mask := uint64(p.mask)
		if err == nil && both {
			mask, err = strconv.ParseUint(given, 0, 32)
		}
		if err != nil {
			return nil, p.fail(w, "is no mark")
		}
		return func(r *nft.Rule, not bool) { r.Mark(not, uint32(n), uint32(mask)) }, nil
	}
	first, last, both := strings.Cut(w, p.dash)
	if !both {
		last = first
	}
	from, err1 := strconv.ParseUint(first, 10, 16)
	to, err2 := strconv.ParseUint(last, 10, 16)
	if err1 != nil || err2 != nil || from > to {
		return nil, p.fail(w, "is no port")
	}
	return func(r *nft.Rule, not bool) { r.Port(field == "dport", not, uint16(from), uint16(to)) }, nil
}

// ConditionsKey returns the configuration key of the conditions of a family.
func ConditionsKey(v6 bool) string {
	if v6 {
		return "conditionsV6"
	}
	return "conditionsV4"
}
