package resource

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Publish makes ports of the host lead to the container.
//
// Only packets for the host itself are translated, coming in or made here. Two containers cannot have one
// port at overlapping addresses, as with bind(2); one container can have it on several networks, and then
// the first leads until it goes. Whoever published a port from behind a veth pair that is gone by now has
// lost it.
type Publish struct {
	Owner    spec.Owner
	Ports    []PortMapping
	To4, To6 netip.Prefix // the container's addresses, each with its subnet's length; invalid: none
	SNAT     bool         // masquerade what would not come back by itself: from the container, its subnet, 127.0.0.1
	MasqAll  bool         // masquerade everything that goes to these ports

	// Conditions4 and Conditions6 are what else a packet has to fulfil, in the words of nft(8) or iptables(8).
	Conditions4, Conditions6 []string
}

func (p Publish) String() string {
	ports := make([]string, len(p.Ports))
	for i, m := range p.Ports {
		ports[i] = m.String()
	}
	return line("publish", strings.Join(ports, ", "), opt("dnat ip to", p.To4), opt("dnat ip6 to", p.To6),
		flag("snat", p.SNAT), flag("masqall", p.MasqAll),
		opt("where ip", strings.Join(p.Conditions4, " ")), opt("where ip6", strings.Join(p.Conditions6, " ")))
}

// published is what a Publish comes to in the table.
type published struct {
	part    *part
	claims  []claimed        // one claim each, in after
	hairpin []kernel.NFTElem // what is masqueraded on its way to the container
	local   bool             // 127.0.0.1 is to work
}

// places are what owners has to name.
func (p *published) places() (all []kernel.NFTElem) {
	for _, c := range p.claims {
		all = append(all, c.place(c.after[0].host))
	}
	return append(all, p.hairpin...)
}

func (p Publish) want(t *kernel.NFTTable) (*published, error) {
	pub := &published{part: newPart(t)}
	for _, v6 := range []bool{false, true} {
		if err := p.wantFamily(t, v6, pub); err != nil {
			return nil, err
		}
	}
	return pub, nil
}

func (p Publish) wantFamily(t *kernel.NFTTable, v6 bool, pub *published) error {
	to, conditions := p.To4, p.Conditions4
	if v6 {
		to, conditions = p.To6, p.Conditions6
	}
	if !to.IsValid() {
		return nil
	}
	alternatives, where, err := parseConditions(conditions, v6)
	if err != nil {
		return err
	}
	ports := portsOf(t, v6, where)
	if where != "" {
		pub.part.Sets = append(pub.part.Sets, ports.exact, ports.any, ports.claims)
		pub.part.Chains = append(pub.part.Chains, &kernel.NFTChain{Name: ports.chain(), Rules: ports.rules()})
		for _, r := range alternatives {
			pub.part.lines = append(pub.part.lines, wayIn{"conditions", r.Jump(ports.chain())})
		}
	}
	var hairpin *kernel.NFTSet
	if p.SNAT || p.MasqAll {
		hairpin = pub.part.share("hairpin", "hairpin_"+ip(v6), func(s *kernel.NFTSet) *kernel.NFTRule {
			return kernel.NewNFTRule("a network").To(v6, s)
		}, p.hairpinRules(to, v6))
	}
	if slices.ContainsFunc(p.Ports, func(m PortMapping) bool { return len(m.AllowFrom) > 0 }) {
		return spec.Errorf(spec.CodeUnsupported, "allowFrom: is not supported yet")
	}
	asked, masqueraded := map[string]claim{}, map[string]bool{} // by place; a range may be thousands of ports
	for _, m := range eachPort(p.Ports) {
		proto, ok := kernel.ParseProto(m.Protocol)
		if !ok || m.HostPort == 0 || m.ContainerPort == 0 {
			return spec.Errorf(spec.CodeConfig, "port mapping %v: want tcp, udp or sctp, and two ports from 1 to 65535", m)
		}
		host := m.HostIP.Unmap().WithZone("")
		if !host.IsValid() || host.IsUnspecified() {
			host = netip.IPv4Unspecified()
			if v6 {
				host = netip.IPv6Unspecified()
			}
		}
		if host.Is6() != v6 {
			continue
		}
		c := claimed{slot: slot{ports, proto, m.HostPort}, after: []claim{{
			owner: kernel.OwnerHash(p.Owner), comment: tagOf(p.Owner), host: host, to: to.Addr(), toPort: m.ContainerPort,
			container: kernel.ContainerHash(p.Owner.ContainerID),
		}}}
		at := place(c.place(host))
		if before, ok := asked[at]; ok {
			if before != c.after[0] {
				return spec.Errorf(spec.CodeConfig, "port mapping %v: the port is asked for twice, to lead to %d as well", m, before.toPort)
			}
			continue
		}
		asked[at] = c.after[0]
		pub.claims = append(pub.claims, c)
		if hairpin == nil {
			continue
		}
		pub.local = pub.local || !v6
		e := kernel.NFTElem{Set: hairpin, Key: kernel.NFTKey(to.Addr(), proto, m.ContainerPort), Comment: tagOf(p.Owner)}
		if !masqueraded[place(e)] {
			masqueraded[place(e)] = true
			pub.hairpin = append(pub.hairpin, e)
		}
	}
	return nil
}

