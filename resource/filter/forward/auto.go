package forward

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/foreign"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A forwardBackend is where accepts count on this host.
type forwardBackend struct {
	Tables    []filterTable
	Firewalld bool
	Unlifted  foreign.Found // what others have at the forward hook that no accept of ours goes into
}

// A filterTable is the table filter of a variant of iptables.
type filterTable struct {
	Variant xtables.Variant
	V6      bool
}

// tables are the tables of iptables that addresses need an accept in.
func (b forwardBackend) tables(w *kernel.World, addrs ...netip.Addr) (all []*xtables.Table) {
	for _, t := range b.Tables {
		if len(OfIP(addrs, t.V6)) > 0 {
			all = append(all, xtables.NewTable(w.Host, t.Variant, t.V6, "filter"))
		}
	}
	return all
}

const backendRecord = "forward-backend"

// cached is a backend that was found, and what the host's rules looked like then.
type cached struct {
	Fingerprint string
	Backend     forwardBackend
}

// backend is where the accepts belong: what was found before, where the rules have not changed since.
func (f Forward) backend(ctx context.Context, w *kernel.World) (forwardBackend, error) {
	if f.Backend != Auto {
		return f.decide(ctx, w)
	}
	print, err := foreign.Fingerprint(w.Host, ourTables()...)
	if err != nil {
		return forwardBackend{}, err
	}
	var c cached
	if ok, err := w.Store.Get(backendRecord, spec.Owner{}, &c); err != nil {
		return forwardBackend{}, err
	} else if ok && c.Fingerprint == print {
		return c.Backend, nil
	}
	found, err := f.decide(ctx, w)
	if err != nil {
		return forwardBackend{}, err
	}
	err = w.Store.Put(backendRecord, spec.Owner{}, cached{print, found})
	if errors.Is(err, fs.ErrNotExist) { // another call remembers the same at this moment
		err = nil
	}
	return found, err
}

// ourTables are those that are none of others'.
func ourTables() []string {
	return []string{filter.InetNamed().String(), filter.BridgeNamed().String()}
}

// decide looks at who has a say in forwarding.
func (f Forward) decide(ctx context.Context, w *kernel.World) (b forwardBackend, err error) {
	others, err := foreign.AtForward(w.Host, ourTables()...)
	if err != nil {
		return b, err
	}
	switch f.Backend {
	case Firewalld:
		b.Firewalld = true
	case IPTables:
		b.Tables, err = preferred(w, f.Addrs)
	case Auto:
		b = auto(ctx, w, others)
	}
	b.Unlifted.Chains = slices.DeleteFunc(others.Chains, func(c nft.BaseChain) bool {
		t, ok := filterOf(c)
		return ok && slices.Contains(b.Tables, t) || b.Firewalld && c.Table == "firewalld"
	})
	b.Unlifted.Legacy = slices.DeleteFunc(others.Legacy, func(family string) bool {
		return slices.Contains(b.Tables, filterTable{xtables.Legacy, family == "ip6"})
	})
	return b, err
}

// filterOf is the table that a chain is FORWARD of, if it is that of iptables-nft.
func filterOf(c nft.BaseChain) (t filterTable, ok bool) {
	ok = c.Table == "filter" && c.Name == "FORWARD" && c.Family != unix.NFPROTO_INET
	return filterTable{xtables.NFT, c.Family == unix.NFPROTO_IPV6}, ok
}

// preferred are the tables of the variants of iptables that this host uses.
func preferred(w *kernel.World, addrs []netip.Addr) (tables []filterTable, err error) {
	for _, v6 := range []bool{false, true} {
		if len(OfIP(addrs, v6)) == 0 {
			continue
		}
		t, err := xtables.TableOf(w.Host, v6, "filter")
		if err != nil {
			return nil, err
		}
		tables = append(tables, filterTable{t.Variant, v6})
	}
	return tables, nil
}

// auto takes what others have rules in.
func auto(ctx context.Context, w *kernel.World, others foreign.Found) (b forwardBackend) {
	var there []filterTable
	for _, c := range others.Chains {
		if t, ok := filterOf(c); ok {
			there = append(there, t)
		} else if c.Table == "firewalld" {
			b.Firewalld = b.Firewalld || firewalldRuns(ctx)
		}
	}
	for _, family := range others.Legacy {
		there = append(there, filterTable{xtables.Legacy, family == "ip6"})
	}
	for _, t := range there {
		if err := xtables.NewTable(w.Host, t.Variant, t.V6, "filter").Installed(); err != nil {
			slog.Warn("rules of another program decide about forwarding, and iptables, which changes them, is missing",
				"rules", others.String(), "error", err)
			continue
		}
		b.Tables = append(b.Tables, t)
	}
	return b
}

// Reconsider determines again where the accepts belong. A repair calls it after it has restored rules that may have
// decided that. By then, a firewalld that starts or reloads has its rules.
func Reconsider(ctx context.Context, w *kernel.World) error {
	awaitFirewalld(ctx)
	return w.Store.Delete(backendRecord, spec.Owner{})
}
