package conformance

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Profile says how plugins are configured that the suite does not know, or that are to be tested in another way.
type Profile struct {
	Plugins map[string]Plugin `json:"plugins"` // by type
	named   []string          // by the file itself
}

// A Plugin is the configuration that a plugin is tested with.
type Plugin struct {
	// Kind is recognised by what the plugin does, if it is empty.
	Kind Kind `json:"kind,omitempty"`
	// Conf is the plugin's object in a list, without its type. The value "$ipam" stands for the suite's own IPAM
	// plugin. Of an IPAM plugin, it is the object ipam.
	Conf json.RawMessage `json:"conf,omitempty"`
	// RuntimeConfig has what a runtime would provide for the plugin's capabilities.
	RuntimeConfig json.RawMessage `json:"runtimeConfig,omitempty"`
	// Capabilities are the keys of runtimeConfig that the plugin acts on, beside those of RuntimeConfig.
	Capabilities []string `json:"capabilities,omitempty"`
	// Adopts says that the plugin makes no pair if prevResult has an interface of the host, but attaches that one.
	Adopts bool `json:"adopts,omitempty"`
	// Host has commands that prepare the host, each a list of words.
	Host [][]string `json:"host,omitempty"`
	// IfName is the only interface name that the plugin takes.
	IfName string `json:"ifName,omitempty"`
	// Single is set where the host has room for one attachment only.
	Single bool `json:"single,omitempty"`
	// Layer2 says that the plugin can do without addresses.
	Layer2 bool `json:"layer2,omitempty"`
	// Reaches says whom a container of the network reaches: "containers", "gateway".
	Reaches []string `json:"reaches,omitempty"`
	// Breaks are changes that CHECK has to find, beside those that the suite makes of its own.
	Breaks []Break `json:"breaks,omitempty"`
	// Skip has the reasons for checks that are not made, by clause or ID.
	Skip map[string]string `json:"skip,omitempty"`
}

// A Break is a change of something that ADD made, and that is in no result: a rule, a limit, a sysctl.
type Break struct {
	Name string   `json:"name"`
	In   string   `json:"in,omitempty"` // "container"; empty is the host
	Run  []string `json:"run"`
}

// LoadProfile reads a profile. Its plugins stand in the place of those that the suite knows.
func LoadProfile(file string) (Profile, error) {
	p, err := parseProfile([]byte(known))
	if err != nil || file == "" {
		return p, err
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return p, err
	}
	own, err := parseProfile(b)
	if err != nil {
		return p, fmt.Errorf("%s: %w", file, err)
	}
	maps.Copy(p.Plugins, own.Plugins)
	p.named = slices.Sorted(maps.Keys(own.Plugins))
	return p, nil
}

// tests is the complaint about a profile that says nothing of what is tested, as one with a misspelt name.
func (p Profile) tests(s Settings) error {
	types := []string{}
	for _, path := range s.Plugins {
		types = append(types, filepath.Base(path))
	}
	if words := strings.Fields(s.Runtime); len(words) > 0 {
		types = append(types, filepath.Base(words[0]))
	}
	isNamed := func(name string) bool { return slices.Contains(p.named, name) }
	if s.Profile == "" || slices.ContainsFunc(types, isNamed) {
		return nil
	}
	return fmt.Errorf("%s: plugins: it has %q, and none is tested: want the name of the file of a plugin, such as %q",
		s.Profile, p.named, types[0])
}

func parseProfile(b []byte) (p Profile, err error) {
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.DisallowUnknownFields()
	if err := cmp.Or(json.Unmarshal(b, &p), d.Decode(&p)); err != nil { // which stops behind the first object
		return p, err
	}
	for name, plugin := range p.Plugins {
		if plugin.Kind != "" && !slices.Contains(everyPlugin(), plugin.Kind) {
			return p, fmt.Errorf("plugins.%s.kind: %q is not one of %v", name, plugin.Kind, everyPlugin())
		}
		if err := plugin.check(); err != nil {
			return p, fmt.Errorf("plugins.%s.%w", name, err)
		}
	}
	return p, nil
}

// check is the complaint about words that would change nothing, so that checks would silently not be made.
func (p Plugin) check() error {
	for _, whom := range p.Reaches {
		if whom != "containers" && whom != "gateway" {
			return fmt.Errorf("reaches: %q is neither containers nor gateway", whom)
		}
	}
	for _, b := range p.Breaks {
		if b.In != "" && b.In != "container" {
			return fmt.Errorf("breaks: in: %q is not container", b.In)
		}
	}
	for id := range p.Skip {
		if !isCheck(id) {
			return fmt.Errorf("skip: there is no clause or check %q; --list has them", id)
		}
	}
	return nil
}

// reaches reports whether the profile says that a container reaches a host.
func (p Plugin) reaches(whom string) bool { return slices.Contains(p.Reaches, whom) }

// skips returns the reason not to make a check.
func (p Plugin) skips(c Check) (reason string, ok bool) {
	for _, id := range []string{c.ID, c.Clause()} {
		if reason, ok = p.Skip[id]; ok {
			return reason, true
		}
	}
	return "", false
}

// ipamMark is the value in a profile that stands for the suite's own IPAM plugin.
const ipamMark = `"$ipam"`

// addressed reports whether the plugin delegates to the suite's IPAM plugin.
func (p Plugin) addressed() bool { return strings.Contains(string(p.Conf), ipamMark) }
