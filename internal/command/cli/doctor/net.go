package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/trace"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// ofNetworks examines the configured networks, or those of the containers that the user named.
func (d *Doctor) ofNetworks() {
	lists, problems := netconf.Lists(len(d.On(netconf.DefaultNetwork)) > 0)
	for _, err := range problems {
		p := netconf.ProblemOf(err)
		if app.Denied(err) {
			d.Unexamined("%v", err)
		} else if !d.named {
			d.add(NetworkFileUnusable, p.File, p.String(), nil, "FILE", p.File)
		}
	}
	said, all, installed := map[[2]string]bool{}, netconf.Wires(lists), Clients()
	looked, shared := 0, map[string]bool{}

	if len(problems) == 0 { // a file that cannot be read may be the one
		looked = d.fileless(lists)
	}
	for _, l := range lists {
		on := d.on(l.Name)
		if d.named && len(on) == 0 {
			continue
		}

		looked++
		for _, err := range netconf.Overlaps(l, all, said) {
			var o *netconf.OverlapError
			id, text := SubnetOverlap, netconf.ProblemOf(err).Problem
			if errors.As(err, &o) && o.Wider {
				id = SubnetInsideRoute
			}
			f := d.add(id, "network "+l.Name, text, on)
			holds := func(c attach.Cached) bool { return attached.HasAddress(c, o.With.Addr()) }
			if o != nil && o.Kind == "address" && slices.ContainsFunc(d.All, holds) {
				f.causes = causes{HostHasAddress: anywhere}
			}
		}

		if names := append([]string{l.Name}, netconf.Shared(l, all)...); len(names) > 1 && !shared[l.Name] {
			for _, name := range names {
				shared[name] = true
			}
			d.add(BridgeShared, "network "+l.Name, "networks "+strings.Join(names, ", ")+" use one bridge", on)
		}

		d.understood(l, installed)
		d.network(&netconf.Network{List: l, BuiltIn: l.File == ""}, on)
	}
	d.ofKinds()
	d.Looked[onNetwork] = looked
}

// fileless adds a finding for each network that has containers and no file, and returns how many there are. A runtime
// with lists of its own, such as Multus, has no files, so the list is looked for under the name that Fairlead would
// give the file.
func (d *Doctor) fileless(lists []*spec.List) int {
	missing := map[string]bool{}
	for _, c := range d.Selected {
		configured := func(l *spec.List) bool { return l.Name == c.Network }
		if d.Gone(c) || c.Network == attached.LoopbackNetwork || slices.ContainsFunc(lists, configured) {
			continue
		}
		missing[c.Network] = true
		file := filepath.Join(netconf.ConfDir(), c.Network+".conflist")
		what := "no file in " + netconf.ConfDir() + " defines the network"
		d.add(NetworkFileMissing, "network "+c.Network, what, affects(c), "ENTRY", c.File, "FILE", file)
	}
	return len(missing)
}

// on returns the containers on a network that the user asked about.
func (d *Doctor) on(name string) (on []affected) {
	for _, c := range d.Selected {
		if c.Network == name {
			on = append(on, affects(c)...)
		}
	}
	return on
}

// network adds findings that explain why a network would refuse a container.
func (d *Doctor) network(n *netconf.Network, on []affected) {
	where := "network " + n.Name
	for _, w := range n.Warnings {
		if p := netconf.ProblemOf(w); p.File != n.File && p.File != "" {
			d.add(NetworkShadowed, where, p.String(), nil, "FILE", p.File)
		}
	}

	if missing := n.Missing(); len(missing) > 0 {
		for _, err := range missing {
			if app.Denied(err) { // the plugin directory is not readable
				d.Unexamined("whether network %s has its plugins: %v", n.Name, err)
			} else {
				d.addWith(PluginMissing, where, err.Error(), on, install(n, err))
			}
		}
		return
	}

	if d.lacks(n.List) {
		return
	}
	d.cluster(n, on)
	ctx, cancel := context.WithTimeout(d.Ctx, app.Patience)
	defer cancel()
	if d.leases(ctx, n) {
		return
	}

	daemon, err := d.daemonless(n.List)
	if daemon == DHCPDaemonSilent { // STATUS would wait for it
		d.add(DHCPDaemonSilent, where, err.Error(), on)
		return
	}

	rt, err := netconf.Runtime(d.App, n)
	if err == nil {
		rt.Stderr = io.Discard // the evaluator's finding has more details
		sdk.LogTo(io.Discard)
		_, _, err = n.Serves(ctx, rt)
	}
	if err == nil {
		d.dhcp(n)
		return
	}

	hint := spec.AsError(err, 0).Hint
	switch {
	case app.Denied(err):
		d.Unexamined("whether network %s would serve a container: %v", n.Name, err)
	case daemon == DHCPDaemonAbsent:
		d.add(DHCPDaemonAbsent, where, said(err), on)
	case hint != "":
		d.addWith(NetworkNotReady, where, said(err), on, look(unquoted(hint)))
	default:
		d.add(NetworkNotReady, where, said(err), on, "NET", n.Name)
	}
}

