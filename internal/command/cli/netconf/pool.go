package netconf

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/spec"
)

// Pool is a network whose leases can be read.
type Pool struct {
	Network string
	Ledger  ipam.Ledger
	wrong   string // what is wrong with its configuration; then the ranges are unknown
}

// leftovers returns the ledger of a network that no file defines, in host-local's default directory.
func leftovers(network string) (ipam.Ledger, error) {
	conf, err := spec.ParseConf(fmt.Appendf(nil,
		`{"cniVersion":"1.1.0","name":%q,"type":"x","ipam":{"type":"host-local"}}`, network))
	if err != nil {
		return nil, err
	}
	for _, p := range plugin.All() {
		if l, err := p.Ledger(conf, true); l != nil || err != nil {
			return l, err
		}
	}
	return nil, errors.New("there is no plugin host-local")
}

// FindPool finds the ledger of a network. If no file defines the network, it has one if leases are left. If lax is
// set, a network with errors in its configuration has one too.
func FindPool(ctx context.Context, a *app.App, name string, lax bool) (Pool, error) {
	a.Orphans = true
	n, err := Find(a, name)
	if errors.Is(err, spec.ErrNotFound) {
		l, lerr := leftovers(name)
		if lerr != nil {
			return Pool{}, lerr
		}
		if names, lerr := l.Networks(ctx); lerr == nil && slices.Contains(names, name) {
			a.Note("warning: no file defines network %s, so its ranges are not known", name)
			return Pool{name, l, ""}, nil
		}
	}
	if err != nil {
		return Pool{}, err
	}
	return PoolOf(n.List, lax)
}

// PoolOf returns the pool of a list, from its first plugin whose leases can be read. If lax is set, errors in the
// configuration are allowed.
func PoolOf(l *spec.List, lax bool) (Pool, error) {
	var others []string
	for _, conf := range l.WrittenOut().Plugins {
		if conf.IPAMType == "" {
			continue
		}
		others = append(others, conf.IPAMType)
		for _, p := range plugin.All() {
			ledger, err := p.Ledger(conf, false)
			wrong := ""
			if err != nil && lax {
				wrong = fmt.Sprintf("network %s: %v; its ranges are not known", l.Name, err)
				ledger, err = p.Ledger(conf, true)
			}
			if err != nil {
				return Pool{}, fmt.Errorf("network %s: %w", l.Name, err)
			}
			if ledger != nil {
				return Pool{l.Name, ledger, wrong}, nil
			}
		}
	}
	if len(others) == 0 {
		return Pool{}, app.Fail(app.ExitFailure, "Its configuration has no ipam.", "network %s allocates no addresses",
			l.Name)
	}
	hint := "These commands are for host-local."
	if slices.Contains(others, "dhcp") {
		hint = "These commands are for host-local; `fairlead dhcp ls` lists the leases from DHCP servers."
	}
	return Pool{}, app.Fail(app.ExitFailure, hint,
		"network %s gets its addresses from %s, whose leases fairlead cannot read", l.Name,
		strings.Join(others, ", "))
}

// Pools returns the pool of one network, or of all that are configured or have leases left. For all networks, those
// without readable leases are skipped.
func Pools(ctx context.Context, a *app.App, name string) (all []Pool, problems []string, err error) {
	if name != "" {
		p, err := FindPool(ctx, a, name, true)
		if p.wrong != "" {
			problems = append(problems, p.wrong)
		}
		return []Pool{p}, problems, err
	}
	lists, bad := Lists(true)
	for _, err := range bad {
		problems = append(problems, err.Error())
	}
	var known []string
	for _, l := range lists {
		p, err := PoolOf(l, true)
		if p.wrong != "" {
			problems = append(problems, p.wrong)
		}
		if err == nil {
			all = append(all, p)
		} else if !errors.As(err, new(*app.Failure)) {
			problems = append(problems, err.Error())
		}
		known = append(known, l.Name)
	}
	left, err := leftovers("x")
	if err != nil {
		return nil, nil, err
	}
	names, err := left.Networks(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		if slices.Contains(known, name) {
			continue
		}
		p, err := FindPool(ctx, a, name, true)
		if err != nil && !errors.As(err, new(*app.Failure)) {
			problems = append(problems, err.Error())
		} else if err == nil {
			all = append(all, p)
		}
	}
	return all, problems, nil
}
