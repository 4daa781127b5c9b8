package snapshot

import (
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/spf13/cobra"
)

// Filter holds the filter flags of ls.
type Filter struct {
	container, State string
	All              bool
}

// FilterFlags adds the filter flags of ls to a command.
func FilterFlags(c *cobra.Command, f *Filter) {
	c.Flags().StringVar(&f.container, "container", "",
		"only this `CONTAINER`: pod, name, ID or its beginning, network namespace")
	c.Flags().StringVar(&f.State, "state", "", "only attachments in this `STATE`: alive, gone or unknown")
	c.Flags().BoolVar(&f.All, "all", false, "also the attachments of "+attached.LoopbackNetwork)
	c.RegisterFlagCompletionFunc("container", attached.CompleteContainers)
	c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{attached.Alive, attached.Gone,
		attached.Unknown}, cobra.ShellCompDirectiveNoFileComp))
}

// Select is Open for the attachments of a network, or of all networks, that match f. It fails if none can be read.
func Select(network string, f Filter) (s *Snapshot, err error) {
	if !slices.Contains([]string{"", attached.Alive, attached.Gone, attached.Unknown}, f.State) {
		return nil, app.Usage("--state %q: want alive, gone or unknown", f.State)
	}
	if err := netconf.Known(network); err != nil {
		return nil, err
	}
	if s, err = Open(network); err != nil {
		return nil, err
	}
	if err = s.selected(f); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// selected leaves the attachments that match f.
func (s *Snapshot) selected(f Filter) error {
	if f.container != "" {
		found := attached.Find(f.container, s.All)
		if len(found) == 0 {
			return attached.NotAttached(f.container, s.All)
		}
		s.All = found
	}
	s.All = slices.DeleteFunc(s.All, func(c attach.Cached) bool { return f.State != "" && f.State != s.State(c) })
	return nil
}
