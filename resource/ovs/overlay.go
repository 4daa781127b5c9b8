package ovs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/ovsdb"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// An Overlay is a bridge's VXLAN tunnels to other hosts, one for each. The tunnels are shared by all ports that need
// them, which say so in external_ids, and go with the last of them.
//
// The bridges of all hosts may have tunnels to each other: what comes in by one tunnel goes out by no other
// (protected ports).
type Overlay struct {
	VNI     int
	Remotes []netip.Addr // the other hosts; of this host's own addresses there is no tunnel
	DstPort int          // UDP port; 0 is 4789
}

// mark is what a port's external_ids say of the overlay that it needs: "bridge/VNI/port remote remote". Empty is
// none.
func (o Overlay) mark(bridge string) string {
	if len(o.Remotes) == 0 {
		return ""
	}
	s := []string{o.on(bridge)}
	for _, r := range o.Remotes {
		s = append(s, r.String())
	}
	return strings.Join(s, " ")
}

// on is the overlay of a bridge, whatever hosts it reaches.
func (o Overlay) on(bridge string) string {
	return fmt.Sprintf("%s/%d/%d", bridge, o.VNI, o.dstPort())
}

func (o Overlay) dstPort() int {
	if o.DstPort == 0 {
		return 4789
	}
	return o.DstPort
}

// Tunnels are the ports of a bridge that an Overlay needs. Removing a Port removes those that are needed no more.
type Tunnels struct {
	DB     DB
	Bridge string
	Overlay
	VLANs VLANs // of what goes through, those of the container's port
}

func (t Tunnels) String() string {
	s := make([]string, len(t.Remotes))
	for i, r := range t.Remotes {
		s[i] = r.String()
	}
	return resource.Line("ovs tunnels bridge", t.Bridge, "type vxlan key", strconv.Itoa(t.VNI),
		resource.Opt("dst_port", t.DstPort),
		"remote_ip", strings.Join(s, ","), t.VLANs.String())
}

func (t Tunnels) name(remote netip.Addr) string {
	return "vx-" + identity.ShortHash(t.on(t.Bridge)+" "+remote.String())
}

// away are the remotes that are not this host.
func (t Tunnels) away(w *kernel.World) ([]netip.Addr, error) {
	addrs, err := rtnl.AllAddrs(w.Host)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(t.Remotes), func(r netip.Addr) bool {
		return rtnl.HasAddr(addrs, r)
	}), nil
}

// there are the tunnels of bridges, and the bridge's own row.
func (t Tunnels) there(ctx context.Context, c *ovsdb.Conn) (bridge ovsdb.Row, tunnels []ovsdb.Row, err error) {
	answers, err := c.Transact(ctx,
		ovsdb.Select(bridgeTable, ovsdb.Is("name", t.Bridge), "_uuid", "ports"),
		ovsdb.Select(portTable, ovsdb.Is("protected", true), "_uuid", "name", "tag", "trunks", "vlan_mode",
			"external_ids"))
	if err != nil {
		return nil, nil, err
	}
	if len(answers[0].Rows) == 0 {
		return nil, nil, fmt.Errorf("bridge %s is missing", t.Bridge)
	}
	return answers[0].Rows[0], answers[1].Rows, nil
}

// Ensure implements plan.Resource.
func (t Tunnels) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	away, err := t.away(w)
	if err != nil {
		return false, err
	}
	err = t.DB.do(ctx, func(c *ovsdb.Conn) error {
		return retried(t.Bridge, func() error {
			bridge, rows, err := t.there(ctx, c)
			if err != nil {
				return err
			}
			if err := t.refuseJoin(rows); err != nil {
				return err
			}
			missing := slices.DeleteFunc(slices.Clone(away), func(r netip.Addr) bool {
				return slices.ContainsFunc(rows, func(row ovsdb.Row) bool { return row.Text("name") == t.name(r) })
			})
			if len(missing) == 0 {
				return nil
			}
			err = t.make(ctx, c, bridge.UUID("_uuid"), missing)
			changed = err == nil
			return err
		})
	})
	return changed, err
}

// Traits implements resource.Describer. Repair makes the tunnels that are missing.
func (t Tunnels) Traits() resource.Traits {
	is := resource.Traits{Fix: t.Ensure}
	if t.VNI != 0 {
		is.Network.Marks = []string{fmt.Sprintf("VXLAN %d", t.VNI)}
	}
	return is
}

