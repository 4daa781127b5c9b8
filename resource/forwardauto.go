package resource

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A way is where accepts count on this host.
type way struct {
	V4, V6    []*kernel.IPTables `json:"-"`
	Variants4 []kernel.IPTVariant
	Variants6 []kernel.IPTVariant
	Firewalld bool
	Foreign   bool // somebody else has a say
}

// tables are the tables of iptables that addresses need an accept in.
func (y way) tables(addrs []netip.Addr) (all []*kernel.IPTables) {
	if len(ofIP(addrs, false)) > 0 {
		all = append(all, y.V4...)
	}
	if len(ofIP(addrs, true)) > 0 {
		all = append(all, y.V6...)
	}
	return all
}

// open turns variants into tables.
func (y way) open(w *kernel.World) way {
	for _, v := range y.Variants4 {
		y.V4 = append(y.V4, w.Host.IPTables(v, false, "filter"))
	}
	for _, v := range y.Variants6 {
		y.V6 = append(y.V6, w.Host.IPTables(v, true, "filter"))
	}
	return y
}

const wayRecord = "forward-way"

// cached is a way that was found, and what the host's rules looked like then.
type cached struct {
	Fingerprint string
	Way         way
}

// way is where the accepts belong: what was found before, where nobody has changed the rules since.
func (f Forward) way(ctx context.Context, w *kernel.World) (way, error) {
	if f.Backend != BackendAuto {
		return f.decide(ctx, w)
	}
	print, err := w.Host.ForeignFingerprint(ourTables()...)
	if err != nil {
		return way{}, err
	}
	var c cached
	if ok, err := w.Memory.Recall(wayRecord, spec.Owner{}, &c); err != nil {
		return way{}, err
	} else if ok && c.Fingerprint == print {
		return c.Way.open(w), nil
	}
	found, err := f.decide(ctx, w)
	if err != nil {
		return way{}, err
	}
	err = w.Memory.Remember(wayRecord, spec.Owner{}, cached{print, found})
	if errors.Is(err, fs.ErrNotExist) { // another call remembers the same at this moment
		err = nil
	}
	return found, err
}

// decide looks at who has a say in forwarding (decision 22).
func (f Forward) decide(ctx context.Context, w *kernel.World) (y way, err error) {
	foreign, err := w.Host.ForeignForward(ourTables()...)
	if err != nil {
		return y, err
	}
	y.Foreign = !foreign.Empty()
	switch f.Backend {
	case BackendNFT:
		if len(foreign.Legacy) > 0 {
			slog.Warn("legacy iptables decides about forwarding too, and backend \"nftables\" cannot see what", "rules", foreign.String())
		}
		return y, nil
	case BackendFirewalld:
		y.Firewalld = true
		return y, nil
	case BackendIPTables:
		for _, v6 := range []bool{false, true} {
			if len(ofIP(f.Addrs, v6)) == 0 {
				continue
			}
			t, err := w.Host.IPTablesOf(v6, "filter")
			if err != nil {
				return y, err
			}
			if v6 {
				y.Variants6 = append(y.Variants6, t.Variant)
			} else {
				y.Variants4 = append(y.Variants4, t.Variant)
			}
		}
		y.Foreign = true
		return y.open(w), nil
	}
	add := func(v kernel.IPTVariant, v6 bool) {
		if err := w.Host.IPTables(v, v6, "filter").Installed(); err != nil {
			slog.Warn("somebody's rules decide about forwarding, and the program to allow the container's packets there is missing", "rules", foreign.String(), "error", err)
		} else if v6 {
			y.Variants6 = append(y.Variants6, v)
		} else {
			y.Variants4 = append(y.Variants4, v)
		}
	}
	for _, c := range foreign.Chains {
		switch {
		case c.Table == "filter" && c.Name == "FORWARD" && c.Family == unix.NFPROTO_IPV4:
			add(kernel.IPTNFT, false)
		case c.Table == "filter" && c.Name == "FORWARD" && c.Family == unix.NFPROTO_IPV6:
			add(kernel.IPTNFT, true)
		case c.Table == "firewalld":
			y.Firewalld = y.Firewalld || firewalldRuns(ctx)
		}
	}
	for _, family := range foreign.Legacy {
		add(kernel.IPTLegacy, family == "ip6")
	}
	return y.open(w), nil
}

// forwardRecords are what is remembered of the network's attachments.
func forwardRecords(w *kernel.World, network string) (map[[8]byte]forwarded, error) {
	return decoded[forwarded](w.Memory.Records(forwardRecord, network))
}
