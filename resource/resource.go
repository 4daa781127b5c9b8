// Package resource holds what the resources of a plan have in common: where an object lives, how it is written in a
// plan's text, how differences are reported, how a plan.Kind is made of functions, and what every resource needs of
// links. The resources and their Kinds live in the packages below, one subject a package and one resource a file,
// named as in ip(8) and nft(8). Those packages import this one; this package imports none of them.
package resource

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// Prefixes returns "word a" or "word { a, b }", or "" for an empty list.
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

// Addrs returns "word a, b", or "" for an empty list.
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

// AddrsOf returns the addresses of addresses with their subnets' lengths.
func AddrsOf(list []netip.Prefix) []netip.Addr {
	addrs := make([]netip.Addr, len(list))
	for i, p := range list {
		addrs[i] = p.Addr()
	}
	return addrs
}

// Place returns the name of a namespace in messages.
func (w Where) Place() string {
	if w == Host {
		return "on the host"
	}
	return "in the container"
}

// SomeOf returns "a, b and 3 more". It shortens a long list of names to a readable length.
func SomeOf(names []string) string {
	const most = 8
	s := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

// All reports whether the whole table is missing. Then the differences need not name each missing element.
func (d Drift) All() bool { return errors.As(d.Err(), new(*nft.NoTableError)) }

// Where says in which of the two namespaces of a World an object lives.
type Where bool

// The two namespaces of a World. The zero Where is the container.
const (
	Container Where = false
	Host      Where = true
)

// String returns the prefix of a name in a plan's text.
func (w Where) String() string {
	if w == Host {
		return "host/"
	}
	return "cont/"
}

// Namespace returns the open namespace. The error is kernel.ErrNoNamespace if the World does not have it.
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

// InContainer returns the container interface of that name in a result. It returns nil if the result does not list
// it.
func InContainer(res *spec.Result, name string) *spec.Interface {
	for i := range res.Interfaces {
		if f := &res.Interfaces[i]; f.Name == name && f.Sandbox != "" {
			return f
		}
	}
	return nil
}

// DecodeRecords decodes records of a Store, by owner. It leaves out records that are truncated.
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

// A Drift collects the differences between the description of a resource and the kernel.
type Drift []error

// Want adds a difference if the text of want is not the text of got. A zero want is compared too.
func (d *Drift) Want(field string, want, got any) {
	if w, g := fmt.Sprint(want), fmt.Sprint(got); w != g {
		d.Add(spec.Differs(field, w, g))
	}
}

// WantIfSet is Want for a field whose zero value is no opinion.
func (d *Drift) WantIfSet(field string, want, got any) {
	if !reflect.ValueOf(want).IsZero() {
		d.Want(field, want, got)
	}
}

// WantUp adds a difference if a link is down.
func (d *Drift) WantUp(field string, l *rtnl.Link) {
	if !l.Up {
		d.Want(field, "up", "down")
	}
}

// Add adds a difference that has its own error. It ignores nil.
func (d *Drift) Add(err error) {
	if err != nil {
		*d = append(*d, err)
	}
}

// Err returns all differences as the error of Verify, or nil if there is none.
func (d Drift) Err() error { return errors.Join(d...) }

// Line joins the words that are not empty with spaces.
func Line(words ...string) string {
	var b []string
	for _, w := range words {
		if w != "" {
			b = append(b, w)
		}
	}
	return strings.Join(b, " ")
}

// Opt returns "name value", or "" if the value is zero.
func Opt(name string, v any) string {
	switch s := fmt.Sprint(v); s {
	case "", "0", "<nil>", "invalid IP", "invalid Prefix":
		return ""
	default:
		return name + " " + s
	}
}

// Flag returns name if on is true, and "" otherwise.
func Flag(name string, on bool) string {
	if on {
		return name
	}
	return ""
}

// Families returns the two address families of a rtnl.RouteFilter.
func Families() [2]uint8 { return [2]uint8{rtnl.IPv4, rtnl.IPv6} }
