package spec

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ValidName returns an error if s is not a valid network name (clause C1): an ASCII letter or digit, followed by ASCII
// letters, digits, "_", "." and "-".
func ValidName(s string) error { return validID("name", s) }

// ValidContainerID returns an error if s is not a valid container ID (clause P3). The same characters are allowed as in
// a network name.
func ValidContainerID(s string) error { return validID("container ID", s) }

func validID(what, s string) error {
	if s == "" {
		return fmt.Errorf("%s is empty", what)
	}
	for i, r := range s {
		alnum := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		switch {
		case i == 0 && !alnum:
			return fmt.Errorf("%s %q begins with %q: a letter or a digit has to come first", what, s, r)
		case !alnum && !strings.ContainsRune("_.-", r):
			return fmt.Errorf("%s %q has the character %q: letters, digits, _ . and - are allowed", what, s, r)
		}
	}
	return nil
}

// ValidIfName returns an error if s is not a valid interface name (clause P4). These are rules of the kernel: it
// replaces %d by a number, uses "all" and "default" for the settings of all interfaces, and treats Latin-1 white space
// as white space. In addition the name must be UTF-8, because results and leases contain it.
func ValidIfName(s string) error {
	switch {
	case s == "":
		return errors.New("interface name is empty")
	case s == "." || s == "..":
		return fmt.Errorf("interface name %q is the name of a directory", s)
	case s == "all" || s == "default":
		return fmt.Errorf("interface name %q means every interface in /proc/sys/net", s)
	case len(s) > 15:
		return fmt.Errorf("interface name %q has %d bytes: 15 are allowed", s, len(s))
	case !utf8.ValidString(s):
		return fmt.Errorf("interface name %q is not UTF-8", s)
	}
	for _, r := range s {
		if strings.ContainsRune("/:%", r) || r == utf8.RuneError || unicode.IsSpace(r) || unicode.IsControl(r) {
			return fmt.Errorf("interface name %q has the character %q", s, r)
		}
	}
	if strings.Contains(s, "\xa0") {
		return fmt.Errorf("interface name %q has the byte 0xa0, which the kernel treats as white space", s)
	}
	return nil
}

// MaxLabel is the number of characters of a DNS label (RFC 1035, 2.3.4).
const MaxLabel = 63

// ValidLabel returns an error if s is not a DNS label that can name a container. Underscores are allowed, because names
// of containers often contain them.
func ValidLabel(s string) error {
	other := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_'
	}
	switch {
	case s == "" || len(s) > MaxLabel || strings.ContainsFunc(s, other) || s[0] == '-' || s[len(s)-1] == '-':
		return errors.New("want a DNS label: 1 to 63 letters, digits, dashes and underscores, without a dash at " +
			"either end")
	case strings.EqualFold(s, "localhost"):
		return errors.New("is reserved for the host itself (RFC 6761)")
	}
	return nil
}

// ValidType returns an error if s is not a valid type of a plugin. The type becomes a file name (clause C2).
func ValidType(s string) error {
	switch {
	case s == "":
		return errors.New("type is empty")
	case s == "." || strings.Contains(s, "..") || strings.ContainsAny(s, "/\\\x00"):
		return fmt.Errorf("type %q is not a plain file name", s)
	}
	return nil
}

// Nearest returns the element of among that a person who typed word may have meant.
func Nearest(word string, among []string) (string, bool) {
	best, found := max(1, len(word)/3)+1, ""
	for _, w := range among {
		if away := max(len(word)-len(w), len(w)-len(word)); away >= best || away >= len(w) {
			continue // there are at least so many edits, and each costs time for both lengths
		}
		if d := distance(strings.ToLower(word), strings.ToLower(w)); d < best && (d < len(w) || d == 0) {
			best, found = d, w
		}
	}
	return found, found != ""
}

// distance returns the number of edits from a to b. An edit inserts, deletes or replaces a character, or swaps two
// neighbours.
func distance(a, b string) int {
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
