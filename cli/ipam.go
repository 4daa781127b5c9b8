package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

func (a *app) ipamCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "ipam", GroupID: "look",
		Short: "Inspect and manage the addresses that host-local allocates",
		Long: `Inspect and correct the addresses that networks allocate with host-local. The leases are those of every runtime
on this host, made by fairlead's host-local or by the reference's.`,
	}
	c.AddCommand(a.ipamLsCommand(), a.ipamShowCommand(), a.ipamStatsCommand(), a.ipamReserveCommand(),
		a.ipamReleaseCommand(), a.ipamReclaimCommand(), a.ipamExportCommand(), a.ipamImportCommand())
	return c
}

// A pool is a network whose leases can be looked at.
type pool struct {
	network string
	ledger  ipam.Ledger
	wrong   string // what is wrong with its configuration, so that its ranges are not known
}

// leftovers is the ledger of networks that no file defines: where leases are by default.
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

// pool finds the network's ledger. A network that nobody defines has one where leases are left of it. Where lax is set,
// so has one whose configuration is wrong.
func (a *app) pool(ctx context.Context, name string, lax bool) (pool, error) {
	a.orphans = true
	n, err := a.network(name)
	if errors.Is(err, spec.ErrNotFound) {
		l, lerr := leftovers(name)
		if lerr != nil {
			return pool{}, lerr
		}
		if names, lerr := l.Networks(ctx); lerr == nil && slices.Contains(names, name) {
			a.note("warning: no file defines network %s, so its ranges are not known", name)
			return pool{name, l, ""}, nil
		}
	}
	if err != nil {
		return pool{}, err
	}
	return poolOf(n.List, lax)
}

func poolOf(l *spec.List, lax bool) (pool, error) {
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
				return pool{}, fmt.Errorf("network %s: %w", l.Name, err)
			}
			if ledger != nil {
				return pool{l.Name, ledger, wrong}, nil
			}
		}
	}
	if len(others) == 0 {
		return pool{}, fail(exitFailure, "Its configuration has no ipam.", "network %s gives no addresses", l.Name)
	}
	hint := "These commands are about host-local."
	if slices.Contains(others, "dhcp") {
		hint = "These commands are about host-local; `fairlead dhcp ls` lists the leases of servers."
	}
	return pool{}, fail(exitFailure, hint,
		"network %s has its addresses from %s, which keeps no leases that can be looked at here", l.Name,
		strings.Join(others, ", "))
}

// pools are those of one network, or of all that are configured or have left leases behind. Of all, those that keep no
// leases are passed over.
func (a *app) pools(ctx context.Context, name string) (all []pool, problems []string, err error) {
	if name != "" {
		p, err := a.pool(ctx, name, true)
		if p.wrong != "" {
			problems = append(problems, p.wrong)
		}
		return []pool{p}, problems, err
	}
	lists, bad := spec.LoadDir(confDir())
	for _, err := range bad {
		problems = append(problems, err.Error())
	}
	if !slices.ContainsFunc(lists, func(l *spec.List) bool { return l.Name == defaultNetwork }) {
		if l, err := spec.ParseList(defaultList(ipv6Here())); err == nil {
			lists = append(lists, l)
		}
	}
	var known []string
	for _, l := range lists {
		p, err := poolOf(l, true)
		if p.wrong != "" {
			problems = append(problems, p.wrong)
		}
		if err == nil {
			all = append(all, p)
		} else if !errors.As(err, new(*failure)) {
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
		p, err := a.pool(ctx, name, true)
		if err != nil && !errors.As(err, new(*failure)) {
			problems = append(problems, err.Error())
		} else if err == nil {
			all = append(all, p)
		}
	}
	return all, problems, nil
}

// wrong says what could not be looked at, and how it could.
func (a *app) wrong(problems []string) {
	denied := false
	for _, p := range problems {
		a.note("%s", p)
		denied = denied || strings.Contains(p, fs.ErrPermission.Error())
	}
	if denied && os.Geteuid() != 0 {
		fmt.Fprintln(a.stderr, "  "+hintPrivilege)
	}
}

// The states of an address beside those of a lease.
const (
	held     = "held"
	reserved = "reserved"
	free     = "free"
)

// An address is one that is not simply free.
type address struct {
	Network     string     `json:"network"`
	Address     string     `json:"address"` // reserved ones are subnets
	State       string     `json:"state"`   // of a lease: alive, gone or unknown; held, reserved, free
	ContainerID string     `json:"containerID,omitempty"`
	IfName      string     `json:"ifname,omitempty"`
	Key         string     `json:"key,omitempty"`   // the sticky key that had it last, or that it is reserved for
	Until       *time.Time `json:"until,omitempty"` // the end of the hold
	Note        string     `json:"note,omitempty"`
	Range       string     `json:"range,omitempty"` // show: the range that it is of
}

func leaseAddress(network string, l ipam.Lease) address {
	return address{Network: network, Address: l.Address.String(), State: l.State, ContainerID: l.ContainerID,
		IfName: l.IfName, Note: l.Why}
}

// reclaimed says of a lease who had it and why it is no more.
func (d address) reclaimed() string {
	return fmt.Sprintf("%s of %s, which %s had: %s", d.Address, d.Network, strings.TrimSpace(d.ContainerID+" "+d.IfName),
		d.Note)
}

// listing is a book as a list of addresses.
func listing(network string, b *ipam.Book) []address {
	var all []address
	keys := map[netip.Addr]ipam.Binding{}
	for _, k := range b.Sticky {
		keys[k.Address] = k
	}
	for _, l := range b.Leases {
		d := leaseAddress(network, l)
		d.Key = keys[l.Address].Key
		all = append(all, d)
		delete(keys, l.Address)
	}
	for _, k := range b.Sticky {
		if _, free := keys[k.Address]; free && k.Until.After(time.Now()) {
			all = append(all, address{Network: network, Address: k.Address.String(), State: held, IfName: k.IfName, Key: k.Key,
				Until: &k.Until})
		}
	}
	kept := slices.Clone(b.Reserved)
	for _, p := range b.Configured {
		kept = append(kept, ipam.Reservation{Prefix: p, Note: "by the configuration"})
	}
	slices.SortStableFunc(kept, func(a, b ipam.Reservation) int { return a.Prefix.Compare(b.Prefix) })
	for _, r := range kept {
		all = append(all, address{Network: network, Address: prefixText(r.Prefix), State: reserved, Key: r.For, Note: r.Note})
	}
	return all
}

// prefixText is a subnet, of one address without its length.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func (s style) state(state string) shown {
	switch state {
	case ipam.Alive, free:
		return s.good(state)
	case ipam.Gone:
		return s.bad(state)
	case ipam.Unknown:
		return s.doubt(state)
	}
	return printable(state)
}

