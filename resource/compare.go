package resource

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// Compared returns what Verify of a resource answered as differences of the resource.
func Compared(r plan.Resource, err error) spec.Differences {
	if err == nil {
		return nil
	}
	is := TraitsOf(r)
	on := is.On
	if n := len(is.Ifaces); n > 0 && on.Name == "" {
		on = is.Ifaces[n-1]
	}
	all := spec.DifferencesIn(err)
	for i := range all {
		d := classified(all[i])
		d.Resource, d.Kind, d.Rule, d.Follows = r.String(), TypeName(r), is.Effect != NoRule, is.Follows
		d.Object = is.Object
		if d.Where == "" && on.Name != "" {
			d.Where, d.Link = on.Where.place(), on.Name
		}
		all[i] = d
	}
	return all
}

// classified adds what the type of its cause says about a difference: that a link or a table is missing.
func classified(d spec.Difference) spec.Difference {
	var link rtnl.NoLink
	var table *nft.NoTableError
	switch {
	case d.Field != "":
	case errors.As(d, &link):
		d.Field, d.Want, d.Got = "link", link.Name, spec.Absent
	case errors.As(d, &table):
		d.Field, d.Want, d.Got = "table", table.Table, spec.Absent
	}
	return d
}

// On returns the differences with the link that they are about.
func (d Drift) On(where Where, link string) Drift {
	return d.each(func(is *spec.Difference) { is.Where, is.Link = where.place(), link })
}

// Lasting returns the differences as those that only DEL and ADD correct.
func (d Drift) Lasting() Drift {
	return d.each(func(is *spec.Difference) { is.Repair = spec.ByAttach })
}

func (d Drift) each(set func(*spec.Difference)) (all Drift) {
	for _, is := range spec.DifferencesIn(d.Err()) {
		set(&is)
		all.Add(is)
	}
	return all
}

// place returns the word for the namespace in a Difference.
func (w Where) place() string {
	if w == Host {
		return spec.OnHost
	}
	return spec.InContainer
}

// TypeName returns the name of a resource's type without its package.
func TypeName(r plan.Resource) string {
	name := fmt.Sprintf("%T", plan.Unwrap(r))
	return name[strings.LastIndexByte(name, '.')+1:]
}
