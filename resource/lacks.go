package resource

import (
	"strconv"

	"github.com/fairlead-cni/fairlead/internal/spelling"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// Lacks compares a link with what a plan wants of it. It returns the change that gives the link what it lacks, and the
// differences in the words of ip(8). Of want, the fields in the table below count.
func Lacks(l *rtnl.Link, want rtnl.LinkChange) (change rtnl.LinkChange, d Drift) {
	promisc := want.Promisc != nil && *want.Promisc
	state := map[bool]string{true: "up", false: "down"}[l.Up]
	for _, f := range []struct {
		name      string
		wanted    bool
		want, got any
		set       func()
	}{
		{"address", want.MAC != nil, want.MAC, l.MAC, func() { change.MAC = want.MAC }},
		{"alias", want.Alias != "", want.Alias, l.Alias, func() { change.Alias = want.Alias }},
		{"mtu", want.MTU != 0, want.MTU, l.MTU, func() { change.MTU = want.MTU }},
		{"state", want.Up, "up", state, func() { change.Up = true }},
		{"promisc", want.Promisc != nil, promisc, l.Promisc, func() { change.Promisc = want.Promisc }},
	} {
		before := len(d)
		if f.wanted {
			d.Want(f.name, f.want, f.got)
		}
		if len(d) > before {
			f.set()
		}
	}
	return change, d
}

// NamesOf returns the names of those links of a namespace.
func NamesOf(ns *kernel.NS, is func(*rtnl.Link) bool) (names []string, err error) {
	links, err := rtnl.Links(ns)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if is(l) {
			names = append(names, l.Name)
		}
	}
	return names, nil
}

// Instead returns a text such as `there is eth0, eth1; did you mean "eth0"?` of the names that exist in place of one.
func Instead(name string, there []string) string {
	text := "there is " + SomeOf(there)
	if near, ok := spelling.Nearest(name, there); ok {
		text += "; did you mean " + strconv.Quote(near) + "?"
	}
	return text
}
