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
