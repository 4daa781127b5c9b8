package sdk

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// linksOf returns the links on the host that a list has made once the plan want exists: the known ones and those in
// want.
func linksOf(known []resource.HostLink, want plan.Plan) []resource.HostLink {
	for f := range ifaces(want) {
		if f.Where != resource.Host {
			continue
		}
		i := slices.IndexFunc(known, func(l resource.HostLink) bool { return l.Name == f.Name })
		switch {
		case i < 0 && f.Kind == "" && f.Master != "": // a link of another plugin, a tap as a rule
			known = append(known, resource.HostLink{Name: f.Name, Kind: "tun", Master: f.Master})
		case i < 0:
			known = append(known, resource.HostLink{Name: f.Name, Kind: f.Kind, Master: f.Master})
		case f.Master != "":
			known[i].Master = f.Master
		}
	}
	return known
}

// Foresee returns what ADD would do for a request of NewRequest, in which the caller has set HostLinks, IPs and Routes
// as far as they are known. It asks the IPAM plugin for its ranges if that is among all. With a host, the answer says
// what the plugin requires and the host lacks, unless that may not be read. With an error, it has the notes alone.
func (p Plugin) Foresee(ctx context.Context, all []Plugin, host *kernel.NS, r *Request) (*extra.PlanAnswer, error) {
	r.askRanges(all)
	want, notes, err := p.Plan(r.conf, r)
	a := &extra.PlanAnswer{Resources: []string{}, HostLinks: r.HostLinks, Result: r.Prev, Notes: notes}
	if err != nil {
		return a, err
	}
	for _, res := range want.Plan {
		if !resource.TraitsOf(res).Clears {
			a.Resources = append(a.Resources, res.String())
		}
	}
	a.HostLinks, a.Result = linksOf(slices.Clone(r.HostLinks), want.Plan), r.foreseen(want)
	if host != nil {
		if err := p.unmet(ctx, host, *r.conf); !errors.Is(err, fs.ErrPermission) {
			a.Unmet = spec.DifferencesIn(err).Lines()
		}
	}
	return a, nil
}

// unmet returns an error for each thing that a configuration requires of the host or its kernel and that is missing. It
// changes nothing.
func (p Plugin) unmet(ctx context.Context, host *kernel.NS, conf spec.Conf) error {
	conf.PrevResult = nil // as in STATUS
	r, err := p.NewRequest("STATUS", spec.Owner{Network: conf.Name}, "", &conf, nil)
	if err != nil {
		return err
	}
	want, _, err := p.Plan(&conf, r)
	if err != nil {
		return nil // which the plan of ADD says
	}
	w := kernel.NewWorld(host)
	return errors.Join(engine.Verify(ctx, w, want.Plan.Required()), possible(w, want.Plan))
}

// Sweep removes what the plugins have made on the host for attachments of the network that are not in valid, except
// addresses. It does the work of GC for lists whose version has no GC.
func Sweep(ctx context.Context, all []Plugin, network string, valid []spec.Attachment) error {
	host, err := restore.OpenHost()
	if err != nil {
		return err
	}
	defer host.Close()
	return collectGarbage(ctx, host, all, network, valid)
}