// refuseJoin refuses to join two overlays, which a bridge does whose VLANs do not keep them apart.
func (t Tunnels) refuseJoin(rows []ovsdb.Row) error {
	for _, row := range rows {
		on := row.Map("external_ids")[tunnelKey]
		bridge, vni, _ := strings.Cut(on, "/")
		if bridge != t.Bridge || on == t.on(t.Bridge) {
			continue
		}
		var d resource.Drift
		VLANs.compare(t.VLANs, row, &d)
		if tag, _ := row.Int("tag"); len(d) == 0 && tag == t.VLANs.Tag &&
			len(row.Ints("trunks")) == len(t.VLANs.Trunks) {
			vni, _, _ = strings.Cut(vni, "/")
			return spec.Errorf(spec.CodeConfig,
				"vxlanID: %d: bridge %s carries VXLAN %s in the same VLAN, "+
					"and would join the two: set another vlan, or another bridge", t.VNI, t.Bridge, vni)
		}
	}
	return nil
}

// make adds tunnels, or takes them back.
func (t Tunnels) make(ctx context.Context, c *ovsdb.Conn, bridge ovsdb.UUID, remotes []netip.Addr) error {
	var ops []ovsdb.Op
	var ports []ovsdb.Named
	for i, r := range remotes {
		iface, port := ovsdb.Named(fmt.Sprint("iface", i)), ovsdb.Named(fmt.Sprint("port", i))
		ports = append(ports, port)
		row := map[string]any{"name": t.name(r), "interfaces": iface, "protected": true,
			"external_ids": ovsdb.Map{tunnelKey: t.on(t.Bridge), remoteKey: r.String()}}
		t.VLANs.row(row)
		ops = append(ops, ovsdb.Insert(ifaceTable, string(iface), map[string]any{"name": t.name(r), "type": "vxlan",
			"options": t.options(r)}),
			ovsdb.Insert(portTable, string(port), row))
	}
	ops = append(ops, ovsdb.Wait(bridgeTable, ovsdb.Is("_uuid", bridge), map[string]any{"name": t.Bridge}),
		ovsdb.Mutate(bridgeTable, ovsdb.Is("_uuid", bridge), "ports", "insert", ovsdb.SetOf(ports...)))
	_, err := c.Apply(ctx, applyLimit, ops...)
	if ovsdb.Changed(err) {
		return err
	}
	if err == nil {
		err = t.work(ctx, c, remotes)
	}
	if err == nil {
		return nil
	}
	undo, stop := context.WithTimeout(context.WithoutCancel(ctx), applyLimit)
	defer stop()
	return errors.Join(err, t.DB.do(undo, func(c *ovsdb.Conn) error { // after a time-out the old one reads no more
		var uuids []ovsdb.UUID
		_, rows, err := t.there(undo, c)
		for _, row := range rows {
			if slices.ContainsFunc(remotes, func(r netip.Addr) bool { return t.name(r) == row.Text("name") }) {
				uuids = append(uuids, row.UUID("_uuid"))
			}
		}
		if err == nil {
			_, err = c.Transact(undo, removal(uuids, nil)...)
		}
		return err
	}))
}

func (t Tunnels) options(remote netip.Addr) ovsdb.Map {
	m := ovsdb.Map{"key": strconv.Itoa(t.VNI), "remote_ip": remote.String()}
	if t.DstPort != 0 {
		m["dst_port"] = strconv.Itoa(t.DstPort)
	}
	return m
}

// work is nil where ovs-vswitchd has made the tunnels.
func (t Tunnels) work(ctx context.Context, c *ovsdb.Conn, remotes []netip.Addr) error {
	var ops []ovsdb.Op
	for _, r := range remotes {
		ops = append(ops, ovsdb.Select(ifaceTable, ovsdb.Is("name", t.name(r)), "name", "ofport", "error", "options",
			"type"))
	}
	answers, err := c.Transact(ctx, ops...)
	if err != nil {
		return err
	}
	var errs []error
	for i, a := range answers {
		if len(a.Rows) == 0 {
			errs = append(errs, spec.Missing(fmt.Sprintf("tunnel to %v", remotes[i])))
			continue
		}
		if err := failed(a.Rows[0]); err != nil {
			errs = append(errs, fmt.Errorf("tunnel to %v: %w", remotes[i], err))
		}
		var d resource.Drift
		for k, v := range t.options(remotes[i]) {
			want(&d, "tunnel to "+remotes[i].String()+": options:"+k, v, a.Rows[0].Map("options")[k])
		}
		errs = append(errs, d.Err())
	}
	return errors.Join(errs...)
}

// Verify implements plan.Resource.
func (t Tunnels) Verify(ctx context.Context, w *kernel.World) error {
	away, err := t.away(w)
	if err != nil || len(away) == 0 {
		return err
	}
	return t.DB.do(ctx, func(c *ovsdb.Conn) error {
		_, rows, err := t.there(ctx, c)
		if err != nil {
			return err
		}
		var d resource.Drift
		for _, row := range rows {
			if row.Map("external_ids")[tunnelKey] == t.on(t.Bridge) {
				t.VLANs.compare(row, &d)
			}
		}
		return errors.Join(d.Err(), t.work(ctx, c, away))
	})
}
