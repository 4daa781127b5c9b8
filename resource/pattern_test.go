package resource

import (
	"regexp"
	"testing"
)

// FuzzPattern holds what a pattern matches against package regexp, which may understand more.
func FuzzPattern(f *testing.F) {
	for _, p := range []string{
		`^net.ipv4.conf.IFNAME.(accept|send)_redirects$`, `net\.core\.[a-z_]+$`, `^net\.(ipv4|ipv6)\.conf\.[^.]*\.forwarding$`,
		``, `a|`, `()`, `(a*)*b`, `(?:ab)+?c{2,3}`, `[]a]`, `[^]a-]`, `[[:alnum:]_]{0,2}x`, `\d+\w\s?\D\W\S`, `\.\-\_`, `x{3}`, `^^a$$`, `(a|b){2,}`, `(^a|b$)*`,
		`[\d_-]`, `.*`, `a.c`, `é`, `[à-é]`, `a{,2}`, `{2}`, `x**`, `a{2}{3}`, `(?i)a`, `\pL`, `[a`, `(a`, `a)`, `*`, `\`, `[z-a]`, `[[:foo:]]`, `[\d-z]`, `a{1001}`, `\x41`,
	} {
		for _, text := range []string{"net.ipv4.conf.IFNAME.send_redirects", "net.core.somaxconn", "net.ipv6.conf.eth0.forwarding", "", "aab", "ababccc", "a_x", "12a ", ".-_", "é", "xxx"} {
			f.Add(p, text)
		}
	}
	f.Fuzz(func(t *testing.T, line, text string) {
		if len(line) > 60 || len(text) > 60 {
			return // those of a thousand nested repetitions only take long
		}
		ours, err := parsePattern(line)
		if err != nil {
			return
		}
		theirs, err := regexp.Compile(line)
		if err != nil {
			t.Fatalf("%q is understood, and regexp says %v", line, err)
		}
		if got, want := ours.matches(text), theirs.MatchString(text); got != want {
			t.Fatalf("%q and %q: %v, want %v", line, text, got, want)
		}
	})
}

// What people write in such lists is understood.
func TestPattern(t *testing.T) {
	for _, line := range []string{
		`^net.ipv4.conf.IFNAME.(accept|send)_redirects$`, `net\.core\.[a-z_]+$`, `^net\.(?:ipv4|ipv6)\.conf\.[^.]*\.forwarding$`,
		`[[:alnum:]_]{2,}`, `^net/ipv4/tcp_.*$`, `\d+\w?\S*`,
	} {
		if _, err := parsePattern(line); err != nil {
			t.Errorf("%q: %v", line, err)
		}
	}
	for _, line := range []string{`(?i)net`, `\bnet`, `[z-a]`, `(net`, `net)`, `net[`, `+`, `a{2,1}`, `\`} {
		if _, err := parsePattern(line); err == nil {
			t.Errorf("%q is understood", line)
		}
	}
}
