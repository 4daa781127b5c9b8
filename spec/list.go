package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/spelling"
)

// A List is the configuration of one network: its plugins in order.
type List struct {
	CNIVersion  Version   // 0.1.0 where it is left out
	CNIVersions []Version // as written
	Name        string

	DisableCheck, DisableGC, LoadOnlyInlinedPlugins bool

	Plugins  []*Conf // Name and CNIVersion are the list's (clause C4); Object is as it was written
	Raw      []byte  // the main file (a single configuration as a list of one), for the cache
	File     string  // where it was read; empty if nowhere
	Warnings []error // *FileError: what is odd, and no error
}

// ErrUnread is wrapped by a warning about a plugin's key that looks like a misspelt key of the runtime. The plugin may
// report the key too.
var ErrUnread = errors.New("is not read")

// ErrMisspelt is wrapped by a warning about an unknown key of a list that looks like a known one.
var ErrMisspelt = errors.New("is not read")

// listKeys returns the keys of a list that the protocol defines.
func listKeys() []string {
	return []string{"cniVersion", "cniVersions", "name", "disableCheck", "disableGC", "loadOnlyInlinedPlugins",
		"plugins"}
}

// Capabilities returns all capabilities that the plugins of the list declare.
func (l *List) Capabilities() map[string]bool {
	all := map[string]bool{}
	for _, p := range l.Plugins {
		for name, on := range p.Capabilities {
			if on {
				all[name] = true
			}
		}
	}
	return all
}

// ParseList reads a list, or a single configuration as a list with one plugin (clause C5). Errors are of type
// *FileError and wrap an *Error. Plugins of a drop-in directory are not read; Load does that.
//
// Keys of the list must match exactly, keys of plugins match in any case, as in the reference library.
func ParseList(b []byte) (*List, error) {
	d, err := openObject(b, "the configuration")
	if err != nil {
		return nil, err
	}
	read := d.list
	if d.single() {
		read = d.listOfOne
	}
	l, err := read()
	if err != nil {
		return nil, err
	}
	return l, nil
}

// single reports whether the document is the configuration of one plugin.
func (d *document) single() bool {
	_, plugins := d.root.exact("plugins")
	_, typ := d.root.fold("type")
	return typ && !plugins
}

