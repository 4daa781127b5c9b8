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
func format(v spec.Version, kind Kind, a *answer) {
	doc := must(members(a.stdout))
	if !v.AtLeast(spec.V030) {
		only(v, "the result", doc, []string{"cniVersion", "ip4", "ip6", "dns"}, a)
		return
	}
	only(v, "the result", doc, []string{"cniVersion", "interfaces", "ips", "routes", "dns"}, a)
	for _, p := range parts(v) {
		var list []object
		if text, ok := doc[p.name]; ok {
			err := json.Unmarshal(text, &list)
			expect(err == nil, p.name+" to be a list of objects", "%v in %s", err, a)
		}
		for i, o := range list {
			only(v, fmt.Sprintf("%s[%d]", p.name, i), o, p.members, a)
			a.expect(p.name != "ips" || v.AtLeast(spec.V100) || string(o["version"]) == `"4"` || string(o["version"]) == `"6"`,
				fmt.Sprintf(`ips[%d].version "4" or "6" in version %s`, i, v))
		}
	}
	a.expect(kind == IPAM || doc["interfaces"] != nil, "interfaces in a result of version "+string(v))
}

// only fails where there is a member that a version does not have.
func only(v spec.Version, where string, o object, known []string, a *answer) {
	for _, name := range slices.Sorted(maps.Keys(o)) {
		expect(slices.Contains(known, name),
			fmt.Sprintf("no other members of %s than %q in version %s", where, known, v), "%s in %s", name, a)
	}
}
