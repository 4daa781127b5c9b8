package cli

import (
	"context"
	"sync"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// external is the plugin of another program that a step is opaque for, where it can be asked; offline, nothing is run.
func (t *target) external(st Step) *sdk.External {
	if st.Opaque == "" || st.Path == "" || t.offline {
		return nil
	}
	dirs, _ := search(t.network)
	return sdk.AskExternal(context.Background(), st.Path, invoke.Call{Type: st.Type, Path: dirs})
}

// planExternal is what a plugin of another program says that it would do.
func (t *target) planExternal(
	x *sdk.External, conf *spec.Conf, version spec.Version, prev *spec.Result, links []sdk.HostLink,
) (*sdk.PlanAnswer, error) {
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
	q := sdk.PlanRequest{HostLinks: links}
	if q.Conf, err = o.MarshalJSON(); err != nil {
		return nil, err
	}
	if conf.IPAMType != "" && t.findIPAM(conf) == nil {
		q.IPAM = &spec.Result{CNIVersion: version}
		q.IPAM.IPs, q.IPAM.Routes = example(conf)
	}
	owner := spec.Owner{Network: t.Name, ContainerID: t.ContainerID, IfName: t.IfName}
	a, err := x.Foresee(context.Background(), owner, t.Netns, t.Args, q)
	if err != nil {
		return nil, err
	}
	for _, text := range a.Unmet {
		a.Notes = append(a.Notes, sdk.Note{Text: text})
	}
	for _, note := range a.Notes {
		t.notes = append(t.notes, noted{conf.Type, note})
	}
	return a, nil
}

// externals finds, once for each file, the plugins of other programs that can be asked for more than CNI has verbs for.
// It is nil for one of ours.
func externals() func(ctx context.Context, l *spec.List, typ string) *sdk.External {
	known := map[string]*sdk.External{}
	var mu sync.Mutex
	return func(ctx context.Context, l *spec.List, typ string) *sdk.External {
		mu.Lock()
		defer mu.Unlock()
		dirs, _ := search(&network{List: l})
		path, err := invoke.Find(typ, dirs)
		if err != nil {
			return nil
		}
		x, asked := known[path]
		if !asked && !ours(path) {
			x = sdk.AskExternal(ctx, path, invoke.Call{Type: typ, Path: dirs})
		}
		known[path] = x
		return x
	}
}
