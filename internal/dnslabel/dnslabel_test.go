package dnslabel

import (
	"strings"
	"testing"
)

func TestValid(t *testing.T) {
	for _, s := range []string{"a", "A9", "0", "_a_", "a-z", "AZaz09", strings.Repeat("x", MaxLength)} {
		if err := Valid(s); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	}
	for _, s := range []string{"", "-a", "a-", "a.b", "a b", "é", "a\u212ab", "\u212a", "a@", "a[", "a`", "a{", "a/", "a:",
		strings.Repeat("x", MaxLength+1)} {
		if err := Valid(s); err == nil || !strings.Contains(err.Error(), "want a DNS label") {
			t.Errorf("%q: %v", s, err)
		}
	}
	if err := Valid("LocalHost"); err == nil || !strings.Contains(err.Error(), "is reserved for the host itself") {
		t.Errorf("LocalHost: %v", err)
	}
}
