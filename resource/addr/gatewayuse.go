package addr

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A GatewayUse records which gateways an attachment needs on a bridge, and which ones the configuration of its network
// has. A gateway that neither needs any more goes: with the last attachment that needs it, or when an attachment is
// added by a configuration without it.
type GatewayUse struct {
	Owner    spec.Owner
	Link     string
	Gateways []netip.Prefix // of the attachment
	Network  []netip.Prefix // in the configuration of the owner's network, those of the attachment among them
}

func (u GatewayUse) String() string {
	return resource.Line("record of host/"+u.Link, resource.Prefixes("gateways", u.Gateways))
}

// usedGateways is the name of the record of an attachment's gateways, and networkGateways that of a network's, by link.
const (
	usedGateways    = "usedgateways"
	networkGateways = "gatewaysof"
)

// gatewaysOn are the gateways that attachments need on each link.
type gatewaysOn map[string][]netip.Prefix

// networkOn is the owner of the record of a network's gateways on a link.
func networkOn(network, link string) spec.Owner { return spec.Owner{Network: network, IfName: link} }

// Ensure implements plan.Resource.
func (u GatewayUse) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	if err := u.configure(w); err != nil {
		return false, err
	}
	return u.use(ctx, w)
}

// configure records the network's gateways, if they have changed, and removes those that are no longer needed.
func (u GatewayUse) configure(w *kernel.World) error {
	of := networkOn(u.Owner.Network, u.Link)
	var was gatewaysOn
	known, err := w.Store.Get(networkGateways, of, &was)
	if err != nil || known && slices.Equal(was[u.Link], u.Network) {
		return err
	}
	for _, p := range was[u.Link] {
		if slices.Contains(u.Network, p) {
			continue
		}
		if err := (Gateway{Link: u.Link, Prefix: p}).release(w, identity.OwnerHash(of)); err != nil {
			return err
		}
	}
	return w.Store.Put(networkGateways, of, gatewaysOn{u.Link: u.Network})
}

// use records the attachment's gateways.
func (u GatewayUse) use(_ context.Context, w *kernel.World) (changed bool, err error) {
	var on gatewaysOn
	_, err = w.Store.Get(usedGateways, u.Owner, &on)
	if err != nil || slices.Equal(on[u.Link], u.Gateways) {
		return false, err
	}
	if on == nil {
		on = gatewaysOn{}
	}
	on[u.Link] = u.Gateways
	return true, w.Store.Put(usedGateways, u.Owner, on)
}

// Verify implements plan.Resource. It finds no difference, because an attachment of an earlier version has no record.
func (u GatewayUse) Verify(context.Context, *kernel.World) error { return nil }

// Remove implements plan.Remover. It deletes the attachment's record and no address.
func (u GatewayUse) Remove(_ context.Context, w *kernel.World) error {
	return w.Store.Delete(usedGateways, u.Owner)
}

// Traits implements resource.Describer. Repair does not change what the network's configuration is recorded to be.
func (u GatewayUse) Traits() resource.Traits { return resource.Traits{Fix: u.use} }

// needed reports whether an owner other than these needs the address: an attachment, or a network.
func (g Gateway) needed(w *kernel.World, but ...[8]byte) (needed bool, err error) {
	for _, record := range []string{networkGateways, usedGateways} {
		needed, err = w.Store.FindAny(record, func(owner [8]byte, b json.RawMessage) bool {
			return g.in(b) && !slices.Contains(but, owner)
		})
		if needed || err != nil {
			break
		}
	}
	return needed, err
}

// usedIn reports whether an attachment of the network needs the address.
func (g Gateway) usedIn(w *kernel.World, network string) (bool, error) {
	return w.Store.Find(usedGateways, network, func(_ [8]byte, b json.RawMessage) bool { return g.in(b) })
}

// outdated reports whether only an earlier configuration of the owner's network needs the address. Then the next
// GatewayUse of the network removes it.
func (g Gateway) outdated(w *kernel.World, index int) (bool, error) {
	of := networkOn(g.Owner.Network, g.Link)
	var was gatewaysOn
	_, err := w.Store.Get(networkGateways, of, &was)
	if err != nil || !slices.Contains(was[g.Link], g.Prefix) {
		return false, err
	}
	if _, counted, err := g.made(w, index); err != nil || !counted {
		return false, err
	}
	needed, err := g.needed(w, identity.OwnerHash(of))
	return !needed, err
}

// in reports whether the address is in a record.
func (g Gateway) in(b json.RawMessage) bool {
	var on gatewaysOn
	return json.Unmarshal(b, &on) == nil && slices.Contains(on[g.Link], g.Prefix)
}

// GatewayKind returns the Kind of GatewayUse. It removes the addresses that are not needed after the attachment.
func GatewayKind() plan.Kind {
	return resource.NewKind("gateway addresses", resource.KindFuncs{
		Owners: func(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
			return resource.RecordedTags[gatewaysOn](w, usedGateways, network)
		},
		Remove: func(_ context.Context, w *kernel.World, t plan.Tag) error {
			on, known, err := resource.RecordOf[gatewaysOn](w, usedGateways, t)
			if err != nil || !known {
				return err
			}
			return releaseGateways(w, t, on)
		},
	})
}

// releaseGateways ends an attachment's use of its gateways. The record goes after the addresses, so that a call that is
// killed is done again. Then the addresses are looked at once more: others that needed them may have gone meanwhile.
func releaseGateways(w *kernel.World, t plan.Tag, on gatewaysOn) error {
	var rest []Gateway // that the network's configuration does not need
	for link, list := range on {
		var of gatewaysOn
		if _, err := w.Store.Get(networkGateways, networkOn(t.Network, link), &of); err != nil {
			return err
		}
		for _, p := range list {
			if !slices.Contains(of[link], p) {
				rest = append(rest, Gateway{Link: link, Prefix: p})
			}
		}
	}
	var errs []error
	for _, g := range rest {
		errs = append(errs, g.release(w, t.Hash))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := w.Store.DeleteOf(usedGateways, t.Network, t.Hash); err != nil {
		return err
	}
	for _, g := range rest {
		errs = append(errs, g.release(w))
	}
	return errors.Join(errs...)
}

// ForgetGateways deletes what is recorded of a network's gateways on a bridge and its VLANs, of links that are gone.
func ForgetGateways(w *kernel.World, network, bridge string) error {
	records, err := w.Store.Records(networkGateways, network)
	errs := []error{err}
	for owner, b := range records {
		var on gatewaysOn
		if json.Unmarshal(b, &on) != nil {
			continue
		}
		for link, gateways := range on {
			if link != bridge && !strings.HasPrefix(link, bridge+".") {
				continue
			}
			if _, err := rtnl.IndexOf(w.Host, link); !errors.Is(err, rtnl.ErrNoLink) {
				errs = append(errs, err)
				continue
			}
			for _, p := range gateways {
				errs = append(errs, Gateway{Link: link, Prefix: p}.Forget(w))
			}
			errs = append(errs, w.Store.DeleteOf(networkGateways, network, owner))
		}
	}
	return errors.Join(errs...)
}
