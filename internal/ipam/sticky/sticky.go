// Package sticky reads the key ipam.sticky of plugins that keep their leases on this host.
package sticky

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Conf says which containers get the addresses that others had before.
type Conf struct {
	// What the key is made of: names of strings in args.cni or CNI_ARGS, and labels.NAME for a label of
	// args.cni.labels. ["K8S_POD_NAMESPACE", "K8S_POD_NAME"] makes keys such as default/web-0. Inside a part, / is
	// written as %2F and % as %25. If any part is missing, the container gets an ordinary address.
	Key []string `json:"key"`
	// Time that a released address is held for its key: a duration such as "30m", or a number of seconds. With 0 it is
	// not held, but the key gets it again if it is free. Default: 24h.
	TTL Duration `json:"ttl"`
}

// labels begins what is no name of an argument but of a label.
const labels = "labels."

// Of returns how the owner of r comes by its addresses, nil where none are remembered.
func (s *Conf) Of(r *sdk.Request) (*disk.Sticky, error) {
	if s == nil {
		return nil, nil
	}
	if len(s.Key) == 0 {
		return nil, spec.Errorf(spec.CodeConfig,
			`ipam.sticky.key: is missing: want arguments that identify a container, such as ["K8S_POD_NAMESPACE", "K8S_POD_NAME"]`)
	}
	var parts []string
	for i, name := range s.Key {
		if name == "" || name == labels || strings.ContainsAny(name, "=;") {
			return nil, spec.Errorf(spec.CodeConfig,
				`ipam.sticky.key[%d]: %s: want the name of an argument, such as K8S_POD_NAME, or labels. and a label's name`,
				i, strconv.Quote(name))
		}
		part := r.CNIArg(name)
		if l, ok := strings.CutPrefix(name, labels); ok {
			part = r.Label(l)
		}
		if part != "" {
			parts = append(parts, part)
		}
	}
	out := &disk.Sticky{TTL: s.TTL.Or(24 * time.Hour), Parts: len(s.Key)}
	if len(parts) == len(s.Key) {
		out.Key, out.OldKey = joined(parts)
	}
	return out, nil
}

// joined is a key of parts, no two lists of which have the same one: "/" is between them, and inside of one it is
// "%2F", "%" being "%25". OldKey is what the key was before that was so, where that is another one; empty where it
// could be some others' key today.
func joined(parts []string) (key, former string) {
	if len(parts) == 1 {
		return parts[0], ""
	}
	escape := strings.NewReplacer("%", "%25", "/", "%2F")
	escaped := make([]string, len(parts))
	for i, p := range parts {
		escaped[i] = escape.Replace(p)
	}
	key, former = strings.Join(escaped, "/"), strings.Join(parts, "/")
	percents := strings.Count(former, "%") - strings.Count(former, "%25") - strings.Count(former, "%2F")
	if former == key || strings.Count(former, "/") == len(parts)-1 && percents == 0 {
		return key, ""
	}
	return key, former
}

// Args returns the keys of CNI_ARGS that the configuration names.
func Args(c *spec.Conf) []string {
	raw, ok := c.Object.Get("ipam")
	if !ok {
		return nil
	}
	var ipam struct{ Sticky struct{ Key []string } }
	_ = json.Unmarshal(raw, &ipam) // what is wrong with it is said where it is read
	return ipam.Sticky.Key
}
