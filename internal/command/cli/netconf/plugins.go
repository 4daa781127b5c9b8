package netconf

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/internal/spelling"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// OfType returns the plugin of this program with that name, or nil.
func OfType(name string) *sdk.Plugin {
	all := plugin.All()
	if i := slices.IndexFunc(all, func(p sdk.Plugin) bool { return p.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// every returns each plugin of n, including those inside a chain.
func (n *Network) every() []*spec.Conf {
	all := slices.Clone(n.Plugins)
	if out := n.WrittenOut(); out != n.List {
		for _, p := range out.Plugins {
			if !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	return all
}

// Missing returns an error for each plugin of n that is not installed.
func (n *Network) Missing() (errs []error) {
	for i, p := range n.every() {
		if err := n.findPlugin(p.Type); err != nil {
			errs = append(errs, fmt.Errorf("plugins[%d]: %w", i, err))
		}
		if err := n.FindIPAM(p); err != nil {
			errs = append(errs, fmt.Errorf("plugins[%d]: %w", i, err))
		}
	}
	return errs
}

// findPlugin fails if no file is the plugin of that type, and this program does not stand in.
func (n *Network) findPlugin(typ string) error {
	dirs, itself := Search(n)
	path, err := invoke.Find(typ, dirs)
	if err == nil && Chmod(path) != "" {
		return app.Fail(app.ExitFailure, Chmod(path), "find plugin %q: %s is not executable", typ, path)
	}
	ours := OfType(typ) != nil
	if err == nil || itself && ours {
		return nil
	}
	var own []string
	for _, p := range plugin.All() {
		own = append(own, p.Name)
	}
	if near, ok := spelling.Nearest(typ, own); ok && itself {
		return fmt.Errorf("find plugin %q: %w; did you mean %q?", typ, invoke.ErrNotFound, near)
	}
	return &NotInstalledError{error: err, Type: typ, Ours: ours, Dir: slices.Concat(dirs, []string{AdminDir})[0]}
}

// A NotInstalledError says that no directory of plugins has the plugin of a type.
type NotInstalledError struct {
	error
	Type string
	Ours bool   // fairlead install installs it
	Dir  string // where it is searched first
}

// Unwrap returns the error of [invoke.Find].
func (e *NotInstalledError) Unwrap() error { return e.error }

// Chmod returns the command that makes a plugin's file executable, or "" if it is.
func Chmod(path string) string {
	if st, err := os.Stat(path); err != nil || st.Mode()&0o111 != 0 {
		return ""
	}
	return "`chmod +x " + path + "`"
}

// FindIPAM finds the IPAM plugin of p. A plugin of this project needs no file for an allocator of this project.
func (n *Network) FindIPAM(p *spec.Conf) error {
	if p.IPAMType == "" {
		return nil
	}
	own := OfType(p.IPAMType)
	dirs, _ := Search(n)
	path, err := invoke.Find(p.Type, dirs)
	if own == nil || err == nil && !OurProgram(path) {
		return n.findPlugin(p.IPAMType)
	}
	if !own.Allocates() {
		return NoAllocator(p.IPAMType)
	}
	return nil
}

// NoAllocator returns the error for ipam.type that names a plugin without addresses.
func NoAllocator(name string) error {
	return spec.Errorf(spec.CodeConfig,
		"ipam.type: %q: is not an IPAM plugin, because it makes interfaces; want an IPAM plugin, such as host-local",
		name)
}

// Headless fails if the first of n's plugins is a chained one, so that every ADD fails.
func (n *Network) Headless() error {
	p := n.WrittenOut().Plugins[0]
	if own := OfType(p.Type); own == nil || !own.Chained() {
		return nil
	}
	return spec.Errorf(spec.CodeConfig, "plugins[0]: %s changes the interface of a plugin before it, and no plugin "+
		"is before it", p.Type)
}

// AllFairlead reports whether all plugins of n that are installed are of this project.
func (n *Network) AllFairlead() bool {
	dirs, _ := Search(n)
	return !slices.ContainsFunc(n.every(), func(p *spec.Conf) bool {
		path, err := invoke.Find(p.Type, dirs)
		return err == nil && !OurProgram(path)
	})
}

// FileWarnings returns warnings about n's file, except those of the plugins about their keys.
func (n *Network) FileWarnings() []error {
	unread := func(w error) bool { return errors.Is(w, spec.ErrUnread) && n.AllFairlead() && len(n.Missing()) == 0 }
	return slices.DeleteFunc(slices.Clone(n.Warnings), unread)
}

// sameRelease reports whether the program at path is of this project, and says by VERSION that it is of the release
// that version names. Packages install the plugins and the command as two programs.
func sameRelease(path, version string) bool {
	if !OurProgram(path) { // such as a program that calls the plugin, and does more
		return false
	}
	x := extra.Ask(context.Background(), path, invoke.Call{Type: filepath.Base(path)})
	return x != nil && x.Offer.Release == version
}

// OurProgram reports whether the program at path is of this project, in any version and by any name.
func OurProgram(path string) bool {
	info, err := buildinfo.ReadFile(path)
	return err == nil && strings.HasPrefix(info.Path, "github.com/fairlead-cni/fairlead/cmd/")
}

// AllocatesBy reports whether a plugin of a list has that IPAM plugin.
func AllocatesBy(l *spec.List, ipam string) bool {
	return slices.ContainsFunc(l.WrittenOut().Plugins, func(p *spec.Conf) bool { return p.IPAMType == ipam })
}
