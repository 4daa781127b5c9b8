package agent

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/internal/command/install"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/plugin/cluster"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Conflist is the network's configuration, which the agent puts where runtimes search for it. A node is ready from
// then on, so that is the last step. It stays when the agent ends: pods are attached and detached without it.
type Conflist struct {
	Source string // file that is copied; empty: no configuration is written
	Dir    string // directory that runtimes search
}

// path returns where runtimes find the configuration.
func (c Conflist) path() string { return filepath.Join(c.Dir, filepath.Base(c.Source)) }

// install puts the configuration of the network in its place, or leaves it there. The source is read each time: the
// operator may have changed it. Before the first time, first is called with the plugin that allocates from the grant.
func (c Conflist) install(network string, first func(*spec.Conf) error) (written bool, err error) {
	if c.Source == "" {
		return false, nil
	}
	doc, err := plainfile.ReadLinked(c.Source, plainfile.MaxSize)
	if err != nil {
		return false, err
	}
	allocates, err := c.suits(network, doc)
	if err != nil {
		return false, err
	}
	file, err := install.OpenNetFile(c.path(), doc)
	if err != nil {
		return false, err
	}
	if err := file.Foreign(); err != nil {
		return false, fmt.Errorf("%s is not installed: %w", c.Source, err)
	}
	if before, err := install.WrittenNetFile(c.path()); err == nil && before == nil {
		if err := first(allocates); err != nil {
			return false, err
		}
	}
	return file.Write()
}

// suits returns the plugin that allocates from the grant. It refuses a configuration by which pods would get no address
// from there.
func (c Conflist) suits(network string, doc []byte) (*spec.Conf, error) {
	if filepath.Ext(c.Source) != ".conflist" {
		return nil, fmt.Errorf("%s: want a list, in a file named *.conflist", c.Source)
	}
	list, err := spec.ParseList(doc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Source, err)
	}
	if list.Name != network {
		return nil, fmt.Errorf("%s has the network %s, and this agent grants to %s (--network): give both one name", c.Source,
			list.Name, network)
	}
	for _, p := range list.Plugins {
		if p.IPAMType == "cluster" {
			return p, nil
		}
	}
	return nil, fmt.Errorf(`%s: no plugin allocates from the grant: want "ipam": {"type": "cluster"}`, c.Source)
}

// remove removes what install wrote last, unless it was changed since.
func (c Conflist) remove() error {
	file, err := install.WrittenNetFile(c.path())
	if file == nil {
		return err
	}
	_, err = file.Remove()
	return err
}

// makeReady grants the node its range, and then installs the network's configuration. Missing is what the kernel lacks of
// the ways to other nodes. A single node that has no way, such as one whose range another program's route takes, keeps
// this one from nothing.
func (a *Agent) makeReady(ctx context.Context, self directory.Node, nodes []directory.Node, mtu int, missing error) error {
	unwritten := a.grant(self, nodes, mtu)
	for _, d := range spec.DifferencesIn(missing) {
		if d.Object == "" { // it is about no single node
			return unwritten
		}
	}
	if a.Source == Etcd {
		a.sayReady()                 // for the ways stand, also where the grant has no room
		if len(self.Prefixes) == 0 { // so it has no address of its own among the containers yet
			return unwritten
		}
		if _, err := grant.Read(a.Network); err != nil { // Granted tells when it can be read
			return unwritten
		}
	}
	if unwritten != nil {
		return unwritten
	}
	written, err := a.Conflist.install(a.Network, func(p *spec.Conf) error { return a.adopt(ctx, p) })
	if written {
		a.Log.Info("installed the network's configuration, so this node is ready for pods", "file", a.Conflist.path())
	}
	if err == nil {
		a.sayReady()
	}
	return err
}

func (a *Agent) sayReady() {
	if !a.isReady && a.Ready != nil {
		a.isReady = true
		a.Ready()
	}
}

// adopt takes over the leases of another network that had the node's range before, such as flannel's: its containers may
// still live, and no other container may get their addresses.
func (a *Agent) adopt(ctx context.Context, allocates *spec.Conf) error {
	ledger, err := cluster.Plugin.Ledger(allocates, false)
	if err != nil {
		return err
	}
	all, err := ipam.Adopt(ctx, ledger, a.Network, nil, false)
	if err != nil {
		return fmt.Errorf("leases of other networks in this node's range: %w", err)
	}
	for _, one := range all {
		a.Log.Info("took over the leases of another network in this node's range", "from", one.From,
			"leases", len(one.Added))
	}
	return nil
}
