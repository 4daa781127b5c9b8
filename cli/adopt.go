package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/repair"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// attachAnew attaches anew what the report calls foreign, and says in it what came of that.
func (a *app) attachAnew(ctx context.Context, report *repair.Report) {
	a.orphans = true
	for i := range report.Findings {
		f := &report.Findings[i]
		if f.State != repair.Foreign && f.State != repair.Offline {
			continue
		}
		if err := a.anew(ctx, f.Owner); err != nil {
			f.State, f.Drift = repair.Broken, append(f.Drift, "not adopted: "+err.Error())
			continue
		}
		f.State, f.Drift, f.Wrong, f.NotOurs = repair.Adopted, nil, nil, nil
	}
}

// anew deletes an attachment by fairlead's plugins, which take away what the reference made, and adds it with the same
// addresses.
func (a *app) anew(ctx context.Context, o spec.Owner) error {
	list, _ := (&attach.Runtime{}).List(o.Network)
	i := slices.IndexFunc(list, func(c attach.Cached) bool { return !c.Bare && c.Owner() == o })
	if i < 0 {
		return attach.ErrNotAttached
	}
	c := list[i]
	n, rt, err := a.networkAndRuntime((*app).network, o.Network)
	if err != nil {
		return err
	}
	l := c.AttachedBy(n.List)
	theirs := foreign()
	for _, p := range l.WrittenOut().Plugins {
		for _, typ := range []string{p.Type, p.IPAMType} {
			is := func(q sdk.Plugin) bool { return q.Name == typ }
			if why := theirs(l, typ); why != "" && slices.ContainsFunc(plugin.All(), is) {
				return fmt.Errorf("%s: put fairlead's in its place first, or have CNI_PATH begin with their directory", why)
			}
		}
	}
	at := attach.Attachment{ContainerID: o.ContainerID, IfName: o.IfName, Netns: c.Netns, Args: c.Args,
		Capabilities: c.Capabilities, CNI: sameAddresses(l, c)}
	if err := rt.Del(ctx, l, at, attach.Continue()); err != nil {
		return fmt.Errorf("it is to be deleted first: %w", err)
	}
	if _, err := rt.Add(ctx, l, at); err != nil {
		return fmt.Errorf("it is deleted, and cannot be added: %w", err)
	}
	return nil
}

// sameAddresses is args.cni of a list, with the addresses that an attachment has, where host-local gives them.
func sameAddresses(l *spec.List, c attach.Cached) map[string]any {
	cni, asks := map[string]any{}, false
	for _, p := range l.WrittenOut().Plugins {
		asks = asks || p.IPAMType == "host-local"
		var conf struct{ Args struct{ CNI map[string]any } }
		if b, err := p.Object.MarshalJSON(); err == nil && json.Unmarshal(b, &conf) == nil {
			maps.Copy(cni, conf.Args.CNI)
		}
	}
	if !asks || c.Result == nil {
		return nil
	}
	var ips []string
	for _, ip := range c.Result.IPs {
		if own(c, ip) {
			ips = append(ips, ip.Address.Addr().String())
		}
	}
	cni["ips"] = ips
	return cni
}
