package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// An exported is a network's book as export writes and import reads it.
type exported struct {
	Version int    `json:"version"`
	Network string `json:"network"`
	*ipam.Book
}

func (a *app) ipamExportCommand() *cobra.Command {
	return &cobra.Command{
		Use: "export NET", Args: operands("NET"),
		Short: "Write leases, sticky and reserved addresses as a document for import",
		RunE: func(c *cobra.Command, args []string) error {
			p, b, err := a.book(c.Context(), args[0])
			if err != nil {
				return err
			}
			if len(b.Problems) > 0 {
				return fail(exitFailure, "", "nothing is exported: %s", strings.Join(b.Problems, "; "))
			}
			b.Leases = append([]ipam.Lease{}, b.Leases...) // lists, not null
			b.Sticky = append([]ipam.Binding{}, b.Sticky...)
			b.Reserved = append([]ipam.Reservation{}, b.Reserved...)
			return printJSON(a.stdout, exported{1, p.network, b})
		},
		ValidArgsFunction: a.completeNetworks,
	}
}

func (a *app) ipamImportCommand() *cobra.Command {
	var force, dry bool
	c := &cobra.Command{
		Use: "import NET FROM", Args: operands("NET FROM"),
		Short: "Add the leases of a directory, or of an exported document, to a network's",
		Long: `Add leases to those of NET. FROM is a directory with leases of host-local, fairlead's or the reference's, such as podman's
/var/lib/cni/networks/podman or one of another dataDir; or a file that fairlead ipam export wrote, or - for standard
input. What is there already stays. Where an address is another's, or of none of the ranges of NET, nothing is imported and
each is named; --force takes addresses outside the ranges. FROM stays as it is.`,
		RunE: func(c *cobra.Command, args []string) error {
			p, err := a.pool(c.Context(), args[0], false)
			if err != nil {
				return err
			}
			b, err := a.readBook(p, args[1])
			if err != nil {
				return err
			}
			added, err := p.ledger.Import(c.Context(), p.network, b, force, dry)
			var doc *spec.Error
			if errors.As(err, &doc) && doc.Code == spec.CodeConfig {
				return fail(exitFailure, "What is another's has to be released first; --force takes what is of none of the ranges.", "%w", err)
			}
			if err != nil {
				return err
			}
			if a.json() {
				return printJSON(a.stdout, struct {
					Network  string `json:"network"`
					DryRun   bool   `json:"dryRun"`
					Leases   int    `json:"leases"`
					Sticky   int    `json:"sticky"`
					Reserved int    `json:"reserved"`
				}{p.network, dry, len(added.Leases), len(added.Sticky), len(added.Reserved)})
			}
			what, rest := "imported to", ""
			if dry {
				what = "would import to"
			}
			if len(added.Leases)+len(added.Sticky)+len(added.Reserved) < len(b.Leases)+len(b.Sticky)+len(b.Reserved) {
				rest = "; the others were there"
				if dry {
					rest = "; the others are there"
				}
			}
			fmt.Fprintf(a.stdout, "%s %s: %d of %d leases, %d of %d sticky addresses, %d of %d reservations%s\n", what, p.network,
				len(added.Leases), len(b.Leases), len(added.Sticky), len(b.Sticky), len(added.Reserved), len(b.Reserved), rest)
			if dry {
				a.note("nothing was changed")
			}
			return nil
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return a.completeNetworks(c, args, word)
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
	c.Flags().BoolVar(&force, "force", false, "import addresses too that are of none of the network's ranges")
	c.Flags().BoolVar(&dry, "dry-run", false, "only say what would be imported")
	return c
}

// readBook reads what is to be imported.
func (a *app) readBook(p pool, from string) (*ipam.Book, error) {
	if st, err := os.Stat(from); from != "-" && err == nil && st.IsDir() {
		b, err := p.ledger.Read(from)
		switch {
		case err != nil:
			return nil, err
		case len(b.Problems) > 0:
			return nil, fail(exitFailure, "Mend or remove it there.", "nothing is imported: %s", strings.Join(b.Problems, "; "))
		case len(b.Leases)+len(b.Sticky)+len(b.Reserved) == 0:
			return nil, fail(exitUsage, "Leases of host-local are files that have addresses as names: /var/lib/cni/networks/NETWORK/10.1.0.5.", "%s has no leases in it", from)
		}
		return b, nil
	}
	in := io.Reader(a.stdin)
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return nil, fail(exitNotFound, "Name a directory of leases, a document that `fairlead ipam export` wrote, or - for standard input.", "%w", err)
		}
		defer f.Close()
		in = f
	}
	doc := exported{Book: &ipam.Book{}}
	d := json.NewDecoder(in)
	d.DisallowUnknownFields()
	err := d.Decode(&doc)
	if err == nil && d.More() {
		err = errors.New("more than one document")
	}
	switch {
	case err != nil:
		return nil, usage("%s: want a document of `fairlead ipam export`: %w", from, err)
	case doc.Version != 1:
		return nil, fail(exitFailure, "A newer fairlead wrote it, or it is something else.", "%s: its version is %d, and this fairlead reads version 1", from, doc.Version)
	case slices.ContainsFunc(doc.Leases, func(l ipam.Lease) bool { return !l.Address.IsValid() || l.ContainerID == "" }):
		return nil, usage("%s: a lease has no address or no containerID", from)
	}
	return doc.Book, nil
}
