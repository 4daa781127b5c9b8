package publish

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
	"github.com/fairlead-cni/fairlead/spec"
)

// A heldPort is a port of the host that another program published by iptables, or by the reference's nft tables.
type heldPort struct {
	xtables.Rule            // that leads to the container
	owner        spec.Owner // without an interface; the network may be unknown
	chain        string     // of iptables
	further      bool       // under conditions
}

// iptForeign are the ports that chains of the reference lead somewhere, ours among them.
func iptForeign(saved map[string][]xtables.Rule) (all []heldPort) {
	seen := map[string]bool{}
	for _, e := range saved[ChainDNAT] {
		o, _ := iptables.ParseReferenceComment("dnat ", e.Comment)
		if seen[e.Jump] || !strings.HasPrefix(e.Jump, "CNI-DN-") {
			continue
		}
		seen[e.Jump] = true
		further := len(e.Words) != 12 // -p P -m comment --comment C -m multiport --dports L -j J
		for _, r := range saved[e.Jump] {
			if r.Jump == "DNAT" {
				all = append(all, heldPort{Rule: r, owner: o, chain: e.Jump, further: further})
			}
		}
	}
	return all
}

// asksFor reports whether the mappings want a port that a rule is about.
func (p Ports) asksFor(r xtables.Rule, v6 bool) (Mapping, bool) {
	for _, m := range p.Mappings {
		host, ok := m.Host(v6)
		atOne := host.IsUnspecified() || !r.Dst.IsValid() || r.Dst.Contains(host)
		if ok && atOne && m.Protocol == r.Proto && meet([][2]uint16{{m.HostPort, m.Last()}}, r.Ports) {
			return m, true
		}
	}
	return Mapping{}, false
}

// foreignConflict is an error where another living container has the port; dead is one whose address p has now.
func (p Ports) foreignConflict(w *kernel.World, f heldPort, v6 bool) (dead bool, err error) {
	to, conditions := p.Family(v6)
	m, asked := p.asksFor(f.Rule, v6)
	if !asked || f.further || len(conditions) > 0 || f.owner.ContainerID == p.Owner.ContainerID {
		return false, nil
	}
	records, err := iptables.Records(w, IPTablesRecord, f.owner.Network)
	if err != nil {
		return false, err
	}
	known := false
	for _, r := range records {
		if r.ContainerID == f.owner.ContainerID && r.Has(f.To.Addr()) && r.Link != 0 {
			if known = true; vanished(w, uint32(r.Link)) {
				return true, nil
			}
		}
	}
	// One network's IPAM gives an address away when no container has it. Networks may overlap.
	given := f.To.Addr() == to.Addr() && (f.owner.Network == "" || f.owner.Network == p.Owner.Network)
	if given && !known || cachedGone(w, f.owner) {
		return true, nil
	}
	who := f.owner.ContainerID
	if f.owner.Network != "" {
		who = f.owner.Network + "/" + who
	}
	by := "nft table cni_hostport"
	if f.chain != "" {
		by = "iptables, chain " + f.chain
	}
	return false, spec.Errorf(spec.CodeConfig,
		"%s port %s is published by container %s and leads to %v (%s): publish another port or host address, or "+
			"remove that attachment (DEL, or GC where its container is gone)",
		f.Proto, portsText(m.HostPort, m.Last()), who, f.To, by).WithOrigin(mappingsKey).HeldBy(f.owner.String())
}

// foreignDead are those of others' ports that are wanted and belong to containers that are gone. The living are errors.
func (p Ports) foreignDead(w *kernel.World, all []heldPort, v6 bool) (dead []heldPort, err error) {
	var errs []error
	for _, f := range all {
		gone, err := p.foreignConflict(w, f, v6)
		if errs = append(errs, err); gone {
			dead = append(dead, f)
		}
	}
	return dead, errors.Join(errs...)
}

// replaceDead finds who else publishes one of the ports by iptables. What belongs to containers that are gone is
// removed with the same change.
func (p PortsIPTables) replaceDead(w *kernel.World, d *iptables.Draft, v6 bool) error {
	mine := func(f heldPort) bool { return f.chain == ContainerChain(p.Owner) }
	dead, err := p.foreignDead(w, slices.DeleteFunc(iptForeign(d.Saved), mine), v6)
	if err != nil {
		return err
	}
	dropped := map[string]bool{}
	for _, f := range dead {
		if !dropped[f.chain] {
			dropped[f.chain] = true
			d.Drop(f.chain, ChainDNAT)
		}
	}
	return nil
}

