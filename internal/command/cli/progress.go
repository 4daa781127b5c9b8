package cli

import (
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/spf13/cobra"
)

// A user at a terminal is told after firstWord, and then every nextWords, that a command is still running.
const (
	firstWord = time.Second
	nextWords = 10 * time.Second
)

// progress starts to tell a user at a terminal that a slow command is still running; end stops it. Commands that run
// until a signal ends them say nothing.
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
				a.Note("%s is still running, since %v", strings.Join(name[1:], " "),
					time.Since(start).Round(time.Second))
				wait.Reset(nextWords)
			}
		}
	}()
	return func() { close(done) }
}
