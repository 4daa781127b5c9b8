package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// offer returns the extra verbs that p answers; none for an allocator and for a chain, which are asked in another way.
func (p Plugin) offer(build string) extra.Offer {
	offered := extra.Offer{Release: release(build)}
	if p.plan != nil {
		offered.Plan, offered.Repair = 1, 1
	}
	return offered
}

// extra answers a verb that is not part of CNI.
func (s *site) extra(ctx context.Context, p Plugin, e environment, stdin []byte) ([]byte, error) {
	if p.plan == nil {
		return nil, spec.Errorf(spec.CodeEnvironment, "CNI_COMMAND %q: %s was not offered by its VERSION", e.Command,
			p.Name)
	}
	s.w = kernel.NewWorld(nil)
	defer s.w.Close()
	var answer any
	var err error
	if e.Command == extra.VerbPlan {
		answer, err = p.foresee(ctx, s.all, e, stdin)
	} else {
		answer, err = p.repair(ctx, e, stdin)
	}
	if err != nil {
		return nil, err
	}
	out, err := json.Marshal(answer)
	return append(out, '\n'), err
}

// asked decodes the standard input of an extra verb, and the configuration in it.
func asked(stdin []byte, into any, raw *json.RawMessage) (*spec.Conf, error) {
	if err := json.Unmarshal(stdin, into); err != nil {
		return nil, spec.Errorf(spec.CodeDecode, "stdin: %w", err)
	}
	return spec.ParseConf(*raw)
}

func (p Plugin) foresee(ctx context.Context, all []Plugin, e environment, stdin []byte) (*extra.PlanAnswer, error) {
	var q extra.PlanRequest
	conf, err := asked(stdin, &q, &q.Conf)
	if err != nil {
		return nil, err
	}
	r, err := p.NewRequest("ADD", spec.Owner{Network: conf.Name, ContainerID: e.ContainerID, IfName: e.IfName}, e.Netns,
		conf, e.args)
	if err != nil {
		return nil, err
	}
	r.HostLinks = q.HostLinks
	if q.IPAM != nil {
		r.IPs, r.Routes = q.IPAM.IPs, q.IPAM.Routes
	}
	host, err := kernel.Open("")
	if err != nil {
		return nil, err
	}
	defer host.Close()
	return p.Foresee(ctx, all, host, r)
}

// foreseen returns the result that the next plugin of the list would get, as far as a dry run can tell.
func (r *Request) foreseen(a Answer) *spec.Result {
	if r.conf.IPAMType == "" && r.Prev != nil {
		return r.Prev
	}
	res := &spec.Result{CNIVersion: r.conf.CNIVersion, Interfaces: []spec.Interface{{Name: r.IfName, Sandbox: r.Netns}},
		Routes: a.Routes}
	for _, l := range linksOf(nil, a.Plan) {
		res.Interfaces = append(res.Interfaces, spec.Interface{Name: l.Name})
	}
	for _, ip := range a.IPs {
		own := 0
		ip.Interface = &own
		res.IPs = append(res.IPs, ip)
	}
	return res
}

// repair restores what p made for an attachment. The caller must hold the lock of the attachment.
func (p Plugin) repair(ctx context.Context, e environment, stdin []byte) (*extra.RepairAnswer, error) {
	var q extra.RepairRequest
	conf, err := asked(stdin, &q, &q.Conf)
	if err != nil {
		return nil, err
	}
	a := Attached{Owner: spec.Owner{Network: conf.Name, ContainerID: e.ContainerID, IfName: e.IfName}, Netns: e.Netns,
		Args: e.args, Result: conf.PrevResult}
	if a.Host, err = restore.OpenHost(); err != nil {
		return nil, err
	}
	defer a.Host.Close()
	w := a.Host
	if a.Netns != "" {
		switch inside, err := restore.OpenContainer(a.Host, a.Owner, a.Netns); {
		case err == nil:
			defer inside.Container.Close()
			w = inside
		case !errors.Is(err, kernel.ErrHostNamespace):
			return nil, err
		}
	}
	is, err := p.Standing(ctx, &a, conf)
	if err != nil {
		return nil, err
	}
	return fix(ctx, w, is.Plan, q), nil
}

// fix repairs the resources of want: first rules that keep packets out, then other rules and everything else. If it
// repaired something that rules may depend on, such as a link, it goes through all resources once more.
func fix(ctx context.Context, w *kernel.World, want plan.Plan, q extra.RepairRequest) *extra.RepairAnswer {
	answer := &extra.RepairAnswer{Plan: restore.PlannedOf(want, false)}
	turns := []resource.Effect{resource.Closes, resource.Opens}
	if q.Closes {
		turns = turns[:1]
	}
	m := restore.Fixing{DryRun: q.DryRun, Fixed: true}
	for round := 0; round < 2 && m.Fixed; round++ {
		m.Fixed, answer.Wrong = false, nil
		for _, turn := range turns {
			for _, r := range want {
				if e, rule := restore.EffectOf(r); e != turn || q.Firewall && !rule {
					continue
				}
				changed, wrong := m.One(ctx, w, r)
				if changed && !slices.Contains(answer.Repaired, r.String()) {
					answer.Repaired = append(answer.Repaired, r.String())
				}
				answer.Wrong = append(answer.Wrong, wrong...)
			}
		}
	}
	return answer
}
