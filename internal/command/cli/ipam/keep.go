package ipam

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/spf13/cobra"
)

// book returns the network's pool and its leases, holds and reservations.
func book(ctx context.Context, a *app.App, network string) (netconf.Pool, *ipam.Book, error) {
	p, err := netconf.FindPool(ctx, a, network, false)
	if err != nil {
		return p, nil, err
	}
	b, err := p.Ledger.Look(ctx, p.Network)
	return p, b, err
}

func ipamReserveCommand(a *app.App) *cobra.Command {
	var key, note string
	var force bool
	c := &cobra.Command{
		Use: "reserve NET ADDRESS|SUBNET...", Args: app.AtLeast("NET ADDRESS"),
		Short: "Reserve addresses, so that they are allocated only on request",
		Long: `Reserve addresses of NET. From then on a container gets one of them only if it asks for that address. With --for
only containers with that sticky key (ipam.sticky in the network's configuration) get them, without asking. A
reservation outlives reboots. The reference's host-local ignores reservations.

These are refused without --force, because they are probably mistakes: an address that is in use, is in none of the
ranges, or is reserved for another key; and all addresses of a range.`,
		Example: `  fairlead ipam reserve lan 10.1.0.5 --note printer
  fairlead ipam reserve lan 10.1.0.0/28 fd00:1::/120
  fairlead ipam reserve lan 10.1.0.9 --for default/web-0`,
		RunE: func(c *cobra.Command, args []string) error {
			prefixes, err := reservable(args[1:])
			if err != nil {
				return err
			}
			p, b, err := book(c.Context(), a, args[0])
			if err != nil {
				return err
			}
			if !force {
				if err := slips(p.Network, b, prefixes, key); err != nil {
					return err
				}
			}
			doc := struct {
				Network  string             `json:"network"`
				Reserved []ipam.Reservation `json:"reserved"`
			}{p.Network, []ipam.Reservation{}}
			for _, prefix := range prefixes {
				r := ipam.Reservation{Prefix: prefix, For: key, Note: note,
					Since: time.Now().UTC().Truncate(time.Second)}
				if !c.Flags().Changed("note") {
					r.Note = noteOf(b, prefix)
				}
				if err := p.Ledger.Reserve(c.Context(), p.Network, r); err != nil {
					return err
				}
				doc.Reserved = append(doc.Reserved, r)
			}
			if a.JSON() {
				return a.PrintJSON(doc)
			}
			for _, r := range doc.Reserved {
				a.Print("reserved %s\n", prefixText(r.Prefix))
			}
			return nil
		},
		ValidArgsFunction: netconf.CompleteNetworks,
	}
	c.Flags().StringVar(&key, "for", "", "the sticky `KEY` that gets them, such as default/web-0")
	c.Flags().StringVar(&note, "note", "", "a `NOTE` for people (default: keep the existing one)")
	c.Flags().BoolVar(&force, "force", false, "reserve even if it looks like a mistake")
	return c
}

// reservable are the addresses and subnets of a command line.
func reservable(args []string) (prefixes []netip.Prefix, err error) {
	for _, s := range args {
		p, err := ipam.ParseReserved(s)
		if err != nil {
			return nil, app.Usage("%w", err)
		}
		prefixes = append(prefixes, p)
	}
	return prefixes, nil
}

// noteOf returns the note of an existing reservation.
func noteOf(b *ipam.Book, p netip.Prefix) string {
	for _, r := range b.Reserved {
		if r.Prefix == p {
			return r.Note
		}
	}
	return ""
}

// slips refuses reservations that are probably mistakes.
func slips(network string, b *ipam.Book, prefixes []netip.Prefix, key string) error {
	const hint = "--force reserves it all the same."
	if key != "" && !b.Keyed {
		return app.Fail(app.ExitUsage,
			`Set ipam.sticky in the network's configuration, such as {"key": ["K8S_POD_NAMESPACE", "K8S_POD_NAME"]}. `+hint,
			"--for %s: containers of network %s have no sticky keys", key, network)
	}
	if err := ipam.PossibleKey(key, b.KeyParts); key != "" && err != nil {
		return app.Fail(app.ExitUsage, "`fairlead ipam ls "+network+"` shows keys as they are written. "+
			""+hint, "--for %s: %w", key, err)
	}
	for _, p := range prefixes {
		err := ipam.Slip(b.Sets, p)
		if errors.Is(err, ipam.ErrOutside) {
			var ranges []string
			for _, set := range b.Sets {
				ranges = append(ranges, set.String())
			}
			return app.Fail(app.ExitUsage, hint, "%s is in none of the ranges of network %s: %s", prefixText(p),
				network, strings.Join(ranges, ", "))
		}
		if err != nil {
			return app.Fail(app.ExitUsage, hint, "%w", err)
		}
		for _, r := range b.Reserved {
			if r.Prefix == p && r.For != key {
				return app.Fail(app.ExitUsage, hint, "%s is reserved already, for %s", prefixText(p), sticky(r.For))
			}
		}
		for _, l := range b.Leases {
			if p.Contains(l.Address) {
				return app.Fail(app.ExitUsage, "The container keeps the address until it is detached. "+hint,
					"%s is in use by %s", l.Address, strings.TrimSpace(l.ContainerID+" "+l.IfName))
			}
		}
	}
	return nil
}

