package resource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

const firewalldName = "org.fedoraproject.FirewallD1"

// firewalldRuns reports whether firewalld is on the system's bus.
func firewalldRuns(ctx context.Context) bool {
	err := withFirewalld(ctx, func(zones) error { return nil })
	if err != nil && !errors.Is(err, kernel.ErrNoBus) && !errors.Is(err, errNoFirewalld) {
		slog.Warn("firewalld has rules here and cannot be asked", "error", err)
	}
	return err == nil
}

var errNoFirewalld = errors.New("firewalld does not run")

// zones are firewalld's, which packets belong to by their source address among others.
type zones struct{ *kernel.Bus }

func withFirewalld(ctx context.Context, fn func(zones) error) error {
	bus, err := kernel.SystemBus(ctx)
	if err != nil {
		return fmt.Errorf("firewalld: %w", err)
	}
	defer bus.Close()
	if owned, err := bus.Owned(firewalldName); err != nil || !owned {
		return errors.Join(err, errNoFirewalld)
	}
	return fn(zones{bus})
}

// ask calls a method of a zone about an address.
func (z zones) ask(method string, args ...string) (any, error) {
	v, err := z.Call(firewalldName, "/org/fedoraproject/FirewallD1", firewalldName+".zone", method, args...)
	if err != nil {
		err = fmt.Errorf("firewalld: %s %s: %w", method, strings.Join(args, " "), err)
	}
	return v, err
}

func source(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

func (z zones) has(zone string, a netip.Addr) (bool, error) {
	v, err := z.ask("querySource", zone, source(a))
	there, _ := v.(bool)
	return there, err
}

// elsewhere is the zone that an address is in; empty: none.
func (z zones) elsewhere(a netip.Addr) string {
	v, _ := z.ask("getZoneOfSource", source(a))
	name, _ := v.(string)
	return name
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
			if other := z.elsewhere(a); other != "" {
				return spec.Errorf(spec.CodeConfig, "firewalldZone: %q: %v is in zone %q of firewalld already; take it out there (firewall-cmd --zone=%s --remove-source=%s), or set that zone", f.Zone, a, other, other, source(a))
			}
			if _, err := z.ask("addSource", f.Zone, source(a)); err != nil {
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
	var said *kernel.BusError
	if errors.As(err, &said) && strings.Contains(said.Text, "INVALID_ZONE") {
		return spec.Errorf(spec.CodeConfig, "firewalldZone: %q: firewalld has no such zone (firewall-cmd --get-zones lists them)", f.Zone)
	}
	return err
}

func unavailableFirewalld(err error) error {
	if errors.Is(err, errNoFirewalld) || errors.Is(err, kernel.ErrNoBus) {
		return spec.Errorf(spec.CodeUnavailable, "backend: \"firewalld\": %w", err)
	}
	return err
}

// inZone is Verify for firewalld.
func (f Forward) inZone(ctx context.Context, _ *kernel.World) error {
	var d drift
	err := withFirewalld(ctx, func(z zones) error {
		for _, a := range f.Addrs {
			there, err := z.has(f.Zone, a)
			if err != nil {
				return f.zoneError(err)
			}
			if !there {
				d.add(fmt.Errorf("firewalld zone %s: source %s is missing", f.Zone, source(a)))
			}
		}
		return nil
	})
	return errors.Join(err, d.err())
}

// leaveZone takes the addresses out of the zone that ADD put them into. Where firewalld has gone they are out of it.
// The address may be somebody else's by now, who is in others, the remembered of other attachments.
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
			if there, err := z.has(known.Zone, a); err != nil || !there {
				continue // the zone itself may be gone
			}
			_, err := z.ask("removeSource", known.Zone, source(a))
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	if errors.Is(err, errNoFirewalld) || errors.Is(err, kernel.ErrNoBus) {
		return nil
	}
	return err
}

func firewalldAnswers(ctx context.Context) error {
	return unavailableFirewalld(withFirewalld(ctx, func(zones) error { return nil }))
}