func (d *document) list() (*List, *FileError) {
	l := &List{CNIVersion: V010, Raw: bytes.Clone(d.src)}
	l.warnMisspelt(d)
	name, ok := d.root.exact("name")
	if !ok {
		return nil, d.missing(d.root, "", "name", "a network needs one")
	}
	if err := d.networkName(node{members: []member{name}}, "", &l.Name); err != nil {
		return nil, err
	}
	if m, ok := d.root.exact("cniVersion"); ok {
		if err := d.version(m.node, "cniVersion", &l.CNIVersion); err != nil {
			return nil, err
		}
	}
	if m, ok := d.root.exact("cniVersions"); ok {
		err := d.each(m.node, "cniVersions", "versions", func(n node, path string) *FileError {
			var v Version
			err := d.version(n, path, &v)
			l.CNIVersions = append(l.CNIVersions, v)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	for _, f := range []struct {
		key string
		v   *bool
	}{{"disableCheck", &l.DisableCheck}, {"disableGC", &l.DisableGC},
		{"loadOnlyInlinedPlugins", &l.LoadOnlyInlinedPlugins}} {
		if m, ok := d.root.exact(f.key); ok {
			if err := d.flag(m.node, f.key, f.v); err != nil {
				return nil, err
			}
		}
	}
	for _, m := range d.root.members {
		l.warnRuntime(d, m, "")
		l.warnArgs(d, m)
	}
	m, ok := d.root.exact("plugins")
	switch {
	case !ok && l.LoadOnlyInlinedPlugins:
		return nil, d.missing(d.root, "", "plugins", "with loadOnlyInlinedPlugins all plugins stand here")
	case !ok:
		return l, nil
	case m.node.kind != '[':
		return nil, d.shape(m.node, "plugins", "an array of plugins")
	case len(m.node.items) == 0:
		return nil, d.bad(CodeConfig, m.node.start, "plugins", "is empty: a network needs a plugin")
	}
	err := d.each(m.node, "plugins", "plugins", func(n node, path string) *FileError {
		return l.add(d, n, path)
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// warnMisspelt warns of keys that look like those of a list.
func (l *List) warnMisspelt(d *document) {
	for _, m := range d.root.members {
		if key, ok := spelling.Nearest(m.key, listKeys()); ok && key != m.key && !slices.Contains(listKeys(), m.key) {
			if _, there := d.root.exact(key); !there {
				l.warn(d, m.at, m.key, "%w: is it meant to be %q?", ErrMisspelt, key)
			}
		}
	}
}

// add appends the plugin whose configuration is n.
func (l *List) add(d *document, n node, path string) *FileError {
	if n.kind != '{' {
		return d.shape(n, path, "an object")
	}
	c := &Conf{CNIVersion: l.CNIVersion, Name: l.Name, Object: d.members(n)}
	if err := d.plugin(n, path, c); err != nil {
		return err
	}
	l.Plugins = append(l.Plugins, c)
	for _, m := range n.members {
		l.warnRuntime(d, m, path)
		if near, ok := spelling.Nearest(m.key, []string{"capabilities"}); ok && c.Capabilities == nil && m.key != near {
			l.warn(d, m.at, join(path, m.key), "%w: is it meant to be %q?", ErrUnread, near)
		}
	}
	return nil
}

// listOfOne reads a single configuration.
func (d *document) listOfOne() (*List, *FileError) {
	l := &List{CNIVersion: V010}
	if err := d.networkName(d.root, "", &l.Name); err != nil {
		return nil, err
	}
	if m, ok := d.root.fold("cniVersion"); ok {
		if err := d.version(m.node, "cniVersion", &l.CNIVersion); err != nil {
			return nil, err
		}
		if l.CNIVersion.AtLeast(V100) {
			l.warn(d, m.at, "cniVersion", "from 1.0.0 on there are only lists: put the plugin into %s",
				`{"cniVersion": …, "name": …, "plugins": [{"type": …}]}`)
		}
	}
	if err := l.add(d, d.root, ""); err != nil {
		return nil, err
	}
	// The reference's library keeps a list in its cache, whatever the file was.
	raw, err := encode(map[string]any{"cniVersion": l.CNIVersion, "name": l.Name,
		"plugins": []json.RawMessage{d.raw(d.root)}})
	if err != nil {
		return nil, d.bad(CodeInternal, d.root.start, "", "%w", err)
	}
	l.Raw = raw
	return l, nil
}

// version reads a version, which must be well-formed.
func (d *document) version(n node, path string, v *Version) *FileError {
	var s string
	if err := d.str(n, path, &s); err != nil {
		return err
	}
	parsed, err := ParseVersion(s)
	if err != nil {
		return d.bad(CodeDecode, n.start, path, "%w", err)
	}
	*v = parsed
	return nil
}

func (l *List) warn(d *document, at int, path, format string, args ...any) {
	l.Warnings = append(l.Warnings, d.bad(CodeConfig, at, path, format, args...))
}

// warnRuntime warns about a key that the runtime sets (clause C9). The runtime sets args too, but podman writes its
// user's arguments into that key of its files, so there is no warning for it.
func (l *List) warnRuntime(d *document, m member, path string) {
	key := strings.ToLower(m.key)
	if key == "runtimeconfig" || key == "prevresult" || strings.HasPrefix(key, "cni.dev/") {
		l.warn(d, m.at, join(path, m.key), "is for the runtime to set, not for a file: what the runtime says wins")
	}
}

// warnArgs warns about args beside the plugins, which no plugin gets (conventions, "args"). The part that podman uses
// itself is accepted.
func (l *List) warnArgs(d *document, m member) {
	own := func(kept member) bool { return strings.HasPrefix(kept.key, "podman_") }
	if strings.EqualFold(m.key, "args") && (m.node.kind != '{' ||
		slices.ContainsFunc(m.node.members, func(k member) bool { return !own(k) })) {
		l.warn(d, m.at, m.key, "is not read here: is it meant to be in a plugin, plugins[0].args?")
	}
}

// Select returns the version in which to run the list: the highest version in cniVersion and cniVersions that the
// protocol has and that every element of speaks contains (clause V10). If there is none, the error is an *Error with
// code 1.
func Select(l *List, speaks ...[]Version) (Version, error) {
	pool := append([]Version{l.CNIVersion.Or010()}, l.CNIVersions...)
	var best Version
	for _, v := range pool {
		spoken := v.Known()
		for _, s := range speaks {
			spoken = spoken && slices.Contains(s, v)
		}
		if spoken && (best == "" || v.compare(best) > 0) {
			best = v
		}
	}
	if best != "" {
		return best, nil
	}
	var sides []string
	for _, s := range append([][]Version{Versions()}, speaks...) {
		sides = append(sides, "("+strings.Join(texts(s), ", ")+")")
	}
	return "", Errorf(CodeVersion, "network %q offers CNI %s, and no version of these is known to all: %s",
		l.Name, strings.Join(texts(slices.Compact(pool)), ", "), strings.Join(sides, ", "))
}

// in sets the file of problems that were found in a list or while loading it.
func in(file string, problems []error) {
	for _, p := range problems {
		if e, ok := p.(*FileError); ok && e.File == "" {
			e.File = file
		}
	}
}
