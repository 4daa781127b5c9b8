package ovs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/ovsdb"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Bridge is a bridge of Open vSwitch, with the port of its own that the host has on it.
type Bridge struct {
	DB       DB
	Name     string
	Datapath string // datapath_type: "system" is the kernel's, "netdev" ovs-vswitchd's own
}

func (b Bridge) String() string {
	return resource.Line("ovs bridge "+b.Name, resource.Opt("datapath_type", b.Datapath))
}

// Ensure implements plan.Resource. A bridge that is there is taken as it is, if its datapath is the one that is asked
// for.
func (b Bridge) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	err = b.DB.do(ctx, func(c *ovsdb.Conn) error {
		return retried(b.Name, func() error {
			row, err := b.find(ctx, c)
			if err != nil || row != nil {
				return errors.Join(err, b.compare(row))
			}
			err = b.make(ctx, c)
			changed = err == nil
			return err
		})
	})
	return changed, err
}

// Traits implements resource.Describer.
func (b Bridge) Traits() resource.Traits { return resource.Traits{Fix: b.Ensure} }

// find is the bridge's row, or nil.
func (b Bridge) find(ctx context.Context, c *ovsdb.Conn) (ovsdb.Row, error) {
	answers, err := c.Transact(ctx, ovsdb.Select(bridgeTable, ovsdb.Is("name", b.Name), "_uuid", "name",
		"datapath_type", "ports"))
	if err != nil || len(answers[0].Rows) == 0 {
		return nil, err
	}
	return answers[0].Rows[0], nil
}

// compare is nil where the bridge is none, or has the datapath that is asked for.
func (b Bridge) compare(row ovsdb.Row) error {
	if row == nil || b.Datapath == "" {
		return nil
	}
	if have := row.Text("datapath_type"); kindOfDatapath(have) != b.Datapath {
		return spec.Errorf(spec.CodeConfig, "datapath_type: %q: bridge %s has %q; want the same, or another bridge",
			b.Datapath, b.Name, kindOfDatapath(have))
	}
	return nil
}

// kindOfDatapath is a datapath_type as it is meant: nothing is the kernel's.
func kindOfDatapath(s string) string {
	if s == "" {
		return "system"
	}
	return s
}

// make makes the bridge, or takes it back.
func (b Bridge) make(ctx context.Context, c *ovsdb.Conn) error {
	_, err := c.Apply(ctx, applyLimit,
		ovsdb.Insert(ifaceTable, "iface", map[string]any{"name": b.Name, "type": "internal"}),
		ovsdb.Insert(portTable, "port", map[string]any{"name": b.Name, "interfaces": ovsdb.Named("iface")}),
		ovsdb.Insert(bridgeTable, "bridge",
			map[string]any{"name": b.Name, "datapath_type": b.Datapath, "ports": ovsdb.Named("port"),
				"external_ids": ovsdb.Map{ownerKey: "made by plugin ovs"}}),
		ovsdb.Mutate("Open_vSwitch", nil, "bridges", "insert", ovsdb.SetOf(ovsdb.Named("bridge"))))
	if ovsdb.Changed(err) {
		return err
	}
	if err == nil {
		err = b.works(ctx, c)
	}
	if err == nil {
		return nil
	}
	undo, stop := context.WithTimeout(context.WithoutCancel(ctx), applyLimit)
	defer stop()
	return errors.Join(err, b.DB.do(undo, func(c *ovsdb.Conn) error { // after a time-out the old one reads no more
		row, err := b.find(undo, c)
		if err != nil || row == nil {
			return err
		}
		_, err = c.Transact(undo, ovsdb.Mutate("Open_vSwitch", nil, "bridges", "delete",
			ovsdb.SetOf(row.UUID("_uuid"))))
		return err
	}))
}

// works is nil if ovs-vswitchd has made the bridge.
func (b Bridge) works(ctx context.Context, c *ovsdb.Conn) error {
	answers, err := c.Transact(ctx, ovsdb.Select(ifaceTable, ovsdb.Is("name", b.Name), "name", "ofport", "error"))
	if err != nil || len(answers[0].Rows) == 0 {
		return err
	}
	row := answers[0].Rows[0]
	if err := failed(row); row.Text("error") == "" && err != nil {
		return fmt.Errorf("%w; where the kernel lacks the module openvswitch, set datapath_type to \"netdev\"", err)
	}
	return failed(row)
}

// Verify implements plan.Resource.
func (b Bridge) Verify(ctx context.Context, w *kernel.World) error {
	return b.DB.do(ctx, func(c *ovsdb.Conn) error {
		row, err := b.find(ctx, c)
		if err != nil || row != nil {
			return errors.Join(err, b.compare(row))
		}
		answers, err := c.Transact(ctx, ovsdb.Select(bridgeTable, nil, "name"))
		if err != nil {
			return err
		}
		var names []string
		for _, r := range answers[0].Rows {
			names = append(names, r.Text("name"))
		}
		slices.Sort(names)
		there := "there is none"
		if len(names) > 0 {
			there = "there is " + strings.Join(names, ", ")
		}
		return spec.Errorf(spec.CodeConfig, "bridge: %q: no such bridge in Open vSwitch; %s", b.Name, there)
	})
}
