// Package dnslabel checks names that become labels of DNS.
package dnslabel

import (
	"errors"
	"strings"
)

// MaxLength is the number of characters of a DNS label (RFC 1035, 2.3.4).
const MaxLength = 63

// Valid returns an error if s is not a DNS label that can name a container. Underscores are allowed, because names
// of containers often contain them.
func Valid(s string) error {
	const characters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	switch {
	case s == "" || len(s) > MaxLength || strings.Trim(s, characters) != "" || s[0] == '-' || s[len(s)-1] == '-':
		return errors.New("want a DNS label: 1 to 63 letters, digits, dashes and underscores, without a dash at " +
			"either end")
	case strings.EqualFold(s, "localhost"):
		return errors.New("is reserved for the host itself (RFC 6761)")
	}
	return nil
}
