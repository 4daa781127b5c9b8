// Package ipam is fairlead ipam: it lists, reserves, releases and moves leases of host-local. The top-level package
// ipam has ranges and leases; package netconf knows which network has which pool.
package ipam

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/spf13/cobra"
)

// Command is `fairlead ipam`.
func Command(a *app.App) *cobra.Command {
	c := &cobra.Command{
		Use: "ipam", GroupID: "look",
		Short: "Inspect and manage the addresses that host-local allocates",
		Long: `Inspect and correct the addresses that networks allocate with host-local. The leases are those of every runtime
on this host, made by fairlead's host-local or by the reference's.`,
	}
	c.AddCommand(ipamLsCommand(a), ipamShowCommand(a), ipamStatsCommand(a), ipamReserveCommand(a),
		ipamReleaseCommand(a), ipamReclaimCommand(a), ipamExportCommand(a), ipamImportCommand(a))
	return c
}

// wrong prints what could not be read, and a hint.
func wrong(a *app.App, problems []string) {
	denied := false
	for _, p := range problems {
		a.Note("%s", p)
		denied = denied || strings.Contains(p, fs.ErrPermission.Error())
	}
	if denied && os.Geteuid() != 0 {
		fmt.Fprintln(a.Stderr, "  "+app.HintPrivilege)
	}
}

// The states of an address, in addition to those of a lease.
const (
	held     = "held"
	reserved = "reserved"
	free     = "free"
)

// Address is an address that is leased, held or reserved.
type Address struct {
	Network     string     `json:"network"`
	Address     string     `json:"address"` // may be a reserved subnet
	State       string     `json:"state"`   // of a lease: alive, gone or unknown; held, reserved, free
	ContainerID string     `json:"containerID,omitempty"`
	IfName      string     `json:"ifname,omitempty"`
	Key         string     `json:"key,omitempty"`   // the sticky key that last had it, or for which it is reserved
	Until       *time.Time `json:"until,omitempty"` // end of the hold
	Note        string     `json:"note,omitempty"`
	Range       string     `json:"range,omitempty"` // show: its range
}

// LeaseAddress returns a lease for printing.
func LeaseAddress(network string, l ipam.Lease) Address {
	return Address{Network: network, Address: l.Address.String(), State: l.State, ContainerID: l.ContainerID,
		IfName: l.IfName, Note: l.Why}
}

// Reclaimed says who had a lease, and why it was removed.
func (d Address) Reclaimed() string {
	return fmt.Sprintf("%s of %s, which %s had: %s", d.Address, d.Network,
		strings.TrimSpace(d.ContainerID+" "+d.IfName), d.Note)
}

// listing returns a book as a list of addresses.
func listing(network string, b *ipam.Book) []Address {
	var all []Address
	keys := map[netip.Addr]ipam.Binding{}
	for _, k := range b.Sticky {
		keys[k.Address] = k
	}
	for _, l := range b.Leases {
		d := LeaseAddress(network, l)
		d.Key = keys[l.Address].Key
		all = append(all, d)
		delete(keys, l.Address)
	}
	for _, k := range b.Sticky {
		if _, free := keys[k.Address]; free && k.Until.After(time.Now()) {
			all = append(all, Address{Network: network, Address: k.Address.String(), State: held, IfName: k.IfName,
				Key: k.Key, Until: &k.Until})
		}
	}
	kept := slices.Clone(b.Reserved)
	for _, p := range b.Configured {
		kept = append(kept, ipam.Reservation{Prefix: p, Note: "by the configuration"})
	}
	slices.SortStableFunc(kept, func(a, b ipam.Reservation) int { return a.Prefix.Compare(b.Prefix) })
	for _, r := range kept {
		all = append(all, Address{Network: network, Address: prefixText(r.Prefix), State: reserved, Key: r.For,
			Note: r.Note})
	}
	return all
}

// prefixText returns a subnet; a single address without its length.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func state(s term.Style, state string) term.Shown {
	switch state {
	case ipam.Alive, free:
		return s.Good(state)
	case ipam.Gone:
		return s.Bad(state)
	case ipam.Unknown:
		return s.Doubt(state)
	}
	return term.Printable(state)
}

func ipamLsCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: "ls [NET]", Args: app.Operands("[NET]"),
		Short: "List leases, held and reserved addresses",
		Long: `List the addresses of all networks, or of NET, that are leased, held or reserved. The container of a lease is

  alive    if the results cache names its network namespace, and that exists
  gone     if the lease is of an earlier boot, or the namespace no longer exists: fairlead ipam reclaim removes it
  unknown  otherwise`,
		RunE: func(c *cobra.Command, args []string) error {
			pools, problems, err := netconf.Pools(c.Context(), a, strings.Join(args, ""))
			if err != nil {
				return err
			}
			all := []Address{}
			for _, p := range pools {
				b, err := p.Ledger.Look(c.Context(), p.Network)
				if err != nil {
					problems = append(problems, err.Error())
					continue
				}
				all = append(all, listing(p.Network, b)...)
				for _, text := range b.Problems {
					problems = append(problems, p.Network+": "+text)
				}
			}
			if len(problems) > 0 {
				a.Status = app.ExitFailure
			}
			if a.JSON() {
				return a.PrintJSON(struct {
					Addresses []Address `json:"addresses"`
					Problems  []string  `json:"problems,omitempty"`
				}{all, problems})
			}
			s := a.Style(a.Stdout)
			t := term.Table{{"NETWORK", "ADDRESS", "STATE", "CONTAINER", "INTERFACE", "KEY", "NOTE"}}
			for _, d := range all {
				note := d.Note
				if d.Until != nil {
					note = "for " + time.Until(*d.Until).Round(time.Second).String()
				}
				t = append(t, []any{d.Network, d.Address, state(s, d.State), d.ContainerID, d.IfName, d.Key, note})
			}
			if len(t) > 1 {
				a.Draw(t)
			} else if len(problems) == 0 {
				a.Print("no address is leased, held or reserved\n")
			}
			wrong(a, problems)
			return nil
		},
		ValidArgsFunction: netconf.CompleteNetworks,
	}
}

// rangeUse counts the addresses of a range, for stats. The numbers are strings, because an IPv6 range has more
// addresses than a JSON number can express.
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

func ipamStatsCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: "stats [NET]", Args: app.Operands("[NET]"),
		Short: "Count the addresses of each range",
		Long: `Count the addresses of each range: in use, available, and reserved. A reserved address that a container asked for
counts as both reserved and in use. Available addresses may be held for a sticky key, or may have been released a short
time ago: these are allocated last.`,
		RunE: func(c *cobra.Command, args []string) error {
			pools, problems, err := netconf.Pools(c.Context(), a, strings.Join(args, ""))
			if err != nil {
				return err
			}
			all := []rangeUse{}
			for _, p := range pools {
				b, err := p.Ledger.Look(c.Context(), p.Network)
				if err != nil {
					problems = append(problems, err.Error())
					continue
				}
				for _, u := range b.Uses {
					all = append(all, rangeUse{p.Network, u.Range, u.Size.String(), u.Used.String(),
						u.Available.String(), u.Held.String(), u.Resting.String(), u.Reserved.String()})
				}
			}
			if len(problems) > 0 {
				a.Status = app.ExitFailure
			}
			if a.JSON() {
				return a.PrintJSON(struct {
					Ranges   []rangeUse `json:"ranges"`
					Problems []string   `json:"problems,omitempty"`
				}{all, problems})
			}
			t := term.Table{{"NETWORK", "RANGE", "SIZE", "USED", "AVAILABLE", "HELD", "RESTING", "RESERVED"}}
			for _, u := range all {
				t = append(t, []any{u.Network, u.Range, u.Size, u.Used, u.Available, u.Held, u.Resting, u.Reserved})
			}
			if len(t) > 1 || len(problems) == 0 {
				a.Draw(t)
			}
			wrong(a, problems)
			return nil
		},
		ValidArgsFunction: netconf.CompleteNetworks,
	}
}
