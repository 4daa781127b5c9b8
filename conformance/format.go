package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/fairlead-cni/fairlead/spec"
)

// object is a JSON object whose values are not decoded.
type object = map[string]json.RawMessage

func members(b []byte) (o object, err error) {
	if err := json.Unmarshal(b, &o); err != nil {
		return nil, differs("a JSON object", "%v in %s", err, excerpt(string(b)))
	}
	return o, nil
}

// A part is a place in a result, and the members that a version gives it.
type part struct {
	name    string
	members []string
}

// parts are the lists of a result in a version.
func parts(v spec.Version) []part {
	ip := part{"ips", []string{"address", "gateway", "interface"}}
	if !v.AtLeast(spec.V100) {
		ip.members = append(ip.members, "version")
	}
	iface := part{"interfaces", []string{"name", "mac", "sandbox"}}
	if v.AtLeast(spec.V110) {
		iface.members = append(iface.members, "mtu", "socketPath", "pciID")
	}
	return []part{iface, ip}
}

// format compares the members of a result with those of its version.
func format(v spec.Version, kind Kind, a *answer) error {
	doc, err := members(a.stdout)
	if err != nil {
		return err
	}
	top := []string{"cniVersion", "interfaces", "ips", "routes", "dns"}
	if !v.AtLeast(spec.V030) {
		top = []string{"cniVersion", "ip4", "ip6", "dns"}
	}
	if err := only(v, "the result", doc, top, a); err != nil || !v.AtLeast(spec.V030) {
		return err
	}
	for _, p := range parts(v) {
		var list []object
		if text, ok := doc[p.name]; ok {
			if err := json.Unmarshal(text, &list); err != nil {
				return differs(p.name+" to be a list of objects", "%v in %s", err, a)
			}
		}
		for i, o := range list {
			if err := only(v, fmt.Sprintf("%s[%d]", p.name, i), o, p.members, a); err != nil {
				return err
			}
			if p.name == "ips" && !v.AtLeast(spec.V100) && string(o["version"]) != `"4"` && string(o["version"]) != `"6"` {
				return differs(fmt.Sprintf(`ips[%d].version "4" or "6" in version %s`, i, v), "%s", a)
			}
		}
	}
	_, listed := doc["interfaces"]
	if kind != IPAM && !listed {
		return differs("interfaces in a result of version "+string(v), "%s", a)
	}
	return nil
}

// only is the complaint about a member that a version does not have.
func only(v spec.Version, where string, o object, known []string, a *answer) error {
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if !slices.Contains(known, name) {
			return differs(fmt.Sprintf("no other members of %s than %q in version %s", where, known, v),
				"%s in %s", name, a)
		}
	}
	return nil
}
