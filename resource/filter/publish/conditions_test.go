package publish

import (
	"strings"
	"testing"
	"unicode"

	"github.com/fairlead-cni/fairlead/spec"
)

func FuzzConditions(f *testing.F) {
	for _, s := range []string{"ip saddr != { 10.0.0.1, 10.0.0.0/8 } iif eth0", "! -s 10.0.0.1 -m mark --mark 1/2",
		"tcp sport 1-2", "{", "!", "ip6 daddr fe80::1%eth0", "\u2000"} {
		f.Add(s, strings.Contains(s, "ip6"))
	}
	isBlank := func(r rune) bool { return unicode.IsSpace(r) || r == '"' || r == '\'' }
	f.Fuzz(func(t *testing.T, s string, v6 bool) {
		rules, where, err := parseConditions([]string{s}, v6)
		if (err == nil) != (len(rules) > 0) && strings.TrimFunc(s, isBlank) != "" ||
			(where == "") != (len(rules) == 0) {
			t.Errorf("%q: %d rules, %q, %v", s, len(rules), where, err)
		}
		if e := spec.AsError(err, 0); e != nil && e.Code != spec.CodeUnsupported {
			t.Errorf("%q: code %d", s, e.Code)
		}
	})
}
