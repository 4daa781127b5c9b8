package ovs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/ovsdb"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Port makes a link on the host a port of a bridge of Open vSwitch.
type Port struct {
	DB      DB
	Owner   spec.Owner
	Bridge  string
	Link    string
	Netns   string  // path of the container's namespace, which is written down and not compared
	VLANs   VLANs   // of the container's packets
	OFPort  int     // OpenFlow port that is asked for; 0: any
	Limits  Limits  // of its packets
	Overlay Overlay // that the port keeps alive
}

// VLANs are those of a port: a Tag alone is the VLAN of packets without a tag; Trunks are those of packets with one;
// zero is all.
type VLANs struct {
	Tag    int
	Trunks []int
}

// mode is vlan_mode; empty is what Open vSwitch makes of the tag.
func (v VLANs) mode() string {
	switch {
	case len(v.Trunks) > 0 && v.Tag != 0:
		return "native-untagged"
	case len(v.Trunks) > 0:
		return "trunk"
	case v.Tag != 0:
		return "access"
	}
	return ""
}

func (v VLANs) String() string {
	return resource.Line(resource.Opt("vlan_mode", v.mode()), resource.Opt("tag", v.Tag),
		resource.Opt("trunks", ranges(v.Trunks)))
}

// row adds the columns of v to a row of a port.
func (v VLANs) row(row map[string]any) {
	if v.Tag != 0 {
		row["tag"] = v.Tag
	}
	if len(v.Trunks) > 0 {
		row["trunks"] = ovsdb.SetOf(v.Trunks...)
	}
	if m := v.mode(); m != "" {
		row["vlan_mode"] = m
	}
}

// compare is the drift of a port's row. Without an opinion any VLANs are right.
func (v VLANs) compare(row ovsdb.Row, d *resource.Drift) {
	if v.mode() == "" {
		return
	}
	want(d, "vlan_mode", v.mode(), row.Text("vlan_mode"))
	tag, _ := row.Int("tag")
	want(d, "tag", v.Tag, tag)
	want(d, "trunks", ranges(v.Trunks), ranges(row.Ints("trunks")))
}

// ranges is "10,20-29" of sorted numbers.
func ranges(ids []int) string {
	var b []string
	for i := 0; i < len(ids); {
		j := i
		for j+1 < len(ids) && ids[j+1] == ids[j]+1 {
			j++
		}
		s := strconv.Itoa(ids[i])
		if j > i {
			s += "-" + strconv.Itoa(ids[j])
		}
		b = append(b, s)
		i = j + 1
	}
	return strings.Join(b, ",")
}

func (p Port) String() string {
	return resource.Line("ovs port host/"+p.Link, "bridge", p.Bridge, p.VLANs.String(),
		resource.Opt("ofport_request", p.OFPort),
		p.Limits.String())
}

// A record says where an attachment's rows are, for a DEL without a configuration and for GC.
type record struct {
	DB     DB
	Bridge string `json:",omitempty"` // see resource.SwitchOf
}

// Ensure implements plan.Resource. Rows that a former call for the same attachment has left are replaced.
func (p Port) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	at := record{DB: p.DB}
	if p.VLANs.mode() == "" {
		at.Bridge = p.Bridge
	}
	if err := w.Store.Put(resource.SwitchRecord, p.Owner, at); err != nil {
		return false, err
	}
	err := p.DB.do(ctx, func(c *ovsdb.Conn) error {
		return retried(p.Bridge, func() error { return p.add(ctx, c) })
	})
	if err != nil {
		undo, stop := context.WithTimeout(context.WithoutCancel(ctx), applyLimit)
		defer stop()
		return false, errors.Join(err, p.Remove(undo, w))
	}
	return true, nil
}

// add inserts the rows and waits until they are in force.
func (p Port) add(ctx context.Context, c *ovsdb.Conn) error {
	answers, err := c.Transact(ctx,
		ovsdb.Select(bridgeTable, ovsdb.Is("name", p.Bridge), "_uuid"),
		ovsdb.Select(portTable, ovsdb.Is("name", p.Link), "_uuid", "external_ids"))
	if err != nil {
		return err
	}
	if len(answers[0].Rows) == 0 {
		return spec.Errorf(spec.CodeTryAgain, "bridge %s no longer exists", p.Bridge)
	}
	bridge := answers[0].Rows[0].UUID("_uuid")
	for _, old := range answers[1].Rows {
		if tag := old.Map("external_ids")[ownerKey]; tag != identity.Tag(p.Owner) {
			return fmt.Errorf("port %s exists in Open vSwitch, and is %s", p.Link, possessive(tag))
		}
		// a name cannot go and come in one transaction
		if err := remove(ctx, c, []string{identity.Tag(p.Owner)}); err != nil {
			return err
		}
	}
	iface := map[string]any{"name": p.Link, "external_ids": ovsdb.Map{ownerKey: identity.Tag(p.Owner)}}
	if p.OFPort != 0 {
		iface["ofport_request"] = p.OFPort
	}
	p.Limits.police(iface)
	var ops []ovsdb.Op
	ids := ovsdb.Map{ownerKey: identity.Tag(p.Owner), contIface: p.Owner.IfName, contNetns: p.Netns}
	if m := p.Overlay.mark(p.Bridge); m != "" {
		ids[overlayKey] = m
	}
	port := map[string]any{"name": p.Link, "interfaces": ovsdb.Named("iface"), "external_ids": ids}
	p.VLANs.row(port)
	if q := p.Limits.shape(); q != nil {
		q["external_ids"] = ovsdb.Map{ownerKey: identity.Tag(p.Owner)}
		ops = append(ops, ovsdb.Insert(qosTable, "qos", q))
		port["qos"] = ovsdb.Named("qos")
	}
	ops = append(ops, ovsdb.Wait(bridgeTable, ovsdb.Is("_uuid", bridge), map[string]any{"name": p.Bridge}),
		ovsdb.Insert(ifaceTable, "iface", iface), ovsdb.Insert(portTable, "port", port),
		ovsdb.Mutate(bridgeTable, ovsdb.Is("_uuid", bridge), "ports", "insert", ovsdb.SetOf(ovsdb.Named("port"))))
	if _, err := c.Apply(ctx, applyLimit, ops...); err != nil {
		return err
	}
	answers, err = c.Transact(ctx, ovsdb.Select(ifaceTable, ovsdb.Is("name", p.Link), "name", "ofport", "error"))
	if err == nil && len(answers[0].Rows) == 1 {
		err = failed(answers[0].Rows[0])
	}
	return err
}

