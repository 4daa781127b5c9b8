package netconf

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// Newer reports whether a list states a version that clients of earlier libraries refuse.
func Newer(l *spec.List) bool { return l.CNIVersion.AtLeast(spec.V110) }

// Spoken is a plugin's answer to VERSION.
type Spoken struct {
	Type     string         `json:"type"`
	Path     string         `json:"path"`
	Versions []spec.Version `json:"versions"`
}

// Versions returns the CNI versions of each plugin of n, nil if unknown, and the one that n uses.
func Versions(ctx context.Context, n *Network, rt *attach.Runtime) (plugins []Spoken, version spec.Version, err error) {
	speak, err := rt.Versions(ctx, n.List)
	if err != nil {
		return nil, "", err
	}
	plugins = []Spoken{}
	var all [][]spec.Version
	for _, p := range n.Plugins {
		path, _ := invoke.Find(p.Type, rt.PluginDirs)
		plugins = append(plugins, Spoken{p.Type, path, speak[p.Type]})
		all = append(all, speak[p.Type])
	}
	version, err = spec.Select(n.List, all...)
	return plugins, version, err
}

// UnspokenVersions warns of other projects' plugins that support no version of the network.
func UnspokenVersions(a *app.App, n *Network) []error {
	if n.AllFairlead() || len(n.Missing()) > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(a.Interruptible(), 5*time.Second)
	defer cancel()
	dirs, _ := Search(n)
	plugins, _, err := Versions(ctx, n, &attach.Runtime{PluginDirs: dirs, Stderr: term.NewScreen(a.Stderr)})
	if err == nil {
		return nil
	}
	if plugins != nil {
		err = fmt.Errorf("%w; `fairlead version %s` lists the versions of each "+
			"plugin", UnspokenBy(n.List, plugins, err), n.Name)
	}
	return []error{&spec.FileError{File: n.File, Err: err}}
}

// Join returns versions with spaces between them.
func Join(vs []spec.Version) string {
	var s []string
	for _, v := range vs {
		s = append(s, string(v))
	}
	return strings.Join(s, " ")
}

// UnspokenBy names the plugins that support no version of the list, if each one for itself decides that.
func UnspokenBy(l *spec.List, plugins []Spoken, err error) error {
	var who []string
	for _, p := range plugins {
		if _, err := spec.Select(l, p.Versions); err != nil && !slices.Contains(who, p.Type) {
			who = append(who, p.Type)
		}
	}
	if len(who) == 0 {
		return err
	}
	return spec.Errorf(spec.CodeVersion, "network %q uses CNI %s, which these plugins do not support: %s", l.Name,
		Join(append([]spec.Version{l.CNIVersion.Or010()}, l.CNIVersions...)), strings.Join(who, ", "))
}
