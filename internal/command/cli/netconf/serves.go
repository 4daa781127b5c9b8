package netconf

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/calls"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/spec"
)

// Serves asks whether n can serve an ADD. It returns the free addresses, and the plugins that have no STATUS and
// were not asked.
func (n *Network) Serves(ctx context.Context, rt *attach.Runtime) (left []Room, notAsked []string, err error) {
	if err := errors.Join(n.Missing()...); err != nil {
		return nil, nil, err
	}
	if left, err = rooms(ctx, n.List); err != nil {
		return nil, nil, err
	}
	var speak [][]spec.Version
	for _, p := range n.Plugins {
		one := *n.List
		one.Plugins = []*spec.Conf{p}
		if n.own(p) {
			one.CNIVersions = append(slices.Clone(one.CNIVersions), spec.V110)
		}
		versions, err := rt.Versions(ctx, &one)
		if err != nil {
			return nil, nil, err
		}
		speak = append(speak, versions[p.Type])
		v, noVersion := spec.Select(&one, versions[p.Type])
		if noVersion == nil && !v.AtLeast(spec.V110) {
			notAsked = append(notAsked, p.Type)
			continue
		}
		if err := rt.Status(invoke.WithEnv(ctx, calls.Variable+"=off"), &one); err != nil {
			return nil, nil, err
		}
		if noVersion != nil {
			return nil, nil, fmt.Errorf("plugin %s: %w", p.Type, noVersion)
		}
	}
	if err := n.Headless(); err != nil { // no plugin is told this
		return nil, nil, err
	}
	for i, p := range n.Plugins { // nor does a chain learn its capabilities
		if err := p.Undeclared(); err != nil {
			return nil, nil, fmt.Errorf("plugins[%d].%w", i, err)
		}
	}
	if _, err := spec.Select(n.List, speak...); err != nil {
		return nil, nil, err
	}
	return left, notAsked, nil
}

// own reports whether the programs of a plugin of n and of its IPAM plugin are of this project.
func (n *Network) own(p *spec.Conf) bool {
	dirs, _ := Search(n)
	return !slices.ContainsFunc([]string{p.Type, p.IPAMType}, func(typ string) bool {
		path, err := invoke.Find(typ, dirs)
		return err == nil && !OurProgram(path)
	})
}

// Room is how many addresses an IPAM plugin has left.
type Room struct {
	IPAM string `json:"ipam"`
	Free string `json:"free"`
	Size string `json:"size"`
}

// rooms asks the allocators of this program, which also check their part of the configuration. The free addresses of
// other projects' allocators are unknown.
func rooms(ctx context.Context, l *spec.List) ([]Room, error) {
	all := plugin.All()
	var rs []Room
	for _, conf := range l.WrittenOut().Plugins {
		for _, p := range all {
			if p.Name != conf.Type || conf.IPAMType == "" {
				continue
			}
			free, size, ok, err := p.Room(ctx, all, conf)
			if err != nil {
				return nil, fmt.Errorf("plugin %s: %w", conf.IPAMType, err)
			}
			if ok {
				rs = append(rs, Room{conf.IPAMType, free.String(), size.String()})
			}
		}
	}
	return rs, nil
}
