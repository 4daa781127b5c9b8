// Package ovs holds what a plan can ask of Open vSwitch: a bridge, a port of it, its tunnels to other hosts. All of
// it is rows of Open vSwitch's database, which carry the owner's mark in external_ids.
package ovs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fairlead-cni/fairlead/internal/ovsdb"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A DB is the path of the Unix socket of ovsdb-server.
type DB string

// DefaultDB is where the packages of the distributions have it.
const DefaultDB DB = "/var/run/openvswitch/db.sock"

// Keys of external_ids. Those without the prefix are what ovs-cni writes, for people and programs that look for them.
const (
	// of a port, its QoS and a bridge: identity.Tag of the attachment, or of the network
	ownerKey    = "fairlead"
	overlayKey  = "fairlead-overlay" // of a port: the overlay that it needs, see Overlay.mark
	tunnelKey   = "fairlead-tunnel"  // of a tunnel's port: bridge/VNI
	remoteKey   = "fairlead-remote"  // of a tunnel's port: the other host
	contNetns   = "contNetns"        // of a port: path of the container's namespace
	contIface   = "contIface"        // of a port: the container's interface
	portTable   = "Port"
	bridgeTable = "Bridge"
	ifaceTable  = "Interface"
	qosTable    = "QoS"
)

// applyLimit is how long ADD waits until ovs-vswitchd has acted on a change. It is milliseconds as a rule, and
// seconds where it starts or has thousands of ports to look at, or the host is busy.
const applyLimit = time.Minute

// starts is the hint where a daemon does not run.
const starts = "The plugin ovs starts no daemon: systemctl enable --now openvswitch-switch (Debian, Ubuntu) or " +
	"openvswitch."

// do calls fn with a connection.
func (db DB) do(ctx context.Context, fn func(*ovsdb.Conn) error) error {
	c, err := ovsdb.Dial(ctx, string(db))
	if err != nil {
		return db.tryAgain(err)
	}
	defer c.Close()
	return db.tryAgain(fn(c))
}

// tryAgain gives err the code of what another attempt may fix, where it is that.
func (db DB) tryAgain(err error) error {
	switch {
	case errors.Is(err, ovsdb.ErrUnavailable):
		return spec.Errorf(spec.CodeTryAgain,
			"Open vSwitch: %s: %w: start ovsdb-server, or name its socket in socket_file", string(db),
			err).WithHint(starts)
	case errors.Is(err, ovsdb.ErrNotApplied):
		return spec.Errorf(spec.CodeTryAgain, "Open vSwitch: %w: see systemctl status ovs-vswitchd, and its log", err)
	}
	return err
}

// retried calls fn, which reads, composes a transaction and does it, again where another client has changed what it
// rests on.
func retried(bridge string, fn func() error) (err error) {
	for range 20 {
		if err = fn(); !ovsdb.Changed(err) {
			return err
		}
	}
	return spec.Errorf(spec.CodeTryAgain, "Open vSwitch: other programs keep changing bridge %s: %w", bridge, err)
}

// A Service is Open vSwitch's two daemons. It is another program's.
type Service struct{ DB DB }

func (s Service) String() string { return "Open vSwitch at " + string(s.DB) }

// Verify implements plan.Requirement.
//
// ovs-vswitchd holds a lock of the database. To ask for that would tell whether it runs, but a process that has it when
// ovs-vswitchd connects again makes it take all bridges down. So its control socket is asked, which is in the same
// directory wherever Open vSwitch's own scripts start it; and where there is none, it has to answer a change that
// changes nothing.
func (s Service) Verify(ctx context.Context, w *kernel.World) error {
	return s.DB.do(ctx, func(c *ovsdb.Conn) error {
		// The server answers, which a connection to a server that is stopped does not prove.
		if _, err := c.Transact(ctx, ovsdb.Select("Open_vSwitch", nil, "cur_cfg")); err != nil {
			return err
		}
		sockets, err := filepath.Glob(filepath.Join(filepath.Dir(string(s.DB)), "ovs-vswitchd.*.ctl"))
		if err != nil {
			return err
		}
		for _, path := range sockets {
			// of a daemon that was killed the socket stays, and refuses
			if control, err := ovsdb.Dial(ctx, path); err == nil {
				control.Close()
				return nil
			}
		}
		_, err = c.Apply(ctx, time.Second)
		if errors.Is(err, ovsdb.ErrNotApplied) {
			return spec.Errorf(spec.CodeTryAgain,
				"Open vSwitch: ovs-vswitchd does not run: start it (systemctl start ovs-vswitchd)").WithHint(starts)
		}
		return err
	})
}

// want adds to d a column in which a row differs from the description.
func want(d *resource.Drift, column string, want, got any) {
	d.Want(column, orNone(fmt.Sprint(want)), orNone(fmt.Sprint(got)))
}

func orNone(s string) string {
	if s == "" || s == "0" {
		return "none"
	}
	return s
}

// failed is what ovs-vswitchd says of an interface that it could not make or open; nil where it has.
func failed(row ovsdb.Row) error {
	if why := row.Text("error"); why != "" {
		return fmt.Errorf("interface %s: ovs-vswitchd says: %s", row.Text("name"), why)
	}
	if port, ok := row.Int("ofport"); !ok || port < 0 {
		return fmt.Errorf("interface %s has no OpenFlow port: ovs-vswitchd could not add it, and its log says why",
			row.Text("name"))
	}
	return nil
}
