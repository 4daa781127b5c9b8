package target

import (
	"context"

	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// external returns the plugin of another project that Fairlead can ask for the plan of an opaque step. Offline,
// nothing is run.
func (t *Target) external(st Step) *extra.External {
	if st.Opaque == "" || st.Path == "" || t.Offline {
		return nil
	}
	dirs, _ := netconf.Search(t.Network)
	return extra.Ask(context.Background(), st.Path, invoke.Call{Type: st.Type, Path: dirs})
}

// planExternal asks a plugin of another project for its plan.
func (t *Target) planExternal(
	x *extra.External, conf *spec.Conf, version spec.Version, prev *spec.Result, links []resource.HostLink,
) (*extra.PlanAnswer, error) {
	raw, err := t.request(conf, version)
	if err != nil {
		return nil, err
	}
	o, err := spec.ParseObject(raw)
	if err == nil && prev != nil {
		err = o.Set("prevResult", prev)
	}
	if err != nil {
		return nil, err
	}
	q := extra.PlanRequest{HostLinks: links}
	if q.Conf, err = o.MarshalJSON(); err != nil {
		return nil, err
	}
	if conf.IPAMType != "" && t.FindIPAM(conf) == nil {
		q.IPAM = &spec.Result{CNIVersion: version}
		if res, _ := sdk.Forecast(plugin.All(), conf); res != nil {
			q.IPAM.IPs, q.IPAM.Routes = res.IPs, res.Routes
		}
	}
	owner := spec.Owner{Network: t.Name, ContainerID: t.ContainerID, IfName: t.IfName}
	a, err := x.Foresee(context.Background(), owner, t.Netns, t.Args, q)
	if err != nil {
		return nil, err
	}
	t.lack(conf.Type, a.Unmet)
	for _, note := range a.Notes {
		t.Notes = append(t.Notes, noted{conf.Type, note})
	}
	return a, nil
}
