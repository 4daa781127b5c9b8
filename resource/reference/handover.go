package reference

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter/forward"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"github.com/fairlead-cni/fairlead/resource/filter/spoof"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// Handover returns what the reference plugins would have made instead of a resource, with the backend iptables or
// nftables. Lost lists what they cannot express. To hand an attachment over, ensure that plan and then remove the
// resource, unless MatchesReference says that its rules are the reference's already. Ok is false if the reference has
// no rules for the resource.
func Handover(r plan.Resource, backend string) (to plan.Plan, lost []string, ok bool) {
	switch r := r.(type) {
	case publish.Ports:
		to, lost = handPublish(r, backend)
	case masquerade.Sources:
		to, lost = handMasquerade(r, backend)
	case publish.PortsIPTables, masquerade.SourcesIPTables:
	case spoof.Check:
		to = plan.Plan{SpoofCheck(r)}
	case policy.Ingress:
		if r.Policy == policy.Open {
			break
		}
		if r.Policy == policy.Strict {
			lost = []string{"ingressPolicy strict: its rules stay in iptables"}
		}
		to = plan.Plan{policy.IngressIPTables{Owner: r.Owner, Link: r.Link, Policy: r.Policy, V4: true, V6: true,
			To:    r.To,
			Stays: true}}
	case policy.FailClosed: // the rules are the bridge's, and go with ReleaseNetwork
		if r.Policy == policy.Isolated || r.Policy == policy.Strict {
			lost = []string{"ip rules that keep the network closed while the packet filter is flushed: are removed"}
		}
	case policy.IsolatedPort:
		lost = []string{"isolated: containers of one bridge are kept apart only where bridged frames pass iptables " +
			"(br_netfilter)"}
	case forward.Forward:
		if len(r.Addrs) > 0 && r.Backend != forward.Firewalld {
			to = plan.Plan{Firewall{Owner: r.Owner, Addrs: r.Addrs, Admin: r.AdminChain()}}
		}
	default:
		return nil, nil, false
	}
	return to, lost, true
}

func handPublish(p publish.Ports, backend string) (to plan.Plan, lost []string) {
	if len(p.Mappings) == 0 {
		return nil, nil
	}
	for _, m := range p.Mappings {
		if len(m.AllowFrom) > 0 {
			lost = append(lost, fmt.Sprintf("allowFrom of %v: holds on, and the reference's CHECK does not know it", m))
		}
		if m.Len() > 1 {
			lost = append(lost,
				fmt.Sprintf("the range of %v: stays published, and the reference's CHECK does not know it", m))
		}
	}
	if backend == forward.NFT {
		return plan.Plan{Ports{Owner: p.Owner, Publish: &p}}, lost
	}
	return plan.Plan{publish.PortsIPTables{Ports: p, MarkBit: 13}}, lost
}

func handMasquerade(m masquerade.Sources, backend string) (to plan.Plan, lost []string) {
	switch {
	case len(m.From) == 0:
		return nil, nil
	case backend != forward.NFT:
		return plan.Plan{masquerade.SourcesIPTables{Sources: m}}, nil
	case len(m.Except)+len(m.Force)+len(m.SNATTo) > 0:
		lost = []string{"masqExcept, masqForce, snatTo: are not masqueraded by"}
	}
	return plan.Plan{Masquerade{Owner: m.Owner, From: m.From}}, lost
}

// MatchesReference reports whether the rules of a resource are the same as the reference's.
func MatchesReference(r plan.Resource) bool {
	switch r.(type) {
	case publish.PortsIPTables, masquerade.SourcesIPTables:
		return true
	}
	return false
}

// InNFT reports whether the reference plugins have rules of any attachment in nf_tables.
func InNFT(w *kernel.World) (there bool, err error) {
	n, err := nft.Open(w.Host)
	if err != nil {
		return false, err
	}
	for _, c := range []struct {
		table *nft.Table
		chain string
	}{
		{&nft.Table{Family: unix.NFPROTO_INET, Name: "cni_plugins_masquerade"}, "masq_checks"},
		{&nft.Table{Family: unix.NFPROTO_INET, Name: "cni_hostport"}, "hostports"},
		{publish.ReferencePortsTable(false), "hostports"},
		{publish.ReferencePortsTable(true), "hostports"},
	} {
		if there, err := n.HasChain(c.table, c.chain); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// ForgetHandedOver deletes the records of an attachment's rules after a handover.
func ForgetHandedOver(w *kernel.World, o spec.Owner) error {
	return errors.Join(w.Store.Delete(publish.IPTablesRecord, o), w.Store.Delete(masquerade.IPTablesRecord, o))
}

// rules are the reference's in table filter, for addresses of a family.
func (f Firewall) rules(v6 bool) (shared, own []xtables.Rule) {
	for _, a := range forward.OfIP(f.Addrs, v6) {
		ip := netip.PrefixFrom(a, a.BitLen()).String()
		own = append(own,
			xtables.Rulef(iptables.ChainForward, "-d %s -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", ip),
			xtables.Rulef(iptables.ChainForward, "-s %s -j ACCEPT", ip))
	}
	return forward.Jumps(cmp.Or(f.Admin, forward.DefaultAdminChain)), own
}

// Ensure implements plan.Resource, for a handover.
func (f Firewall) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	for _, v6 := range []bool{false, true} {
		shared, own := f.rules(v6)
		if len(own) == 0 {
			continue
		}
		x, err := iptables.With(w, v6, "filter", iptables.ChainForward)
		if err != nil {
			return changed, err
		}
		err = iptables.WithLock(ctx, func(ctx context.Context) error {
			did, err := iptables.Edit(ctx, x, func(d *iptables.Draft) error {
				d.Chain(iptables.ChainForward)
				d.Chain(shared[1].Jump)
				d.Insert(shared...)
				d.Append(own...)
				return nil
			})
			changed = changed || did
			return err
		})
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// Verify implements plan.Resource, for a handover.
func (f Firewall) Verify(ctx context.Context, w *kernel.World) error {
	var d resource.Drift
	for _, v6 := range []bool{false, true} {
		shared, own := f.rules(v6)
		if len(own) == 0 {
			continue
		}
		x, err := iptables.With(w, v6, "filter", iptables.ChainForward)
		if err != nil {
			return err
		}
		missing, err := iptables.Drift(ctx, x, slices.Concat(shared, own)...)
		if err != nil {
			return err
		}
		d = append(d, missing...)
	}
	return d.Err()
}