// hairpinRules masquerade what the container would answer to directly, past the host that translated it.
func (p Publish) hairpinRules(to netip.Prefix, v6 bool) []*kernel.NFTRule {
	if p.MasqAll {
		return []*kernel.NFTRule{kernel.NewNFTRule("from anywhere").Masquerade()}
	}
	rules := []*kernel.NFTRule{kernel.NewNFTRule("from its own network").Family(v6).Prefix(false, false, to.Masked()).Masquerade()}
	if !v6 {
		loopback := netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
		rules = append(rules, kernel.NewNFTRule("from this host").Family(v6).Prefix(false, false, loopback).Masquerade())
	}
	return rules
}

// Ensure implements plan.Resource.
func (p Publish) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	if len(p.Ports) == 0 {
		return false, nil
	}
	var flows []kernel.UDPFlow
	var fresh []claimed
	err = withFilter(ctx, w, inetTable(), func(f filter) error {
		pub, err := p.want(f.t)
		if err != nil {
			return err
		}
		if err := p.heldByOthers(ctx, w); err != nil {
			return err
		}
		if err := f.ready(pub.part); err != nil { // with what keeps neighbours out of 127/8, before they could come in
			return err
		}
		var b kernel.NFTBatch
		if flows, fresh, err = f.publish(w, &b, p.Owner, pub); err != nil {
			return err
		}
		wrote, err := p.openPaths(w, pub)
		if err != nil {
			return err
		}
		changed = wrote || !b.Empty()
		return f.Commit(&b)
	})
	if err != nil {
		return false, err
	}
	flush(w, flows)
	for _, c := range fresh {
		if c.proto != kernel.SCTP && w.Host.Listens(c.proto, c.after[0].host, c.port) {
			slog.Warn("a process listens on a port that is published now, and hears only what is not for the host's addresses",
				"port", c.port, "protocol", kernel.ProtoName(c.proto), "attachment", p.Owner.String())
		}
	}
	return changed, nil
}

// Verify implements plan.Resource.
func (p Publish) Verify(ctx context.Context, w *kernel.World) error {
	if len(p.Ports) == 0 {
		return nil
	}
	return withFilter(ctx, w, inetTable(), func(f filter) error {
		pub, err := p.want(f.t)
		if err != nil {
			return err
		}
		d, err := f.standing(pub.part)
		if err != nil || d.all() {
			return errors.Join(err, d.err())
		}
		more, err := f.publishedDrift(p.Owner, pub)
		if err != nil {
			return err
		}
		d = append(d, more...)
		for _, path := range p.paths(w, pub) {
			d.add(path.err)
		}
		return d.err()
	})
}

// Remove implements plan.Remover. It needs only the owner.
func (p Publish) Remove(ctx context.Context, w *kernel.World) error {
	return remove(ctx, w, inetTable(), p.Owner, kindPublish)
}
