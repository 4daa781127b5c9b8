package ipam

import (
	"net/netip"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/spf13/cobra"
)

func ipamShowCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: "show ADDRESS [NET]", Args: app.Operands("ADDRESS [NET]"),
		Short: "Show the lease, hold and reservation of an address",
		RunE: func(c *cobra.Command, args []string) error {
			addr, err := parseAddress(args[0])
			if err != nil {
				return err
			}
			pools, problems, err := netconf.Pools(c.Context(), a, strings.Join(args[1:], ""))
			if err != nil {
				return err
			}
			found := []Address{}
			for _, p := range pools {
				b, err := p.Ledger.Look(c.Context(), p.Network, addr)
				if err != nil {
					problems = append(problems, err.Error())
					continue
				}
				found = append(found, LookUp(p.Network, addr, b)...)
			}
			wrong(a, problems)
			if len(found) == 0 && len(problems) > 0 {
				return app.Fail(app.ExitFailure, "", "cannot tell who has %s: a network could not be read", addr)
			}
			if len(found) == 0 {
				return app.Fail(app.ExitNotFound, "`fairlead ipam stats` lists the ranges of all networks.",
					"%s is in no range, and no container has it", addr)
			}
			if a.JSON() {
				return a.PrintJSON(struct {
					Addresses []Address `json:"addresses"`
				}{found})
			}
			s := a.Style(a.Stdout)
			for _, d := range found {
				node := &term.Tree{Text: term.Sprintf("%s of %s: %s", d.Address, d.Network, state(s, d.State))}
				container := strings.TrimSpace(d.ContainerID + " " + d.IfName)
				for _, line := range [][2]string{
					{"range", d.Range}, {"container", container}, {"sticky key", d.Key}, {"note", d.Note},
				} {
					if line[1] != "" {
						node.Add("%s %s", line[0], line[1])
					}
				}
				if d.Until != nil {
					node.Add("until %s", d.Until.Format(time.RFC3339))
				}
				a.Draw(node)
			}
			return nil
		},
	}
}

// LookUp returns what a book says of one address.
func LookUp(network string, addr netip.Addr, b *ipam.Book) (found []Address) {
	in := ""
	for _, set := range b.Sets {
		if r, ok := set.Find(addr); ok {
			if in = r.String(); addr == r.Gateway {
				return []Address{{Network: network, Address: addr.String(), State: reserved, Note: "the gateway",
					Range: in}}
			}
		}
	}
	for _, d := range listing(network, b) {
		p, err := ipam.ParseReserved(d.Address)
		if err == nil && p.Contains(addr) {
			if d.Address != addr.String() {
				d.Note = strings.TrimSpace("part of " + d.Address + " " + d.Note)
			}
			d.Address, d.Range = addr.String(), in
			found = append(found, d)
		}
	}
	if len(found) == 0 && in != "" {
		d := Address{Network: network, Address: addr.String(), State: free, Range: in}
		for _, k := range b.Sticky {
			if k.Address == addr { // its hold has expired
				d.Key = k.Key
			}
		}
		found = append(found, d)
	}
	return found
}

func parseAddress(s string) (netip.Addr, error) {
	p, err := ipam.ParseReserved(s)
	if err != nil || !p.IsSingleIP() {
		return netip.Addr{}, app.Usage("%q: want an address, such as 10.1.0.5 or 2001:db8::5", s)
	}
	return p.Addr(), nil
}
