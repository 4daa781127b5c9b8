// Package resource holds what the resources of a plan have in common: where a thing lives, how it is told in a plan's
// text, what a difference is, how a plan.Kind is made of functions, and what every resource knows of links. The
// resources themselves, and their Kinds, live in the packages below this one, a subject each, one file a resource,
// named as ip(8) and nft(8) name them; those import this package, and never the reverse.
package resource

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// Prefixes is "word a" or "word { a, b }", or nothing.
func Prefixes(word string, list []netip.Prefix) string {
	switch len(list) {
	case 0:
		return ""
	case 1:
		return word + " " + list[0].String()
	}
	s := make([]string, len(list))
	for i, p := range list {
		s[i] = p.String()
	}
	return fmt.Sprintf("%s { %s }", word, strings.Join(s, ", "))
}

// Addrs is "word a, b", or nothing.
func Addrs(word string, list []netip.Addr) string {
	if len(list) == 0 {
		return ""
	}
	s := make([]string, len(list))
	for i, a := range list {
		s[i] = a.String()
	}
	return word + " " + strings.Join(s, ", ")
}

// Place is how people call a namespace.
func (w Where) Place() string {
	if w == Host {
		return "on the host"
	}
	return "in the container"
}

// SomeOf is "a, b and 3 more": as many names as one can read.
func SomeOf(names []string) string {
	const most = 8
	s := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

// All reports whether there is no table: each element of it is missing then, and need not be named.
func (d Drift) All() bool { return errors.As(d.Err(), new(*nft.NoTableError)) }

// Where says in which of the two namespaces of a World a thing lives.
type Where bool

// The zero Where is the container.
const (
	Container Where = false
	Host      Where = true
)

// String is the prefix that a name gets in a plan's text.
func (w Where) String() string {
	if w == Host {
		return "host/"
	}
	return "cont/"
}

// Namespace is that namespace, or kernel.ErrNoNamespace where the World has none.
func (w Where) Namespace(k *kernel.World) (*kernel.NS, error) {
	ns := k.Container
	if w == Host {
		ns = k.Host
	}
	if ns == nil {
		return nil, kernel.ErrNoNamespace
	}
	return ns, nil
}

// InContainer is the container's interface of that name in a result; nil where none is listed.
func InContainer(res *spec.Result, name string) *spec.Interface {
	for i := range res.Interfaces {
		if f := &res.Interfaces[i]; f.Name == name && f.Sandbox != "" {
			return f
		}
	}
	return nil
}

// DecodeRecords reads records of a Store, by owner. What is torn counts as none.
func DecodeRecords[T any](raw map[[8]byte]json.RawMessage, err error) (map[[8]byte]T, error) {
	all := make(map[[8]byte]T, len(raw))
	for owner, b := range raw {
		var v T
		if json.Unmarshal(b, &v) == nil {
			all[owner] = v
		}
	}
	return all, err
}

// Drift collects the fields in which the kernel differs from the description.
type Drift []error

// Want notes a field whose text is another than the text of what is wanted: a zero want is compared, too.
func (d *Drift) Want(field string, want, got any) {
	if w, g := fmt.Sprint(want), fmt.Sprint(got); w != g {
		*d = append(*d, fmt.Errorf("%s is %s, want %s", field, g, w))
	}
}

// Add notes a difference in words of its own; nil is none.
func (d *Drift) Add(err error) {
	if err != nil {
		*d = append(*d, err)
	}
}

// Err is what Verify returns: all differences, or nil.
func (d Drift) Err() error { return errors.Join(d...) }

// Line joins the words that are not empty.
func Line(words ...string) string {
	var b []string
	for _, w := range words {
		if w != "" {
			b = append(b, w)
		}
	}
	return strings.Join(b, " ")
}

// Opt is "name value", or nothing where the value is zero.
func Opt(name string, v any) string {
	switch s := fmt.Sprint(v); s {
	case "", "0", "<nil>", "invalid IP", "invalid Prefix":
		return ""
	default:
		return name + " " + s
	}
}

// Flag is name where on, else nothing.
func Flag(name string, on bool) string {
	if on {
		return name
	}
	return ""
}

// Families are the two that a rtnl.RouteFilter can have.
func Families() [2]uint8 { return [2]uint8{rtnl.IPv4, rtnl.IPv6} }
