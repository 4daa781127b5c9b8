package forward

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

const firewalldName = "org.fedoraproject.FirewallD1"

// firewalldTimeout bounds a conversation with firewalld, which answers nothing while it reloads: for seconds, or on a
// busy machine for many.
const firewalldTimeout = 45 * time.Second

// Codes of firewalld's errors, with which their texts begin.
const (
	invalidZone   = "INVALID_ZONE"
	unknownSource = "UNKNOWN_SOURCE"
)

// errNoFirewalld means that firewalld does not run, or that there is no system bus that it could be on.
var errNoFirewalld = errors.New("firewalld does not run")

// firewalldRuns reports whether firewalld is on the system's bus.
func firewalldRuns(ctx context.Context) bool {
	err := withFirewalld(ctx, func(zones) error { return nil })
	if err != nil && !errors.Is(err, errNoFirewalld) {
		slog.Warn("firewalld has rules here and cannot be asked", "error", err)
	}
	return err == nil
}

// awaitFirewalld returns when a firewalld that is on the bus has loaded its rules. It takes its name before it does,
// so systemd calls it started, and answers no question until it has.
func awaitFirewalld(ctx context.Context) {
	err := withFirewalld(ctx, func(z zones) error { return z.ask(nil, "getZones") })
	if err != nil && !errors.Is(err, errNoFirewalld) {
		slog.Warn("firewalld does not answer, and its rules may come after ours", "error", err)
	}
}

// zones are firewalld's. A packet belongs to a zone by its source address, among others.
type zones struct {
	ctx context.Context
	dbus.BusObject
}

// systemBus reports whether there may be a bus of the system: the library says that there is none by an error that is
// like any other.
func systemBus() bool {
	if os.Getenv("DBUS_SYSTEM_BUS_ADDRESS") != "" {
		return true
	}
	return slices.ContainsFunc([]string{"/run/dbus/system_bus_socket", "/var/run/dbus/system_bus_socket"},
		func(path string) bool { _, err := os.Stat(path); return !errors.Is(err, fs.ErrNotExist) })
}

// withFirewalld calls fn with a connection to the firewalld on the system's bus (DBUS_SYSTEM_BUS_ADDRESS).
func withFirewalld(ctx context.Context, fn func(zones) error) error {
	if !systemBus() {
		return fmt.Errorf("%w: no D-Bus", errNoFirewalld)
	}
	ctx, cancel := context.WithTimeout(ctx, firewalldTimeout)
	defer cancel()
	// EXTERNAL alone: other methods read a cookie in the home directory.
	user := dbus.AuthExternal(strconv.Itoa(os.Geteuid()))
	bus, err := dbus.ConnectSystemBus(dbus.WithContext(ctx), dbus.WithAuth(user))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%w: no D-Bus: %w", errNoFirewalld, err)
	}
	if err != nil {
		return fmt.Errorf("firewalld: D-Bus: %w", errors.Join(err, ctx.Err()))
	}
	defer bus.Close()
	owned := false
	if err := bus.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.NameHasOwner", 0,
		firewalldName).Store(&owned); err != nil {
		return fmt.Errorf("firewalld: D-Bus: %w", err)
	}
	if !owned {
		return errNoFirewalld
	}
	return fn(zones{ctx, bus.Object(firewalldName, "/org/fedoraproject/FirewallD1")})
}

// ask calls a method of firewalld's zone interface and stores the answer in into, where that is not nil.
func (z zones) ask(into any, method string, args ...string) error {
	values := make([]any, len(args))
	for i, a := range args {
		values[i] = a
	}
	call := z.CallWithContext(z.ctx, firewalldName+".zone."+method, dbus.FlagNoAutoStart, values...)
	err := call.Err
	if into != nil {
		err = call.Store(into)
	}
	if err != nil {
		return fmt.Errorf("firewalld: %s %s: %w", method, strings.Join(args, " "), err)
	}
	return nil
}

func source(a netip.Addr) string { return filter.Single(a).String() }

func (z zones) has(zone string, a netip.Addr) (there bool, err error) {
	err = z.ask(&there, "querySource", zone, source(a))
	return there, err
}

// enter puts the addresses into the zone.
func (f Forward) enter(ctx context.Context, w *kernel.World) (changed bool, err error) {
	err = withFirewalld(ctx, func(z zones) error {
		for _, a := range f.Addrs {
			there, err := z.has(f.Zone, a)
			if err != nil {
				return f.zoneError(err)
			}
			if there {
				continue
			}
			other := "" // zone that it is in
			if err := z.ask(&other, "getZoneOfSource", source(a)); err != nil {
				return err
			}
			if other != "" {
				return spec.Errorf(spec.CodeConfig,
					"firewalldZone: %q: %v is in zone %q of firewalld already; take it out there (firewall-cmd "+
						"--zone=%s --remove-source=%s), or set that zone", f.Zone, a, other, other, source(a))
			}
			if err := z.ask(nil, "addSource", f.Zone, source(a)); err != nil {
				return f.zoneError(err)
			}
			changed = true
		}
		return nil
	})
	return changed, unavailableFirewalld(err)
}

// zoneError names the key where the zone does not exist.
func (f Forward) zoneError(err error) error {
	if answered(err, invalidZone) {
		return spec.Errorf(spec.CodeConfig,
			"firewalldZone: %q: firewalld has no such zone (firewall-cmd --get-zones lists them)", f.Zone)
	}
	return err
}

// answered reports whether firewalld answered with an error of that code.
func answered(err error, code string) bool {
	var said dbus.Error
	return errors.As(err, &said) && strings.HasPrefix(said.Error(), code)
}

func unavailableFirewalld(err error) error {
	if errors.Is(err, errNoFirewalld) {
		return spec.Errorf(spec.CodeUnavailable, "backend: \"firewalld\": %w", err)
	}
	return err
}

// inZone is Verify for firewalld.
func (f Forward) inZone(ctx context.Context, _ *kernel.World) error {
	var d resource.Drift
	err := withFirewalld(ctx, func(z zones) error {
		for _, a := range f.Addrs {
			there, err := z.has(f.Zone, a)
			if err != nil {
				return f.zoneError(err)
			}
			if !there {
				d.Add(spec.Missing(fmt.Sprintf("firewalld zone %s: source %s", f.Zone, source(a))))
			}
		}
		return nil
	})
	return errors.Join(err, d.Err())
}

// leaveZone takes the addresses out of the zone that ADD put them into. Where firewalld has gone they are out of it.
// The address may be another container's by now, who is in others, the remembered of other attachments.
func leaveZone(ctx context.Context, known forwarded, others func(netip.Addr) bool) error {
	if known.Zone == "" {
		return nil
	}
	err := withFirewalld(ctx, func(z zones) error {
		var errs []error
		for _, a := range known.Addrs {
			if others(a) {
				continue
			}
			there, err := z.has(known.Zone, a)
			if there {
				err = z.ask(nil, "removeSource", known.Zone, source(a))
			}
			// The zone may be gone, and its sources with it. A reload may have taken the source since the question.
			if !answered(err, invalidZone) && !answered(err, unknownSource) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
	if errors.Is(err, errNoFirewalld) {
		return nil
	}
	return err
}

func firewalldAnswers(ctx context.Context) error {
	return unavailableFirewalld(withFirewalld(ctx, func(zones) error { return nil }))
}
