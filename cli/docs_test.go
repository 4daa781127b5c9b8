package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Every command that help lists is in docs/cli.md, and says in its own help what it does.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Short == "" && !c.Hidden {
			t.Errorf("%s does not say what it does", c.CommandPath())
		}
		if c.Runnable() && !c.Hidden && !strings.Contains(string(page), "`"+c.CommandPath()) {
			t.Errorf("docs/cli.md has nothing on %q", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit((&app{}).root())
}
