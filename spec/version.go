package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/spelling"
)

// ParseVersion reads a version: one to three numbers separated by dots. The empty string is 0.1.0 (clause V5). A
// well-formed version that the protocol does not have is not an error; its Known is false.
func ParseVersion(s string) (Version, error) {
	if s == "" {
		return V010, nil
	}
	if _, ok := Version(s).numbers(); !ok {
		hint := ""
		if near, ok := spelling.Nearest(s, texts(Versions())); ok {
			hint = fmt.Sprintf(" (did you mean %q?)", near)
		}
		return "", fmt.Errorf("%q is not a CNI version, such as %q%s", s, Newest, hint)
	}
	return Version(s), nil
}

// numbers returns the parts of v; missing ones are zero.
func (v Version) numbers() (n [3]int, ok bool) {
	rest, more := string(v.Or010()), true
	for i := 0; more; i++ {
		var p string
		p, rest, more = strings.Cut(rest, ".")
		if i > 2 || p == "" || strings.Trim(p, "0123456789") != "" {
			return n, false
		}
		var err error
		if n[i], err = strconv.Atoi(p); err != nil {
			return n, false
		}
	}
	return n, true
}

// Or010 returns v, or 0.1.0 if v is empty (clause V5).
func (v Version) Or010() Version {
	if v == "" {
		return V010
	}
	return v
}

// Known reports whether the protocol has this version. Versions are compared as text, as in other implementations:
// "1.0" is not "1.0.0".
func (v Version) Known() bool { return slices.Contains(Versions(), v.Or010()) }

// AtLeast reports whether v is w or newer.
func (v Version) AtLeast(w Version) bool { return v.compare(w) >= 0 }

func (v Version) compare(w Version) int {
	a, _ := v.numbers()
	b, _ := w.numbers()
	return slices.Compare(a[:], b[:])
}

func texts(vs []Version) []string {
	s := make([]string, len(vs))
	for i, v := range vs {
		s[i] = string(v)
	}
	return s
}

// VersionInfo is the answer to VERSION (clause V1).
type VersionInfo struct {
	CNIVersion        Version   `json:"cniVersion"`
	SupportedVersions []Version `json:"supportedVersions"`
}

// Encode writes the answer as a plugin prints it, but for the end of the line.
func (i VersionInfo) Encode() ([]byte, error) {
	return wire{{"cniVersion", i.CNIVersion}, {"supportedVersions", i.SupportedVersions}}.marshal()
}

// UnmarshalJSON reads an answer to VERSION. An answer of 0.2.0 may lack the list, which then is 0.1.0 and 0.2.0.
func (i *VersionInfo) UnmarshalJSON(b []byte) error {
	type plain VersionInfo // without this method
	var p plain
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	switch {
	case p.CNIVersion == "":
		return errors.New("the answer to VERSION has no cniVersion")
	case len(p.SupportedVersions) == 0 && p.CNIVersion == V020:
		p.SupportedVersions = []Version{V010, V020}
	case len(p.SupportedVersions) == 0:
		return errors.New("the answer to VERSION has no supportedVersions")
	}
	*i = VersionInfo(p)
	return nil
}
