package attach

import (
	"bytes"
	"slices"

	"github.com/fairlead-cni/fairlead/spec"
)

// AttachedBy returns the list that made the attachment. DEL must use it, because the plugins in the network's file may
// have changed since. Now is the list that the file has now. Plugins of a drop-in directory are not stored, so those of
// now are used. AttachedBy returns now itself, which may be nil, if both lists are the same or the stored one cannot be
// read.
func (c *Cached) AttachedBy(now *spec.List) *spec.List {
	if now != nil && bytes.Equal(now.Raw, c.Config) {
		return now
	}
	was, err := spec.ParseList(c.Config)
	if err != nil || was.Name != c.Network || now != nil && was.Name != now.Name {
		return now
	}
	if now != nil && !was.LoadOnlyInlinedPlugins {
		was.Plugins = append(was.Plugins, dropped(now)...)
	}
	if _, err := spec.Select(was); err != nil || len(was.Plugins) == 0 {
		return now
	}
	return was
}

// dropped returns the plugins of a list that come from its drop-in directory.
func dropped(l *spec.List) []*spec.Conf {
	own, err := spec.ParseList(l.Raw)
	if err != nil || len(own.Plugins) > len(l.Plugins) {
		return nil
	}
	return slices.Clone(l.Plugins[len(own.Plugins):])
}
