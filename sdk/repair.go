package sdk

import (
	"context"
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// This is what a repair needs of a plugin: what an attachment that was made by an earlier call should be like
// now. It is CHECK without the verdict.

// OpenHost opens the host's namespace, as a World without a container.
func OpenHost() (*kernel.World, error) {
	c := &call{site: &site{w: newWorld()}}
	return c.w, c.openHost()
}

// OpenContainer returns host with the namespace of o's container at netns. The caller closes only w.Container. The
// error is kernel.ErrNoNamespace if the namespace no longer exists or is not the one that ADD saw.
func OpenContainer(host *kernel.World, o spec.Owner, netns string) (w *kernel.World, err error) {
	cont, err := kernel.Open(netns)
	if errors.Is(err, kernel.ErrNotNamespace) {
		return nil, fmt.Errorf("%s: %w", netns, kernel.ErrNoNamespace)
	} else if err != nil {
		return nil, err
	}
	same, err := kernel.Same(host.Host, cont)
	if same && err == nil {
		err = fmt.Errorf("%s: %w", netns, kernel.ErrHostNamespace)
	}
	if err == nil {
		err = checkIdentity(host.Store, o, cont)
	}
	if err != nil {
		cont.Close()
		return nil, err
	}
	return &kernel.World{Host: host.Host, Container: cont, Store: host.Store}, nil
}

// Vanished returns why the container of o has no namespace at netns any more: there is none, or it is not the one that
// ADD saw. It returns nil if the namespace may exist. Names and inode numbers of namespaces are reused, so the identity
// that an interface plugin of Fairlead recorded is compared. For attachments of other plugins only the path counts.
func Vanished(o spec.Owner, netns string) error {
	if netns == "" {
		return nil
	}
	cont, err := kernel.Open(netns)
	switch {
	case errors.Is(err, kernel.ErrNoNamespace) && !kernel.Hidden(netns, err):
		return err
	case err != nil:
		return nil
	}
	defer cont.Close()
	if err := checkIdentity(newWorld().Store, o, cont); errors.Is(err, kernel.ErrNoNamespace) && !spec.Unseen(netns) {
		return err
	}
	return nil
}

// checkIdentity returns kernel.ErrNoNamespace if cont is not the namespace that ADD saw.
func checkIdentity(m record.Store, o spec.Owner, cont *kernel.NS) error {
	var was kernel.Identity
	known, err := m.Get(netnsRecord, o, &was)
	if err != nil || !known {
		return err
	}
	if same, err := cont.Is(was); err != nil || same {
		return err
	}
	return fmt.Errorf("%s is not the namespace that was attached: %w", cont.Path, kernel.ErrNoNamespace)
}

// WasAttached reports whether an interface plugin of this program made o's link in this boot, and no DEL removed it.
func WasAttached(w *kernel.World, o spec.Owner) bool {
	known, err := w.Store.Get(netnsRecord, o, new(kernel.Identity))
	return known && err == nil
}

const handedRecord = resource.HandedRecord

// HandOver records that o's link belongs to another program from now on, although an interface plugin of this program
// made it. The next ADD takes it back.
func HandOver(w *kernel.World, o spec.Owner) error {
	if err := w.Store.Put(handedRecord, o, true); err != nil {
		return err
	}
	return w.Store.Delete(netnsRecord, o)
}

// HandedOver reports whether o was handed over in this boot, and neither attached nor deleted by this program since.
func HandedOver(w *kernel.World, o spec.Owner) bool {
	known, err := w.Store.Get(handedRecord, o, new(bool))
	return known && err == nil && !WasAttached(w, o)
}

// MakesLinks reports whether p makes links and so begins a list. WasAttached is about attachments of such plugins.
func (p Plugin) MakesLinks() bool { return p.role == makesLinks }

// An Attached is one plugin's part of an attachment: what CHECK gets about it.
type Attached struct {
	Owner spec.Owner
	Netns string
	Args  [][2]string
	Conf  *spec.Conf // with prevResult

	Links // from LookUp
}

// LookUp asks the kernel about the links of o on the host, for all plugins of an attachment at netns.
func LookUp(host *kernel.World, o spec.Owner, netns string, res *spec.Result) (Links, error) {
	c := &call{r: &Request{verb: "CHECK", Owner: o, Prev: res}, site: &site{w: host}}
	switch w, err := OpenContainer(host, o, netns); {
	case err == nil:
		c.site = &site{w: w}
		defer w.Container.Close()
	case !errors.Is(err, kernel.ErrNoNamespace) && !errors.Is(err, kernel.ErrHostNamespace):
		return Links{}, err
	}
	err := c.lookUpHostLinks()
	return c.r.Links, err
}

// Wanted returns the plan that CHECK compares with.
func (p Plugin) Wanted(a Attached) (plan.Plan, error) {
	if p.plan == nil {
		return nil, nil
	}
	r, err := p.NewRequest("CHECK", a.Owner, a.Netns, a.Conf, a.Args)
	if err != nil {
		return nil, err
	}
	r.Links, r.Ranges = a.Links, a.ranges
	c := &call{p: p, conf: a.Conf, r: r}
	return c.want()
}

// Leases verifies that the attachment holds its addresses. Conf names the IPAM plugin among all; an IPAM plugin of
// another program is not asked.
func (p Plugin) Leases(ctx context.Context, all []Plugin, a Attached) error {
	for _, q := range append([]Plugin{p}, all...) {
		if !q.Allocates() || q.Name != a.Conf.IPAMType && q.Name != a.Conf.Type {
			continue
		}
		r, err := q.NewRequest("CHECK", a.Owner, a.Netns, a.Conf, a.Args)
		if err != nil {
			return err
		}
		allocator, _, err := q.open(a.Conf, r)
		if err != nil {
			return err
		}
		return allocator.Verify(ctx, a.Owner, a.Conf.PrevResult)
	}
	return nil
}