func sticky(key string) string {
	if key == "" {
		return "containers that request it"
	}
	return "the key " + key
}

// released is the answer of release: what held the address.
type released struct {
	Network     string `json:"network"`
	Address     string `json:"address"`
	Was         string `json:"was"` // reserved, held, leased
	ContainerID string `json:"containerID,omitempty"`
	IfName      string `json:"ifname,omitempty"`
	Key         string `json:"key,omitempty"`
}

func ipamReleaseCommand(a *app.App) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "release NET ADDRESS|SUBNET", Args: app.Operands("NET ADDRESS"),
		Short: "Release an address: end its reservation, else its lease, else its hold",
		Long: `Release an address of NET. If exactly this address or subnet is reserved, end the reservation; else remove its
lease; else end its hold for a sticky key. The lease of a container that may be alive is removed only with --force:
that container still uses the address, and the next one may get it too.`,
		RunE: func(c *cobra.Command, args []string) error {
			prefix, err := ipam.ParseReserved(args[1])
			if err != nil {
				return app.Usage("%w", err)
			}
			p, b, err := book(c.Context(), a, args[0])
			if err != nil {
				return err
			}
			done, err := release(c.Context(), p, b, prefix, force)
			if err != nil {
				return err
			}
			if a.JSON() {
				return a.PrintJSON(done)
			}
			a.Print("released %s, which was %s\n", done.Address, done.Was)
			return nil
		},
		ValidArgsFunction: netconf.CompleteNetworks,
	}
	c.Flags().BoolVar(&force, "force", false, "remove the lease of a container that may be alive")
	return c
}

func release(ctx context.Context, p netconf.Pool, b *ipam.Book, prefix netip.Prefix, force bool) (released, error) {
	done := released{Network: p.Network, Address: prefixText(prefix)}
	for _, r := range b.Reserved {
		if r.Prefix == prefix {
			done.Was, done.Key = reserved, r.For
			return done, p.Ledger.Unreserve(ctx, p.Network, prefix)
		}
	}
	for _, l := range b.Leases {
		if prefix.IsSingleIP() && l.Address == prefix.Addr() {
			if l.State != ipam.Gone && !force {
				return done, app.Fail(app.ExitUsage,
					"Detach the container (`fairlead del`), or remove the lease with --force if you know that it is "+
						"gone.",
					"%s is in use by %s, which is not proven gone (%s)",
					l.Address, strings.TrimSpace(l.ContainerID+" "+l.IfName), l.State)
			}
			done.Was, done.ContainerID, done.IfName = "leased", l.ContainerID, l.IfName
			return done, p.Ledger.Drop(ctx, p.Network, l)
		}
	}
	for _, k := range b.Sticky {
		if prefix.IsSingleIP() && k.Address == prefix.Addr() {
			done.Was, done.Key, done.IfName = held, k.Key, k.IfName
			return done, p.Ledger.Forget(ctx, p.Network, k.Address)
		}
	}
	for _, c := range b.Configured {
		if c.Contains(prefix.Addr()) {
			return done, app.Fail(app.ExitFailure, "Remove it from ipam.reserved there.",
				"%s is reserved by the configuration of network %s", done.Address, p.Network)
		}
	}
	for _, r := range b.Reserved {
		if r.Prefix.Contains(prefix.Addr()) {
			return done, app.Fail(app.ExitNotFound, "Release that subnet, and reserve the rest of it again.",
				"%s is part of the reserved %s", done.Address, r.Prefix)
		}
	}
	return done, app.Fail(app.ExitNotFound, "`fairlead ipam ls "+p.Network+"` lists the addresses in use.",
		"%s of network %s is not leased, held or reserved", done.Address, p.Network)
}

func ipamReclaimCommand(a *app.App) *cobra.Command {
	var dry bool
	c := &cobra.Command{
		Use: "reclaim [NET]", Args: app.Operands("[NET]"),
		Short: "Remove the leases of containers that are gone",
		Long: `Remove the leases, of all networks or of NET, whose containers are proven gone: leases of an earlier boot, and
leases whose network namespace, as the results cache names it, no longer exists. The age of a lease proves nothing.
fairlead gc NET --gone also removes what else such a container left.`,
		RunE: func(c *cobra.Command, args []string) error {
			pools, problems, err := netconf.Pools(c.Context(), a, strings.Join(args, ""))
			if err != nil {
				return err
			}
			all := []Address{}
			for _, p := range pools {
				gone, err := p.Ledger.Reclaim(c.Context(), p.Network, dry)
				if err != nil {
					problems = append(problems, err.Error())
				}
				for _, l := range gone {
					all = append(all, LeaseAddress(p.Network, l))
				}
			}
			if len(problems) > 0 {
				a.Status = app.ExitFailure
			}
			if a.JSON() {
				return a.PrintJSON(struct {
					DryRun    bool      `json:"dryRun"`
					Reclaimed []Address `json:"reclaimed"`
					Problems  []string  `json:"problems,omitempty"`
				}{dry, all, problems})
			}
			for _, d := range all {
				a.Print("%s\n", d.Reclaimed())
			}
			if len(all) == 0 && len(problems) == 0 {
				a.Print("nothing to reclaim\n")
			}
			wrong(a, problems)
			if dry {
				a.Note("nothing was changed")
			}
			return nil
		},
		ValidArgsFunction: netconf.CompleteNetworks,
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "list what would be removed, and change nothing")
	return c
}
