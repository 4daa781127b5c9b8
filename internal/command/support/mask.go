package support

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Mask replaces addresses and names in text, each by the same other one wherever it stands. Two addresses that have
// the first bits in common have as many in common afterwards, so that it can be seen who is in whose subnet; the last 8
// bits of IPv4 and small host parts of IPv6 stay, and so do the prefixes of private ranges. Who has the key can tell
// what an address was. It is not kept.
type Mask struct {
	key   []byte
	names map[string][]pair // that are replaced wherever they stand, the longest first, by how they begin
	first [256]bool         // the bytes that names begin with
	words map[string]string // that are so short that they are replaced as words only
	begun *regexp.Regexp    // a text that is cut
	token *regexp.Regexp
	known map[netip.Addr]netip.Addr
}

// A pair is a name in lower-case letters, and what stands in its place.
type pair struct{ name, to string }

// beginning is so much of a name as names are found by.
const beginning = 4

// NewMask makes a mask by a random key that hides these names.
func NewMask(key []byte, names []string) *Mask {
	const short = 4 // such a name may be a part of any word
	m := &Mask{key: key, words: map[string]string{}, known: map[netip.Addr]netip.Addr{}, names: map[string][]pair{},
		begun: regexp.MustCompile(`[^\s/:"'()\[\]{},=…]{4,}…`),
		token: regexp.MustCompile(`(?i)enx[0-9a-f]{12}|0x[0-9a-f]{8,}|0x[0-9a-f]*…|` +
			`[0-9a-f]{0,4}(:[0-9a-f]{0,4})+(\.[0-9]{0,3}){0,3}…|\b[0-9a-f]{2}(-[0-9a-f]{0,2})+…|[0-9]{1,3}(\.[0-9]{0,3}){1,3}…|` +
			`[0-9a-f]{0,4}(_[0-9a-f]{0,4}){2,7}@|\b[0-9a-f]{1,4}(_[0-9a-f]{0,4}){2,7}\b|\b[0-9a-f]{2}([:-][0-9a-f]{2}){5,}\b|` +
			`[0-9a-f]{0,4}(:[0-9a-f]{0,4}){2,8}(\.[0-9]{1,3}){0,3}|[0-9]{1,3}(\.[0-9]{1,3}){3}|` +
			`\b[0-9]{1,3}(-[0-9]{1,3}){3}\b`)}
	for _, n := range names {
		to := "name-" + hex.EncodeToString(m.sum("name", []byte(lower(n)))[:5])
		if utf8.RuneCountInString(n) < short && strings.IndexFunc(n, func(r rune) bool { return !inWord(r) }) < 0 {
			m.words[lower(n)] = to
			continue
		}
		m.name(n, to)
		m.name(m.addresses(n), to) // it may have one in it
	}
	for _, all := range m.names {
		slices.SortFunc(all, func(a, b pair) int {
			return cmp.Or(len(b.name)-len(a.name), strings.Compare(a.name, b.name))
		})
	}
	return m
}

func (m *Mask) name(n, to string) {
	n = lower(n)
	if key := n[:min(len(n), beginning)]; n != "" && !slices.Contains(m.names[key], pair{n, to}) {
		m.names[key] = append(m.names[key], pair{n, to})
		m.first[n[0]] = true
	}
}

