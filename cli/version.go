package cli

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// A spoken is what a plugin of a network answers to VERSION.
type spoken struct {
	Type     string         `json:"type"`
	Path     string         `json:"path"`
	Versions []spec.Version `json:"versions"`
}

// A build is what is known of how this program was made.
type build struct {
	Version     string         `json:"version"`
	CNIVersions []spec.Version `json:"cniVersions"`
	Go          string         `json:"go"`
	Platform    string         `json:"platform"`
	Revision    string         `json:"revision,omitempty"` // of the source; -dirty where it was changed
}

func built(version string) build {
	b := build{Version: version, CNIVersions: spec.Versions(), Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return b
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Revision = s.Value + b.Revision
		case s.Key == "vcs.modified" && s.Value == "true":
			b.Revision += "-dirty"
		}
	}
	return b
}

// program says it in a line.
func (b build) program() string {
	return fmt.Sprintf("built with %s for %s%s", b.Go, b.Platform, prefixed(" from ", b.Revision))
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version [NET [NETNS]]", GroupID: "attach", Args: operands("[NET] [NETNS]"),
		Short: "Print fairlead's version, or the CNI versions of a network's plugins",
		Long: `Print fairlead's version and the CNI versions that it supports. With a network NET, print the versions that its
plugins support and the one that is used. NETNS is accepted for compatibility with cnitool and has no effect.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.noteAbsent(args); err != nil {
				return err
			}
			if len(args) == 0 {
				b := built(a.version)
				if a.json() {
					return printJSON(a.stdout, b)
				}
				a.print("fairlead %s, CNI %s\n%s\n", b.Version, join(spec.Versions()), b.program())
				return nil
			}
			n, rt, err := a.networkAndRuntime((*app).networkOrFile, args[0])
			if err != nil {
				return err
			}
			plugins, version, err := versions(a.interruptible(), n, rt)
			if plugins == nil {
				return err
			}
			doc := struct {
				Network string       `json:"network"`
				Version spec.Version `json:"version"` // that the network runs in
				Plugins []spoken     `json:"plugins"`
			}{n.Name, version, plugins}
			switch {
			case err != nil && a.json():
				return err
			case err != nil: // the table is what tells which plugin it is
				err = fail(exitFailure,
					"Change cniVersion in the network's configuration, or have newer plugins found first: set CNI_PATH to their "+
						"directory, or install them in "+adminDir+".",
					"%w", unspoken(n.List, doc.Plugins, err))
			case a.json():
				return printJSON(a.stdout, doc)
			default:
				a.print("%s runs in %s\n", doc.Network, doc.Version)
			}
			t := table{{"PLUGIN", "SPEAKS", "FILE"}}
			for _, p := range doc.Plugins {
				t = append(t, []any{p.Type, join(p.Versions), p.Path})
			}
			t.print(a.stdout, a.style(a.stdout))
			return err
		},
		ValidArgsFunction: completeTarget,
	}
}

// versions are those that each plugin of n speaks, nil where that is not known, and the one that n runs in.
func versions(ctx context.Context, n *network, rt *attach.Runtime) (plugins []spoken, version spec.Version, err error) {
	speak, err := rt.Versions(ctx, n.List)
	if err != nil {
		return nil, "", err
	}
	plugins = []spoken{}
	var all [][]spec.Version
	for _, p := range n.Plugins {
		path, _ := invoke.Find(p.Type, rt.PluginDirs)
		plugins = append(plugins, spoken{p.Type, path, speak[p.Type]})
		all = append(all, speak[p.Type])
	}
	version, err = spec.Select(n.List, all...)
	return plugins, version, err
}

// unspoken is a warning of other programs' plugins that speak no version of the network's.
func (a *app) unspoken(n *network) []error {
	if n.ours() || len(n.missing()) > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(a.interruptible(), 5*time.Second)
	defer cancel()
	dirs, _ := search(n)
	plugins, _, err := versions(ctx, n, &attach.Runtime{PluginDirs: dirs, Stderr: newScreen(a.stderr)})
	if err == nil {
		return nil
	}
	if plugins != nil {
		err = fmt.Errorf("%w; `fairlead version %s` says what each speaks", unspoken(n.List, plugins, err), n.Name)
	}
	return []error{&spec.FileError{File: n.File, Err: err}}
}

func join(vs []spec.Version) string {
	var s []string
	for _, v := range vs {
		s = append(s, string(v))
	}
	return strings.Join(s, " ")
}

// unspoken says which plugins speak no version of the list, if it is up to them one by one.
func unspoken(l *spec.List, plugins []spoken, err error) error {
	var who []string
	for _, p := range plugins {
		if _, err := spec.Select(l, p.Versions); err != nil && !slices.Contains(who, p.Type) {
			who = append(who, p.Type)
		}
	}
	if len(who) == 0 {
		return err
	}
	return spec.Errorf(spec.CodeVersion, "network %q offers CNI %s, and these plugins speak none of it: %s", l.Name,
		join(append([]spec.Version{l.CNIVersion.Or010()}, l.CNIVersions...)), strings.Join(who, ", "))
}