func possessive(tag string) string {
	if _, _, text, ok := identity.ParseTag(tag); ok {
		return text + "'s"
	}
	return "no attachment's"
}

// Verify implements plan.Resource.
func (p Port) Verify(ctx context.Context, w *kernel.World) error {
	return p.DB.do(ctx, func(c *ovsdb.Conn) error {
		answers, err := c.Transact(ctx,
			ovsdb.Select(portTable, ovsdb.Is("name", p.Link), "_uuid", "tag", "trunks", "vlan_mode", "external_ids",
				"qos"),
			ovsdb.Select(ifaceTable, ovsdb.Is("name", p.Link), "name", "ofport", "error", "ingress_policing_rate",
				"ingress_policing_burst"),
			ovsdb.Select(qosTable, ovsdb.Includes("external_ids", ovsdb.Map{ownerKey: identity.Tag(p.Owner)}), "_uuid",
				"type",
				"other_config"))
		if err != nil {
			return err
		}
		if len(answers[0].Rows) == 0 {
			return spec.Missing("")
		}
		row := answers[0].Rows[0]
		bridges, err := c.Transact(ctx, ovsdb.Select(bridgeTable, ovsdb.Includes("ports", row.UUID("_uuid")), "name"))
		if err != nil {
			return err
		}
		var d resource.Drift
		var on []string
		for _, b := range bridges[0].Rows {
			on = append(on, b.Text("name"))
		}
		want(&d, "bridge", p.Bridge, strings.Join(on, ", "))
		want(&d, "external_ids:fairlead", identity.Tag(p.Owner), row.Map("external_ids")[ownerKey])
		p.VLANs.compare(row, &d)
		for _, i := range answers[1].Rows {
			if err := failed(i); err != nil {
				d = append(d, err)
			}
			p.Limits.compare(i, row, answers[2].Rows, &d)
		}
		return d.Err()
	})
}

// Traits implements resource.Describer.
func (p Port) Traits() resource.Traits {
	return resource.Traits{Network: p.network(), Fix: p.fix,
		On: resource.Iface{Where: resource.Host, Name: p.Link}}
}

// fix makes the rows anew. It makes none for a link that does not exist.
func (p Port) fix(ctx context.Context, w *kernel.World) (bool, error) {
	if _, err := rtnl.LinkByName(w.Host, p.Link); err != nil {
		return false, err
	}
	err := p.DB.do(ctx, func(c *ovsdb.Conn) error {
		if err := remove(ctx, c, []string{identity.Tag(p.Owner)}); err != nil { // a port's QoS outlives it
			return err
		}
		return retried(p.Bridge, func() error { return p.add(ctx, c) })
	})
	return err == nil, err
}

// Remove implements plan.Remover.
func (p Port) Remove(ctx context.Context, w *kernel.World) error {
	return PortKind(p.DB).Remove(ctx, w, plan.TagOf(p.Owner))
}

// removal deletes ports and QoS, which a port of another program may have come to use.
func removal(ports, qos []ovsdb.UUID) []ovsdb.Op {
	ops := []ovsdb.Op{ovsdb.Mutate(bridgeTable, nil, "ports", "delete", ovsdb.SetOf(ports...))}
	for _, q := range qos {
		ops = append(ops, ovsdb.Mutate(portTable, ovsdb.Includes("qos", q), "qos", "delete", q),
			ovsdb.Delete(qosTable, ovsdb.Is("_uuid", q)))
	}
	return ops
}

func (p Port) network() resource.Network {
	n := resource.Network{Segment: resource.Segment{Kind: "ovs bridge", Link: p.Bridge, VLAN: p.VLANs.String()}}
	if p.VLANs.Tag != 0 {
		n.Marks = append(n.Marks, fmt.Sprintf("VLAN %d", p.VLANs.Tag))
	}
	if len(p.VLANs.Trunks) > 0 {
		n.Marks = append(n.Marks, "trunk")
	}
	return n
}
