package resource

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A forwardBackend is where accepts count on this host.
type forwardBackend struct {
	V4, V6    []*kernel.IPTables `json:"-"`
	Variants4 []kernel.IPTVariant
	Variants6 []kernel.IPTVariant
	Firewalld bool
	Unlifted  kernel.Foreign // what others have at the forward hook that no accept of ours goes into
}

// tables are the tables of iptables that addresses need an accept in.
func (b forwardBackend) tables(addrs []netip.Addr) (all []*kernel.IPTables) {
	if len(ofIP(addrs, false)) > 0 {
		all = append(all, b.V4...)
	}
	if len(ofIP(addrs, true)) > 0 {
		all = append(all, b.V6...)
	}
	return all
}

// open turns variants into tables.
func (b forwardBackend) open(w *kernel.World) forwardBackend {
	for _, v := range b.Variants4 {
		b.V4 = append(b.V4, w.Host.IPTables(v, false, "filter"))
	}
	for _, v := range b.Variants6 {
		b.V6 = append(b.V6, w.Host.IPTables(v, true, "filter"))
	}
	return b
}

const backendRecord = "forward-backend"

// cached is a backend that was found, and what the host's rules looked like then.
type cached struct {
	Fingerprint string
	Backend     forwardBackend
}

// backend is where the accepts belong: what was found before, where nobody has changed the rules since.
func (f Forward) backend(ctx context.Context, w *kernel.World) (forwardBackend, error) {
	if f.Backend != BackendAuto {
		return f.decide(ctx, w)
	}
	print, err := w.Host.ForeignFingerprint(ourTables()...)
	if err != nil {
		return forwardBackend{}, err
	}
	var c cached
	if ok, err := w.Memory.Recall(backendRecord, spec.Owner{}, &c); err != nil {
		return forwardBackend{}, err
	} else if ok && c.Fingerprint == print {
		return c.Backend.open(w), nil
	}
	found, err := f.decide(ctx, w)
	if err != nil {
		return forwardBackend{}, err
	}
	err = w.Memory.Remember(backendRecord, spec.Owner{}, cached{print, found})
	if errors.Is(err, fs.ErrNotExist) { // another call remembers the same at this moment
		err = nil
	}
	return found, err
}

// ourTables are those that are none of others'.
func ourTables() []string { return []string{inetTable().String(), bridgeTable().String()} }

// decide looks at who has a say in forwarding (decision 22).
func (f Forward) decide(ctx context.Context, w *kernel.World) (b forwardBackend, err error) {
	foreign, err := w.Host.ForeignForward(ourTables()...)
	if err != nil {
		return b, err
	}
	switch f.Backend {
	case BackendFirewalld:
		b.Firewalld = true
	case BackendIPTables:
		err = b.preferred(w, f.Addrs)
	case BackendAuto:
		b.auto(ctx, w, foreign)
	}
	b.Unlifted.Chains = slices.DeleteFunc(foreign.Chains, func(c kernel.BaseChain) bool {
		return c.Table == "firewalld" && b.Firewalld ||
			isForward(c, unix.NFPROTO_IPV4) && slices.Contains(b.Variants4, kernel.IPTNFT) ||
			isForward(c, unix.NFPROTO_IPV6) && slices.Contains(b.Variants6, kernel.IPTNFT)
	})
	b.Unlifted.Legacy = slices.DeleteFunc(foreign.Legacy, func(family string) bool {
		return family == "ip" && slices.Contains(b.Variants4, kernel.IPTLegacy) ||
			family == "ip6" && slices.Contains(b.Variants6, kernel.IPTLegacy)
	})
	return b.open(w), err
}

// isForward reports whether a chain is FORWARD of iptables-nft.
func isForward(c kernel.BaseChain, family byte) bool {
	return c.Table == "filter" && c.Name == "FORWARD" && c.Family == family
}

// preferred takes the variants of iptables that this host uses.
func (b *forwardBackend) preferred(w *kernel.World, addrs []netip.Addr) error {
	for _, v6 := range []bool{false, true} {
		if len(ofIP(addrs, v6)) == 0 {
			continue
		}
		t, err := w.Host.IPTablesOf(v6, "filter")
		if err != nil {
			return err
		}
		b.add(t.Variant, v6)
	}
	return nil
}

// auto takes what others have rules in.
func (b *forwardBackend) auto(ctx context.Context, w *kernel.World, foreign kernel.Foreign) {
	add := func(v kernel.IPTVariant, v6 bool) {
		if err := w.Host.IPTables(v, v6, "filter").Installed(); err != nil {
			slog.Warn("somebody's rules decide about forwarding, and the program to let packets through there is missing",
				"rules", foreign.String(), "error", err)
			return
		}
		b.add(v, v6)
	}
	for _, c := range foreign.Chains {
		switch {
		case isForward(c, unix.NFPROTO_IPV4):
			add(kernel.IPTNFT, false)
		case isForward(c, unix.NFPROTO_IPV6):
			add(kernel.IPTNFT, true)
		case c.Table == "firewalld":
			b.Firewalld = b.Firewalld || firewalldRuns(ctx)
		}
	}
	for _, family := range foreign.Legacy {
		add(kernel.IPTLegacy, family == "ip6")
	}
}

func (b *forwardBackend) add(v kernel.IPTVariant, v6 bool) {
	if v6 {
		b.Variants6 = append(b.Variants6, v)
	} else {
		b.Variants4 = append(b.Variants4, v)
	}
}

// forwardRecords are what is remembered of the network's attachments.
func forwardRecords(w *kernel.World, network string) (map[[8]byte]forwarded, error) {
	return decoded[forwarded](w.Memory.Records(forwardRecord, network))
}
