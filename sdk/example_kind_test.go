package sdk_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// A lamp is a resource of one's own: a link on the host, which outlives the container's namespace. Its fields say what
// should exist; its name and its mark derive from the attachment alone, so that DEL finds it without a configuration.
type lamp struct {
	Owner spec.Owner
	MTU   int
}

func (l lamp) name() string { return identity.LinkName("lamp", l.Owner) }

// String says it in the words of ip(8), for people.
func (l lamp) String() string { return fmt.Sprintf("link host/%s type ifb mtu %d", l.name(), l.MTU) }

// Ensure implements plan.Resource: all or nothing, and nothing where it is there.
func (l lamp) Ensure(_ context.Context, w *kernel.World) (bool, error) {
	if _, err := rtnl.LinkByName(w.Host, l.name()); !errors.Is(err, rtnl.ErrNoLink) {
		return false, err
	}
	err := rtnl.AddIFB(w.Host, rtnl.NewLink{Name: l.name(), MAC: identity.MAC("lamp", l.Owner), MTU: l.MTU,
		Group: identity.LinkGroup(l.Owner.Network), Alias: identity.Tag(l.Owner)})
	return err == nil, err
}

// Verify implements plan.Resource: it changes nothing, and names what differs.
func (l lamp) Verify(_ context.Context, w *kernel.World) error {
	is, err := rtnl.LinkByName(w.Host, l.name())
	if err == nil && is.MTU != l.MTU {
		err = fmt.Errorf("mtu is %d, want %d", is.MTU, l.MTU)
	}
	return err
}

// Remove implements plan.Remover: what is not there is removed.
func (l lamp) Remove(_ context.Context, w *kernel.World) error {
	is, err := rtnl.LinkByName(w.Host, l.name())
	if err == nil {
		err = rtnl.DelLink(w.Host, is.Index)
	}
	return resource.ExceptNoLink(err)
}

// Traits implements resource.Describer: what more is to be known of it. Here that `fairlead repair` makes good what is
// wrong on the host while the container lives.
func (l lamp) Traits() resource.Traits { return resource.Traits{Fix: l.fix} }

func (l lamp) fix(ctx context.Context, w *kernel.World) (bool, error) {
	if err := l.Remove(ctx, w); err != nil {
		return false, err
	}
	return l.Ensure(ctx, w)
}

// lampKind finds lamps by their marks: DEL removes that of one attachment, GC those that no valid attachment owns.
func lampKind() plan.Kind {
	return resource.NewKind("lamp", resource.KindFuncs{
		Owners: func(_ context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
			links, err := rtnl.Links(w.Host)
			for _, l := range links {
				net, owner, _, marked := identity.ParseTag(l.Alias)
				if marked && net == identity.NetworkHash(network) && l.Kind == "ifb" {
					tags = append(tags, plan.Tag{Network: network, Hash: owner, Found: l})
				}
			}
			return tags, err
		},
		Remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error { // of DEL, which knows the owner
			return lamp{Owner: t.Owner}.Remove(ctx, w)
		},
		Found: func(_ context.Context, w *kernel.World, tags []plan.Tag) (err error) { // of GC, which knows what was found
			for _, t := range tags {
				err = errors.Join(err, resource.ExceptNoLink(rtnl.DelLink(w.Host, t.Found.(*rtnl.Link).Index)))
			}
			return err
		},
	})
}

// lampPlugin is all of the plugin. The plan says what should exist; that it declares the kind is all that DEL, GC and the
// roll-back of a failed ADD need.
func lampPlugin() sdk.Plugin {
	type conf struct {
		MTU int `json:"mtu" want:"68..65535"`
	}
	return sdk.Chained("lamp", "a link on the host for each container", func(c conf, r *sdk.Request) (sdk.Answer, error) {
		return sdk.Answer{Plan: plan.Plan{lamp{Owner: r.Owner, MTU: c.MTU}}}, nil
	}, func(conf) []plan.Kind { return []plan.Kind{lampKind()} })
}

// A plugin with a resource and a kind of its own.
func Example_kind() {
	dry(lampPlugin(), `{"cniVersion": "1.1.0", "name": "lan", "type": "lamp", "mtu": 1400}`)
	fmt.Println("DEL and GC:", lampPlugin().Kinds(nil)[0].Name())
	// Output:
	// link host/lampnl2ajwbo5kf type ifb mtu 1400
	// DEL and GC: lamp
}