func (a *app) ipamLsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls [NET]", Args: operands("[NET]"),
		Short: "List leases, held and reserved addresses",
		Long: `List the addresses of all networks, or of NET, that are leased, held or reserved. The container of a lease is

  alive    if the results cache names its network namespace, and that exists
  gone     if the lease is of an earlier boot, or the namespace no longer exists: fairlead ipam reclaim removes it
  unknown  otherwise`,
		RunE: func(c *cobra.Command, args []string) error {
			pools, problems, err := a.pools(c.Context(), strings.Join(args, ""))
			if err != nil {
				return err
			}
			all := []address{}
			for _, p := range pools {
				b, err := p.ledger.Look(c.Context(), p.network)
				if err != nil {
					problems = append(problems, err.Error())
					continue
				}
				all = append(all, listing(p.network, b)...)
				for _, text := range b.Problems {
					problems = append(problems, p.network+": "+text)
				}
			}
			if len(problems) > 0 {
				a.status = exitFailure
			}
			if a.json() {
				return printJSON(a.stdout, struct {
					Addresses []address `json:"addresses"`
					Problems  []string  `json:"problems,omitempty"`
				}{all, problems})
			}
			s := a.style(a.stdout)
			t := table{{"NETWORK", "ADDRESS", "STATE", "CONTAINER", "INTERFACE", "KEY", "NOTE"}}
			for _, d := range all {
				note := d.Note
				if d.Until != nil {
					note = "for " + time.Until(*d.Until).Round(time.Second).String()
				}
				t = append(t, []any{d.Network, d.Address, s.state(d.State), d.ContainerID, d.IfName, d.Key, note})
			}
			if len(t) > 1 {
				t.print(a.stdout, s)
			} else if len(problems) == 0 {
				a.print("no address is given out\n")
			}
			a.wrong(problems)
			return nil
		},
		ValidArgsFunction: completeNetworks,
	}
}

// A rangeUse is how much of a range is given out, as stats prints it. Numbers are texts: an IPv6 range has more
// addresses than a number in JSON can say.
type rangeUse struct {
	Network   string `json:"network"`
	Range     string `json:"range"`
	Size      string `json:"size"`
	Used      string `json:"used"`
	Available string `json:"available"`
	Held      string `json:"held"`
	Resting   string `json:"resting"`
	Reserved  string `json:"reserved"`
}

func (a *app) ipamStatsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "stats [NET]", Args: operands("[NET]"),
		Short: "Count the addresses of each range",
		Long: `Count the addresses of each range: in use, available, and reserved. A reserved address that a container asked for
counts as both reserved and in use. Available addresses may be held for a sticky key, or may have been released a short
time ago: these are allocated last.`,
		RunE: func(c *cobra.Command, args []string) error {
			pools, problems, err := a.pools(c.Context(), strings.Join(args, ""))
			if err != nil {
				return err
			}
			all := []rangeUse{}
			for _, p := range pools {
				b, err := p.ledger.Look(c.Context(), p.network)
				if err != nil {
					problems = append(problems, err.Error())
					continue
				}
				for _, u := range b.Uses {
					all = append(all, rangeUse{p.network, u.Range, u.Size.String(), u.Used.String(), u.Available.String(),
						u.Held.String(), u.Resting.String(), u.Reserved.String()})
				}
			}
			if len(problems) > 0 {
				a.status = exitFailure
			}
			if a.json() {
				return printJSON(a.stdout, struct {
					Ranges   []rangeUse `json:"ranges"`
					Problems []string   `json:"problems,omitempty"`
				}{all, problems})
			}
			t := table{{"NETWORK", "RANGE", "SIZE", "USED", "AVAILABLE", "HELD", "RESTING", "RESERVED"}}
			for _, u := range all {
				t = append(t, []any{u.Network, u.Range, u.Size, u.Used, u.Available, u.Held, u.Resting, u.Reserved})
			}
			if len(t) > 1 || len(problems) == 0 {
				t.print(a.stdout, a.style(a.stdout))
			}
			a.wrong(problems)
			return nil
		},
		ValidArgsFunction: completeNetworks,
	}
}
