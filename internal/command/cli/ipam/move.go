package ipam

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// exported is the document that export writes.
type exported struct {
	Version int            `json:"version"`
	Network string         `json:"network"`
	Subnets []netip.Prefix `json:"subnets"` // of its ranges
	*ipam.Book
}

func subnets(b *ipam.Book) []netip.Prefix {
	all := []netip.Prefix{}
	for _, set := range b.Sets {
		for _, r := range set.Ranges {
			all = append(all, r.Subnet)
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

func ipamExportCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: "export NET", Args: app.Operands("NET"),
		Short: "Write leases, sticky and reserved addresses as a document for import",
		RunE: func(c *cobra.Command, args []string) error {
			p, b, err := book(c.Context(), a, args[0])
			if err != nil {
				return err
			}
			if len(b.Problems) > 0 {
				return app.Fail(app.ExitFailure, "", "nothing is exported: %s", strings.Join(b.Problems, "; "))
			}
			b.Leases = append([]ipam.Lease{}, b.Leases...) // lists, not null
			b.Sticky = append([]ipam.Binding{}, b.Sticky...)
			b.Reserved = append([]ipam.Reservation{}, b.Reserved...)
			return a.PrintJSON(exported{1, p.Network, subnets(b), b})
		},
		ValidArgsFunction: netconf.CompleteNetworks,
	}
}

func ipamImportCommand(a *app.App) *cobra.Command {
	var force, dry bool
	c := &cobra.Command{
		Use: "import NET FROM", Args: app.Operands("NET FROM"),
		Short: "Add the leases of a directory, or of an exported document, to a network",
		Long: `Add leases to those of NET. FROM is one of these:

  a directory with leases of host-local, fairlead's or the reference's, such as /var/lib/cni/networks/podman
  a file that fairlead ipam export wrote
  -, for such a document on standard input

Existing leases stay. If an address belongs to another container or to none of the ranges of NET, or the document
contradicts itself or is of another network, each such entry is listed and nothing is imported. --force accepts
addresses outside the ranges, two addresses of a range for one owner, and the document of another network. FROM is not
changed. After an interruption, run the import again to complete it.`,
		RunE: func(c *cobra.Command, args []string) error {
			p, err := netconf.FindPool(c.Context(), a, args[0], false)
			if err != nil {
				return err
			}
			b, err := readBook(c.Context(), a, p, args[1], force)
			if err != nil {
				return err
			}
			added, err := p.Ledger.Import(c.Context(), p.Network, b, force, dry)
			var doc *spec.Error
			if errors.As(err, &doc) && doc.Code == spec.CodeConfig {
				return app.Fail(app.ExitFailure, importing(err), "%w", err)
			}
			if err != nil {
				return err
			}
			return printImport(a, p.Network, b, added, dry)
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return netconf.CompleteNetworks(c, args, word)
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
	c.Flags().BoolVar(&force, "force", false,
		"accept another network's document, addresses outside the ranges, and two of one range for one owner")
	c.Flags().BoolVar(&dry, "dry-run", false, "list what would be imported, and change nothing")
	return c
}

// printImport prints how much of b was added to the leases of a network.
func printImport(a *app.App, network string, b, added *ipam.Book, dry bool) error {
	if a.JSON() {
		return a.PrintJSON(struct {
			Network  string `json:"network"`
			DryRun   bool   `json:"dryRun"`
			Leases   int    `json:"leases"`
			Sticky   int    `json:"sticky"`
			Reserved int    `json:"reserved"`
		}{network, dry, len(added.Leases), len(added.Sticky), len(added.Reserved)})
	}
	what, rest := "imported to", ""
	if dry {
		what = "would import to"
	}
	if len(added.Leases)+len(added.Sticky)+len(added.Reserved) < len(b.Leases)+len(b.Sticky)+len(b.Reserved) {
		rest = "; the others exist already"
		if dry {
			rest = "; the others exist already"
		}
	}
	a.Print("%s %s: %d of %d leases, %d of %d sticky addresses, %d of %d reservations%s\n", what, network,
		len(added.Leases), len(b.Leases), len(added.Sticky), len(b.Sticky), len(added.Reserved), len(b.Reserved), rest)
	if dry {
		a.Note("nothing was changed")
	}
	return nil
}

// importing returns a hint: how the import can succeed.
func importing(err error) string {
	taken, outside := errors.Is(err, ipam.ErrTaken), errors.Is(err, ipam.ErrOutside)
	switch {
	case taken && outside:
		return "`fairlead ipam release` releases what belongs to another; --force accepts addresses outside the " +
			"ranges."
	case taken:
		return "`fairlead ipam release` releases what belongs to another, if its container is gone."
	case outside:
		return "--force accepts addresses outside the ranges."
	}
	return "Remove it from FROM."
}

const hintFrom = "Give a directory of leases, a document that `fairlead ipam export` wrote, or - for standard input."

// readBook reads what is to be imported.
func readBook(ctx context.Context, a *app.App, p netconf.Pool, from string, force bool) (*ipam.Book, error) {
	if st, err := os.Stat(from); from != "-" && err == nil && st.IsDir() {
		b, err := p.Ledger.Read(from)
		switch {
		case err != nil:
			return nil, err
		case len(b.Problems) > 0:
			return nil, app.Fail(app.ExitFailure, "Correct or remove it there.", "nothing is imported: %s",
				strings.Join(b.Problems, "; "))
		case len(b.Leases)+len(b.Sticky)+len(b.Reserved) == 0:
			return nil, app.Fail(app.ExitUsage,
				"Leases of host-local are files named by addresses: /var/lib/cni/networks/NETWORK/10.1.0.5.",
				"%s contains no leases", from)
		}
		return b, nil
	}
	in := io.Reader(a.Stdin)
	if from != "-" {
		b, err := plainfile.ReadLinked(from, 1<<30)
		if err != nil {
			return nil, app.Fail(app.ExitNotFound, hintFrom, "%w", err)
		}
		in = bytes.NewReader(b)
	}
	doc, err := parseBook(in)
	switch {
	case err != nil:
		return nil, app.Fail(app.ExitUsage, hintFrom, "%s: want a document of `fairlead ipam export`: %w", from, err)
	case doc.Version != 1:
		return nil, app.Fail(app.ExitFailure, "A newer fairlead wrote it, or it is not such a document.",
			"%s: version: %d: this fairlead reads version 1", from, doc.Version)
	case force:
		return doc.Book, nil
	case doc.Network != p.Network:
		return nil, app.Fail(app.ExitUsage, "--force imports it all the same.",
			"nothing is imported: network: %q: the document is of that network, not of %s", doc.Network, p.Network)
	}
	here, err := p.Ledger.Look(ctx, p.Network)
	if err != nil {
		return nil, err
	}
	if want := subnets(here); doc.Subnets != nil && len(want) > 0 && !slices.Equal(doc.Subnets, want) {
		return nil, app.Fail(app.ExitUsage,
			"--force imports the addresses, also those outside the ranges.",
			"nothing is imported: subnets: %v: the network %s has %v here", doc.Subnets, p.Network, want)
	}
	return doc.Book, nil
}

// parseBook parses a document. Errors have the path of the value.
func parseBook(in io.Reader) (*exported, error) {
	var doc struct {
		Version  int
		Network  string
		Subnets  []netip.Prefix
		Leases   []json.RawMessage
		Sticky   []json.RawMessage
		Reserved []json.RawMessage
	}
	d := json.NewDecoder(in)
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more than one document")
	}
	b := &ipam.Book{}
	err := errors.Join(each("leases", doc.Leases, &b.Leases), each("sticky", doc.Sticky, &b.Sticky),
		each("reserved", doc.Reserved, &b.Reserved))
	return &exported{doc.Version, doc.Network, doc.Subnets, b}, err
}

// each parses the items of a list.
func each[T any](path string, list []json.RawMessage, into *[]T) error {
	var errs []error
	for i, raw := range list {
		var item T
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		if err := d.Decode(&item); err != nil {
			errs = append(errs, fmt.Errorf("%s[%d]: %.200s: %w", path, i, bytes.Join(bytes.Fields(raw), []byte(" ")),
				err))
		}
		*into = append(*into, item)
	}
	return errors.Join(errs...)
}
