package netconf

import (
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/cli/app"
	"github.com/fairlead-cni/fairlead/cli/attached"
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

// Selected returns the attachments of a network, or of all networks, that match f, and the errors in the cache.
func Selected(a *app.App, network string, f Filter) (list []attach.Cached, problems []error, err error) {
	if !slices.Contains([]string{"", attached.Alive, attached.Gone, attached.Unknown}, f.State) {
		return nil, nil, app.Usage("--state %q: want alive, gone or unknown", f.State)
	}
	if err := Known(network); err != nil {
		return nil, nil, err
	}
	list, problems = (&attach.Runtime{}).List(network)
	if err := attached.Unseen(problems); err != nil {
		return nil, nil, err
	}
	if f.container != "" {
		found := attached.Find(f.container, list)
		if len(found) == 0 {
			return nil, nil, attached.NotAttached(f.container, list)
		}
		list = found
	}
	return slices.DeleteFunc(list, func(c attach.Cached) bool {
		return f.State != "" && f.State != attached.Describe(c).State
	}), problems, nil
}
