package ovs

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/ovsdb"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
)

// PortKind is the Kind of Port, and of the tunnels that ports need. The rows say whose they are; where they are is
// the configuration's word, the zero value being the usual place, or what the attachment has recorded. A server that
// is not there is an error where an attachment has recorded rows in it: they would be there again with the server.
func PortKind(db DB) plan.Kind {
	if db == "" {
		db = DefaultDB
	}
	return portKind{db}
}

type portKind struct{ db DB }

// Name implements plan.Kind.
func (portKind) Name() string { return "Open vSwitch port" }

// rows are what Owners has found of an attachment: in which database, and its mark there.
type rows struct {
	db  DB
	tag string
}

// Owners implements plan.Kind.
func (k portKind) Owners(ctx context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
	recorded, err := w.Store.Records(resource.SwitchRecord, network)
	errs := []error{err}
	dbs := map[DB]bool{k.db: false} // whether an attachment has recorded rows there
	for hash, raw := range recorded {
		if db := recordedDB(raw); db != "" {
			dbs[db] = true
			tags = append(tags, plan.Tag{Network: network, Hash: hash, Found: rows{db: db}})
		}
	}
	for db, needed := range dbs {
		err := db.do(ctx, func(c *ovsdb.Conn) error {
			answers, err := c.Transact(ctx, ovsdb.Select(portTable, nil, "external_ids"),
				ovsdb.Select(qosTable, nil, "external_ids"))
			if err != nil {
				return err
			}
			for _, row := range slices.Concat(answers[0].Rows, answers[1].Rows) {
				mark := row.Map("external_ids")[ownerKey]
				net, owner, _, ok := identity.ParseTag(mark)
				if ok && net == identity.NetworkHash(network) {
					tags = append(tags, plan.Tag{Network: network, Hash: owner, Found: rows{db, mark}})
				}
			}
			return nil
		})
		if needed || !errors.Is(err, ovsdb.ErrUnavailable) {
			errs = append(errs, err)
		}
	}
	return tags, errors.Join(errs...)
}

// Remove implements plan.Kind.
func (k portKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	type owned struct {
		plan.Tag
		needed bool
		mark   string
	}
	byDB := map[DB][]owned{}
	for _, t := range tags {
		found, _ := t.Found.(rows)
		o := owned{Tag: t, mark: found.tag}
		if t.Known() {
			o.mark = identity.Tag(t.Owner)
		}
		db := found.db
		raw, err := w.Store.Raw(resource.SwitchRecord, t.Network, t.Hash)
		if err != nil {
			return err
		}
		if o.needed = recordedDB(raw) != ""; db == "" && o.needed {
			db = recordedDB(raw)
		}
		if db == "" {
			db = k.db
		}
		byDB[db] = append(byDB[db], o)
	}
	var errs []error
	for _, db := range slices.Sorted(maps.Keys(byDB)) {
		var marks []string
		needed := false
		for _, o := range byDB[db] {
			needed = needed || o.needed
			if o.mark != "" {
				marks = append(marks, o.mark)
			}
		}
		err := db.do(ctx, func(c *ovsdb.Conn) error { return remove(ctx, c, marks) })
		if errors.Is(err, ovsdb.ErrUnavailable) && !needed {
			err = nil
		}
		if errs = append(errs, err); err != nil {
			continue
		}
		for _, o := range byDB[db] {
			errs = append(errs, w.Store.DeleteOf(resource.SwitchRecord, o.Network, o.Hash))
		}
	}
	return errors.Join(errs...)
}

// remove deletes the rows that have one of the marks, and then the tunnels that are needed no more.
func remove(ctx context.Context, c *ovsdb.Conn, marks []string) error {
	slices.Sort(marks)
	marks = slices.Compact(marks)
	if len(marks) == 0 {
		return nil
	}
	var ops []ovsdb.Op
	for _, m := range marks {
		ops = append(ops, ovsdb.Select(portTable, ovsdb.Includes("external_ids", ovsdb.Map{ownerKey: m}), "_uuid",
			"external_ids"),
			ovsdb.Select(qosTable, ovsdb.Includes("external_ids", ovsdb.Map{ownerKey: m}), "_uuid"))
	}
	answers, err := c.Transact(ctx, ops...)
	if err != nil {
		return err
	}
	var ports, qos []ovsdb.UUID
	overlays := map[string]bool{}
	for i, a := range answers {
		for _, row := range a.Rows {
			if i%2 == 1 {
				qos = append(qos, row.UUID("_uuid"))
				continue
			}
			ports = append(ports, row.UUID("_uuid"))
			if o := row.Map("external_ids")[overlayKey]; o != "" {
				overlays[o] = true
			}
		}
	}
	if _, err := c.Transact(ctx, removal(ports, qos)...); err != nil {
		return err
	}
	for _, overlay := range slices.Sorted(maps.Keys(overlays)) {
		if err := sweep(ctx, c, overlay); err != nil {
			return err
		}
	}
	return nil
}

// sweep deletes the tunnels of an overlay, as a port's mark names it, that no port needs any more.
func sweep(ctx context.Context, c *ovsdb.Conn, overlay string) error {
	answers, err := c.Transact(ctx, ovsdb.Count(portTable,
		ovsdb.Includes("external_ids", ovsdb.Map{overlayKey: overlay})))
	if err != nil || answers[0].Count > 0 { // another port of the same configuration, which is the rule
		return err
	}
	on, _, _ := strings.Cut(overlay, " ")
	bridge, _, _ := strings.Cut(on, "/")
	return retried(bridge, func() error {
		answers, err := c.Transact(ctx,
			ovsdb.Select(bridgeTable, ovsdb.Is("name", bridge), "_uuid", "ports"),
			ovsdb.Select(portTable, nil, "_uuid", "external_ids"))
		if err != nil || len(answers[0].Rows) == 0 {
			return err
		}
		needed := map[string]bool{}
		for _, row := range answers[1].Rows {
			if of, remotes, _ := strings.Cut(row.Map("external_ids")[overlayKey], " "); of == on {
				for _, r := range strings.Fields(remotes) {
					needed[r] = true
				}
			}
		}
		var idle []ovsdb.UUID
		for _, row := range answers[1].Rows {
			if ids := row.Map("external_ids"); ids[tunnelKey] == on && !needed[ids[remoteKey]] {
				idle = append(idle, row.UUID("_uuid"))
			}
		}
		if len(idle) == 0 {
			return nil
		}
		// An ADD that needs them adds its port before it looks at them: then the ports are others.
		b := answers[0].Rows[0]
		wait := ovsdb.Wait(bridgeTable, ovsdb.Is("_uuid", b.UUID("_uuid")),
			map[string]any{"ports": ovsdb.SetOf(b.UUIDs("ports")...)})
		_, err = c.Transact(ctx, append([]ovsdb.Op{wait}, removal(idle, nil)...)...)
		return err
	})
}

// recordedDB is the database of a record; empty where there is none, or a torn one of a call that was killed before
// it did anything.
func recordedDB(raw json.RawMessage) DB {
	var r record
	if json.Unmarshal(raw, &r) != nil {
		return ""
	}
	return r.DB
}
