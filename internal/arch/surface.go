package arch

import (
	"fmt"
	"go/types"
	"slices"
)

// use takes over which exported names of package sdk a package uses: types, functions and methods.
func (g *callGraph) use(pkg string, info *types.Info) {
	for _, o := range info.Uses {
		if o.Pkg() == nil || o.Pkg().Path() != Module+"/sdk" || pkg == "sdk" || !o.Exported() {
			continue
		}
		switch is := o.(type) {
		case *types.Func:
			o = is.Origin()
		case *types.Var: // a field travels in the value that has it
			continue
		}
		if !slices.Contains(g.users[o], pkg) {
			g.users[o] = append(g.users[o], pkg)
		}
	}
}

// forRepair are the exported names of package sdk that only a repair uses.
func (g *callGraph) forRepair() (bad []string) {
	repairs := []string{"repair", "cli/repair"}
	for o, users := range g.users {
		if !slices.ContainsFunc(users, func(pkg string) bool { return !slices.Contains(repairs, pkg) }) {
			bad = append(bad, fmt.Sprintf("sdk: only a repair uses %s: sdk is for authors of plugins, and what both "+
				"need is in internal/restore", o.Name()))
		}
	}
	slices.Sort(bad)
	return bad
}
