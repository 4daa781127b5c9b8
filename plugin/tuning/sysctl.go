package tuning

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/spec"
)

// sysctls are keys and values as they were written. A map would hide that one was written twice.
type sysctls [][2]string

// UnmarshalJSON takes an object of strings.
func (s *sysctls) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("want an object of strings by sysctl")
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		var value *string
		if d.Decode(&value) != nil {
			return fmt.Errorf("%q: want a string", key)
		}
		if value != nil { // null leaves it as it is
			*s = append(*s, [2]string{key.(string), *value})
		}
	}
	return nil
}

// merge is what all of them ask for, by path. A sysctl has several spellings: written twice in one place it
// is an error, and over wins over config.
func merge(config, over sysctls, link string) ([]sysctl.NetSysctl, error) {
	var all []sysctl.NetSysctl
	known := map[string]int{} // by path, where in all it is
	for _, from := range []struct {
		at   string
		list sysctls
	}{{"args.cni.sysctl", over}, {"sysctl", config}} {
		above := len(all)
		for _, pair := range from.list {
			s, err := sysctl.ParseNetSysctl(from.at, pair[0], pair[1], link)
			if err != nil {
				return nil, err
			}
			i, there := known[s.Path]
			switch {
			case !there:
				known[s.Path] = len(all)
				all = append(all, s)
			case i >= above:
				return nil, spec.Errorf(spec.CodeConfig, "%s: %q: is the same sysctl as %s; remove one of the two",
					s.At,
					s.Value, all[i].At)
			}
		}
	}
	slices.SortFunc(all, func(a, b sysctl.NetSysctl) int { return strings.Compare(a.Path, b.Path) })
	return all, nil
}