// lower is a text of the same length with small letters, for a name may be written otherwise in an alias.
func lower(text string) string {
	b := []byte(text)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

func (m *Mask) sum(kind string, b []byte) []byte {
	h := hmac.New(sha256.New, m.key)
	h.Write([]byte(kind + "\x00"))
	h.Write(b)
	return h.Sum(nil)
}

// Text masks all in a text: first the addresses, for a short name may be a part of one.
func (m *Mask) Text(text string) string {
	text = m.byName(m.addresses(text))
	if len(m.words) > 0 {
		text = m.byWord(text)
	}
	return text
}

// addresses masks the addresses in a text. The expression is slow, so it sees only what may have one.
func (m *Mask) addresses(text string) string {
	inToken := func(c byte) bool {
		return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' || strings.IndexByte(":._-@", c) >= 0 ||
			c >= utf8.RuneSelf // … among them
	}
	return eachRun(text, inToken, func(run string) string {
		count := func(sep string) int { return strings.Count(run, sep) }
		if count("…") > 0 || count(":") > 1 || count("_") > 1 || count(".") > 2 || count("-") > 2 ||
			strings.ContainsAny(run, "xX") {
			return m.token.ReplaceAllStringFunc(run, m.one)
		}
		return run
	})
}

// eachRun returns text with what do makes of each longest run of bytes that are in a set.
func eachRun(text string, in func(byte) bool, do func(run string) string) string {
	var b strings.Builder
	end := func(is bool) int {
		for i := range len(text) {
			if in(text[i]) != is {
				return i
			}
		}
		return len(text)
	}
	for len(text) > 0 {
		n := end(false)
		b.WriteString(text[:n])
		text = text[n:]
		n = end(true)
		b.WriteString(do(text[:n]))
		text = text[n:]
	}
	return b.String()
}

// byName replaces names wherever they stand, and what a name begins with before the mark of a cut.
func (m *Mask) byName(text string) string {
	var b strings.Builder
	done, small := 0, lower(text)
	for i := 0; i < len(small); {
		if !m.first[small[i]] {
			i++
			continue
		}
		n, to := m.at(small[i:])
		if i += max(n, 1); n > 0 {
			b.WriteString(text[done : i-n])
			b.WriteString(to)
			done = i
		}
	}
	b.WriteString(text[done:])
	if !strings.Contains(text, "…") {
		return b.String()
	}
	return m.begun.ReplaceAllStringFunc(b.String(), func(cut string) string {
		start := lower(strings.TrimSuffix(cut, "…"))
		for _, p := range m.names[start[:beginning]] {
			if strings.HasPrefix(p.name, start) {
				return "(masked)…"
			}
		}
		return cut
	})
}

// at is the length of the longest name that a text in small letters begins with.
func (m *Mask) at(text string) (length int, to string) {
	for n := min(beginning, len(text)); n > 0; n-- {
		for _, p := range m.names[text[:n]] {
			if strings.HasPrefix(text, p.name) {
				return len(p.name), p.to
			}
		}
	}
	return 0, ""
}

// byWord replaces short names where they stand alone.
func (m *Mask) byWord(text string) string {
	var b strings.Builder
	for len(text) > 0 {
		n := strings.IndexFunc(text, inWord)
		if n < 0 {
			n = len(text)
		}
		b.WriteString(text[:n])
		text = text[n:]
		end := strings.IndexFunc(text, func(r rune) bool { return !inWord(r) })
		if end < 0 {
			end = len(text)
		}
		b.WriteString(cmp.Or(m.words[lower(text[:end])], text[:end]))
		text = text[end:]
	}
	return b.String()
}

func inWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' }

// one masks what may be an address.
func (m *Mask) one(text string) string {
	if rest, ok := strings.CutPrefix(lower(text), "0x"); ok {
		return "0x(masked)" + strings.Repeat("…", strings.Count(rest, "…"))
	} else if strings.HasSuffix(text, "…") {
		return "(masked)…"
	} else if rest, ok := strings.CutPrefix(lower(text), "enx"); ok {
		mac, _ := hex.DecodeString(rest)
		return "enx" + hex.EncodeToString(m.mac(mac))
	}
	if in, ok := strings.CutSuffix(text, "@"); ok { // in the other name of a link
		return strings.ReplaceAll(m.addresses(strings.ReplaceAll(in, "_", ":")), ":", "_") + "@"
	}
	if strings.Contains(text, "_") { // in the name of a file
		return strings.ReplaceAll(m.addresses(strings.ReplaceAll(text, "_", ":")), ":", "_")
	}
	if mac, err := net.ParseMAC(text); err == nil && len(mac) == 6 {
		masked := net.HardwareAddr(m.mac(mac)).String()
		return strings.ReplaceAll(masked, ":", text[2:3])
	}
	if a, err := netip.ParseAddr(strings.ReplaceAll(text, "-", ".")); err == nil && a.Is4() &&
		strings.Contains(text, "-") {
		return strings.ReplaceAll(m.Addr(a).String(), ".", "-")
	}
	if strings.Count(text, ":") > 7 || strings.Count(text, "-") > 5 { // an identifier of DHCP, with a MAC in it
		return "(bytes masked)"
	}
	// A colon or a dot behind it may be one of the sentence, and one before it, too.
	for from := 0; from <= 1 && from < len(text); from++ {
		for end := len(text); end > max(from, len(text)-3); end-- {
			if a, err := netip.ParseAddr(text[from:end]); err == nil {
				return text[:from] + m.Addr(a).String() + text[end:]
			}
		}
	}
	return text
}

// mac masks an address of a card, but for the bits that say what sort of an address it is.
func (m *Mask) mac(mac []byte) []byte {
	if slices.Max(mac) == 0 || slices.Min(mac) == 0xff {
		return mac
	}
	to := m.sum("mac", mac)[:6]
	to[0] = to[0]&^3 | mac[0]&3
	return to
}

// Addr masks an address.
func (m *Mask) Addr(a netip.Addr) netip.Addr {
	to, known := m.known[a]
	if !known {
		to = m.masked(a)
		m.known[a] = to
	}
	return to
}

func (m *Mask) masked(a netip.Addr) netip.Addr {
	if a.Is4In6() {
		return netip.AddrFrom16(m.Addr(a.Unmap()).As16())
	}
	kept, plain := keeps(a)
	if plain {
		return a
	}
	if a.Is4() {
		b := a.As4()
		for {
			m.bits("4", b[:], kept, 24)
			to := netip.AddrFrom4(b)
			if k, p := keeps(to); !p && k == kept { // not from one range into another
				return to
			}
		}
	}
	b := a.As16()
	m.bits("6", b[:], kept, 64)
	if binary.BigEndian.Uint64(b[8:]) >= 1<<16 {
		m.bits("6", b[:], max(kept, 64), 128)
	}
	return netip.AddrFrom16(b)
}

// bits changes bits from the first to the last one, each by what is before it alone.
func (m *Mask) bits(kind string, b []byte, first, last int) {
	was := slices.Clone(b)
	for i := first; i < last; i++ {
		before := slices.Clone(was[:i/8+1])
		before[i/8] &= 0xff << (8 - i%8)
		b[i/8] ^= m.sum(kind+string(rune(i)), before)[0] & 1 << (7 - i%8)
	}
}

// keeps says how many first bits of an address stay as they are: those that say what range it is of. Plain ones, which
// are the same on every host, stay as a whole.
func keeps(a netip.Addr) (first int, plain bool) {
	for _, r := range []struct {
		prefix string
		first  int
		plain  bool
	}{
		{"10.0.0.0/8", 8, false}, {"100.64.0.0/10", 10, false}, {"169.254.0.0/16", 16, false},
		{"172.16.0.0/12", 12, false}, {"192.168.0.0/16", 16, false},
		{"0.0.0.0/8", 0, true}, {"127.0.0.0/8", 0, true}, {"224.0.0.0/3", 0, true}, // of multicast and netmasks
		{"fe80::/10", 64, false}, {"fc00::/7", 8, false}, {"::/127", 0, true},
		{"ff02::1:ff00:0/104", 104, false}, {"ff00::/8", 0, true}, {"::/0", 3, false},
	} {
		if netip.MustParsePrefix(r.prefix).Contains(a) {
			return r.first, r.plain
		}
	}
	return 0, false
}