// heldByOthers is an error where the reference, or our iptables backend, publishes one of the ports for another
// container. Where there is no such chain or table it has asked the kernel, and no program.
func (p Ports) heldByOthers(ctx context.Context, w *kernel.World) error {
	var errs []error
	for _, v6 := range []bool{false, true} {
		all, err := foreignPorts(ctx, w, v6, func(rules []xtables.Rule) bool {
			return slices.ContainsFunc(rules, func(r xtables.Rule) bool {
				_, asked := p.asksFor(xtables.Rule{Proto: r.Proto, Ports: r.Ports}, v6)
				return r.Jump != ContainerChain(p.Owner) && (asked || r.Ports == nil || r.Proto == "")
			})
		})
		if err != nil {
			return err
		}
		dead, err := p.foreignDead(w, all, v6)
		errs = append(errs, err)
		for _, f := range dead {
			if f.chain != "" { // which would go on leading there, for it comes first
				errs = append(errs, iptables.WithLock(ctx, func(ctx context.Context) error {
					return RemoveContainerChain(ctx, w, v6, f.chain, nil)
				}))
			} else {
				errs = append(errs, RemoveReferencePorts(&kernel.World{Host: w.Host, Store: w.Store}, f.owner))
			}
		}
	}
	return errors.Join(errs...)
}

// foreignPorts are the ports of a family that are published otherwise than by our nft table. Look says by the entries
// whether it is worth to read the chains, which takes a program.
func foreignPorts(ctx context.Context, w *kernel.World, v6 bool,
	look func([]xtables.Rule) bool) (all []heldPort, err error) {
	tables, err := iptables.Having(w, v6, "nat", ChainDNAT)
	if err != nil {
		return nil, err
	}
	for _, x := range tables {
		if x.Variant == xtables.NFT {
			if entries, err := x.List(ctx, ChainDNAT); err != nil || !look(entries) {
				if err != nil {
					return nil, err
				}
				continue
			}
		}
		saved, err := x.Save(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, iptForeign(saved)...)
	}
	rules, err := xtables.NewTable(w.Host, xtables.NFT, v6, "cni_hostport").List(ctx, "hostports")
	for _, r := range rules {
		if r.Jump == "DNAT" {
			all = append(all, heldPort{Rule: r, owner: spec.Owner{ContainerID: r.Comment}})
		}
	}
	return all, err
}

// conflictsWithNFT is an error where another living container publishes one of the ports by our nft table.
func (p PortsIPTables) conflictsWithNFT(ctx context.Context, w *kernel.World) error {
	err := filter.Transact(ctx, w, filter.Inet(), func(f filter.Tx) error {
		plain := p.Ports
		plain.Mappings = slices.Clone(p.Mappings)
		for i := range plain.Mappings {
			plain.Mappings[i].AllowFrom = nil
		}
		if len(p.Conditions4) > 0 { // ports with conditions do not meet others
			plain.To4 = netip.Prefix{}
		}
		if len(p.Conditions6) > 0 {
			plain.To6 = netip.Prefix{}
		}
		plain.Conditions4, plain.Conditions6 = nil, nil
		pub, err := plain.want(f.Table)
		if err != nil {
			return err
		}
		near, err := slotsAround(f, pub.claims)
		if err != nil {
			return err
		}
		claims := slotClaims{}
		if err := claims.read(f, near); err != nil {
			return err
		}
		_, err = claims.rivals(w, identity.OwnerHash(p.Owner), pub.claims)
		return err
	})
	return filter.ExceptUnavailable(err)
}

// Open lets packets reach the container on all paths. Before, it makes sure that the paths admit nothing else, and
// that no other attachment has the ports in our nf_tables table.
func (p PortsIPTables) Open(ctx context.Context, w *kernel.World) (changed bool, err error) {
	if err := p.conflictsWithNFT(ctx, w); err != nil {
		return false, err
	}
	paths := p.paths(w)
	if paths.local && guarded(ctx, w) != nil {
		if err := guard(ctx, w); err != nil {
			return false, err
		}
		changed = true
	}
	opened, err := paths.open()
	return changed || opened, err
}

// cachedGone reports whether the results cache names a host end for every attachment of a container, of one network
// or of any, and none of these is there: a veth pair dies with its container's namespace. What the cache does not
// know lives.
func cachedGone(w *kernel.World, o spec.Owner) bool {
	pattern := o.Network + "-" + o.ContainerID + "-*"
	if o.Network == "" {
		pattern = "*-" + o.ContainerID + "-*"
	}
	files, err := filepath.Glob(filepath.Join("/var/lib/cni/results", pattern)) // neither can hold a wildcard
	if err != nil {
		return false
	}
	known := false
	for _, file := range files {
		var c struct {
			ContainerID string `json:"containerId"`
			NetworkName string `json:"networkName"`
			IfName      string `json:"ifName"`
			Result      struct {
				Interfaces []struct{ Name, Sandbox, MAC string } `json:"interfaces"`
			} `json:"result"`
		}
		b, err := plainfile.Read(file, plainfile.MaxSize)
		if err != nil || json.Unmarshal(b, &c) != nil || c.ContainerID != o.ContainerID {
			continue
		}
		for _, i := range c.Result.Interfaces {
			// whatever its name
			ours := identity.MAC("host", spec.Owner{Network: c.NetworkName, ContainerID: c.ContainerID,
				IfName: c.IfName}).String()
			if i.Sandbox != "" || !strings.HasPrefix(i.Name, "veth") && i.MAC != ours {
				continue
			}
			known = true
			if _, err := rtnl.LinkByName(w.Host, i.Name); !errors.Is(err, rtnl.ErrNoLink) {
				return false
			}
		}
	}
	return known
}
