package xtables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A Rule is a rule of a chain. It has words only if iptables-save has printed it.
type Rule struct {
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

// NewRule returns a rule with these words.
func NewRule(chain string, words ...string) Rule { return parseRule(chain, words) }

// Rulef returns a rule whose words format and args give, as fmt.Sprintf does. An argument is part of one word, whatever
// blanks it has.
func Rulef(chain, format string, args ...any) Rule {
	text := fmt.Sprintf(strings.ReplaceAll(format, " ", "\x00"), args...)
	return parseRule(chain, strings.FieldsFunc(text, func(r rune) bool { return r == 0 }))
}

// String returns "-A chain words", quoted so that iptables-restore reads the same words.
func (r Rule) String() string { return r.line("-A") }

// line is the rule after a command: -A, -D, -I or -C.
func (r Rule) line(command string) string {
	words := append([]string{command, quote(r.Chain)}, r.Words...)
	for i, w := range words[2:] {
		words[2+i] = quote(w)
	}
	return strings.Join(words, " ")
}

// Append returns the line for Apply that adds the rule at the end of its chain.
func (r Rule) Append() string { return r.line("-A") }

// Insert returns the line for Apply that adds the rule at the beginning of its chain.
func (r Rule) Insert() string { return r.line("-I") }

// InsertAt returns "-I chain n words", which makes the rule the nth of its chain.
func (r Rule) InsertAt(n int) string {
	r.Words = append([]string{strconv.Itoa(n)}, r.Words...)
	return r.Insert()
}

// Delete returns the line for Apply that deletes the first rule with the same words. Apply fails if there is none.
func (r Rule) Delete() string { return r.line("-D") }

// Same reports whether two rules have the same words.
func (r Rule) Same(s Rule) bool { return r.Chain == s.Chain && slices.Equal(r.Words, s.Words) }

func parseRule(chain string, words []string) Rule {
	r := Rule{Chain: chain, Words: words}
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

// quote quotes a word as iptables-save does.
func quote(w string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("!-_./:,+[]%@=", r)
	}
	if w != "" && strings.IndexFunc(w, func(r rune) bool { return !plain(r) }) < 0 {
		return w
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", " ", "\x00", "").Replace(w) + `"`
}

// split takes a line of iptables-save apart.
func split(line string) (words []string) {
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
