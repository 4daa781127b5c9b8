package sdk

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// An Attached is an attachment that an earlier call made, for the plugins of its list.
type Attached struct {
	Host   *kernel.World
	Owner  spec.Owner
	Netns  string
	Args   [][2]string
	Result *spec.Result // of ADD

	// Allocators has the IPAM plugins that are asked for the attachment's addresses. Those of other programs are not.
	Allocators []Plugin

	links    *Links
	linksErr error
}

// A Standing is what one plugin should have for an attachment now.
type Standing struct {
	Plan   plan.Plan // that CHECK compares with
	Leases error     // why the attachment does not hold its addresses
}

// Standing returns what p should have for an attachment. It is CHECK without the verdict. Conf is that of CHECK, with
// prevResult. If the kernel does not answer about the attachment's links, the error says so, and the plan is what is
// known without them.
func (p Plugin) Standing(ctx context.Context, a *Attached, conf *spec.Conf) (s Standing, err error) {
	s.Leases = a.leases(ctx, conf)
	if p.plan == nil {
		return s, nil
	}
	r, err := p.NewRequest("CHECK", a.Owner, a.Netns, conf, a.Args)
	if err != nil {
		return s, err
	}
	if a.links == nil {
		a.links, a.linksErr = a.lookUp()
	}
	r.Links, r.Ranges = *a.links, a.links.ranges
	c := &call{p: p, conf: conf, r: r}
	s.Plan, err = c.want()
	return s, errors.Join(a.linksErr, err)
}

// lookUp asks the kernel about the links of the attachment on the host, for all plugins.
func (a *Attached) lookUp() (*Links, error) {
	c := &call{r: &Request{verb: "CHECK", Owner: a.Owner, Prev: a.Result}, site: &site{w: a.Host}}
	switch w, err := restore.OpenContainer(a.Host, a.Owner, a.Netns); {
	case err == nil:
		c.site = &site{w: w}
		defer w.Container.Close()
	case !errors.Is(err, kernel.ErrNoNamespace) && !errors.Is(err, kernel.ErrHostNamespace):
		return &Links{}, err
	}
	err := c.lookUpHostLinks()
	return &c.r.Links, err
}

// leases verifies that the attachment holds the addresses that the plugin of conf, or its IPAM plugin, gave it.
func (a *Attached) leases(ctx context.Context, conf *spec.Conf) error {
	given, err := allocator(a.Allocators, "CHECK", a.Owner, a.Netns, conf, a.Args)
	if given == nil || err != nil {
		return err
	}
	return given.Verify(ctx, a.Owner, conf.PrevResult)
}