// install says how to correct that a plugin of a network is missing.
func install(n *netconf.Network, err error) trace.Advice {
	var f *app.Failure
	var absent *netconf.NotInstalledError
	switch {
	case errors.As(err, &f):
		return fix(unquoted(f.Hint))
	case errors.As(err, &absent) && absent.Ours:
		return fix("fairlead install --dir " + absent.Dir)
	case absent != nil:
		return look("install the plugin " + absent.Type + " in " + absent.Dir)
	}
	return look("fairlead validate " + cmp.Or(n.File, n.Name))
}

// said returns the error of a plugin without the text around it.
func said(err error) string {
	var ran *invoke.ExecError
	if doc := (*spec.Error)(nil); errors.As(err, &doc) && errors.As(err, &ran) {
		return fmt.Sprintf("plugin %s: %s", ran.Type, doc.Msg)
	}
	return err.Error()
}

// unquoted returns the command of a hint that consists of one command, else "".
func unquoted(hint string) string {
	if n := len(hint); n > 1 && hint[0] == '`' && hint[n-1] == '`' {
		return hint[1 : n-1]
	}
	return hint
}

// leases examines the addresses of a network with host-local. It reports whether none is left.
func (d *Doctor) leases(ctx context.Context, n *netconf.Network) (exhausted bool) {
	p, err := netconf.PoolOf(n.List, true)
	if err != nil {
		return false // another allocator
	}
	b, err := d.Leases(ctx, p)
	if err != nil {
		d.Unexamined("the leases of network %s: %v", n.Name, err)
		return false
	}
	dead, left := 0, 0 // left are of attachments that are not in the cache
	for _, l := range b.Leases {
		if l.State != ipam.Gone {
			continue
		}
		dead++
		known := func(c attach.Cached) bool { return c.Network == n.Name && c.ContainerID == l.ContainerID }
		if !slices.ContainsFunc(d.All, known) {
			left++
		}
	}

	where, reclaimed := "network "+n.Name, false
	for _, u := range b.Uses {
		none := u.Available.IsZero()
		what := fmt.Sprintf("%s of %s addresses of %s are left; of %d leases, %d belong to containers that are gone",
			u.Available, u.Size, u.Range, len(b.Leases), dead)
		switch {
		case none && dead == 0:
			d.add(RangeExhausted, where, what, nil, "NET", n.Name)
			exhausted = true
		case none:
			d.add(RangeNear, where, what+", which an ADD reclaims", nil, "NET", n.Name)
			reclaimed = true
		case near(u) && dead == 0:
			d.addWith(RangeNear, where, what, nil, look("fairlead ipam ls "+n.Name))
		case near(u):
			d.add(RangeNear, where, what, nil, "NET", n.Name)
		}
	}

	if left > 0 && !reclaimed { // the others are removed with their attachments
		what := fmt.Sprintf("%d of %d leases belong to containers that are gone", left, len(b.Leases))
		d.add(LeasesOfTheDead, where, what, nil, "NET", n.Name)
	}
	return exhausted
}

// near reports whether fewer than 5 % of the addresses are left.
func near(u ipam.Use) bool {
	var twenty ipam.Count
	for range 20 {
		twenty = twenty.Add(u.Available)
	}
	return twenty.Less(u.Size)
}
