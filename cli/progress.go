package cli

import (
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/cli/app"
	"github.com/spf13/cobra"
)

// When a user at a terminal is first told that a command is still at work, and how often then.
const (
	firstWord = time.Second
	nextWords = 10 * time.Second
)

// progress tells a user at a terminal after a second, and then now and then, that a command is still at work. What runs
// until somebody ends it tells nothing.
func progress(a *app.App, c *cobra.Command) (end func()) {
	name := strings.Fields(c.CommandPath() + " ")
	watch, _ := c.Flags().GetBool("watch")
	if len(name) < 2 || watch || !app.IsTerminal(a.Stderr) ||
		!slices.Contains([]string{"add", "check", "del", "doctor", "firewall",
			"gc", "graph", "inspect", "install", "ipam", "ls", "plan", "repair", "status", "support-bundle"}, name[1]) {
		return func() {}
	}
	start, done := time.Now(), make(chan struct{})
	go func() {
		wait := time.NewTimer(firstWord)
		defer wait.Stop()
		for {
			select {
			case <-done:
				return
			case <-wait.C:
				a.Note("%s is still at work, since %v", strings.Join(name[1:], " "),
					time.Since(start).Round(time.Second))
				wait.Reset(nextWords)
			}
		}
	}()
	return func() { close(done) }
}
