package attach

import (
	"bytes"
	"slices"

	"github.com/fairlead-cni/fairlead/spec"
)

// AttachedBy is the list that an attachment was made by, where now is what the network's file says by this time: what
// another one made, its own DEL takes away and nobody else's. What a folder beside the file adds is not remembered, so
// it is now's. It is now itself, which may be nil, where both are the same and where what is remembered cannot be read.
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

// dropped are the plugins of a list that its own file does not have.
func dropped(l *spec.List) []*spec.Conf {
	own, err := spec.ParseList(l.Raw)
	if err != nil || len(own.Plugins) > len(l.Plugins) {
		return nil
	}
	return slices.Clone(l.Plugins[len(own.Plugins):])
}
