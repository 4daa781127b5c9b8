package docgen

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairlead-cni/fairlead/internal/command/cli"
	"github.com/fairlead-cni/fairlead/plugin"
)

// plain is a page without what is roff's.
func plain(page []byte) string {
	return strings.NewReplacer(`\\`, `\`, `\-`, "-", `\fB`, "", `\fI`, "", `\fR`, "", `\fP`, "", `\e`, `\`, `\(dq`, `"`, `\(aq`, "'", `\&`, "").Replace(string(page))
}

// Every command has a page, and it has every flag of the command.
func TestCommandManuals(t *testing.T) {
	files := generated(t)
	pages := 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" {
			return
		}
		section := ".1"
		if !c.Runnable() && !c.HasSubCommands() {
			section = ".7"
		}
		name := "docs/man/" + strings.ReplaceAll(c.CommandPath(), " ", "-") + section
		page := plain(files[name])
		if section == ".1" && !strings.Contains(page, c.CommandPath()) {
			t.Errorf("%s is missing, or says nothing of %q", name, c.CommandPath())
		}
		if c.HasAvailableSubCommands() && !strings.Contains(page, c.CommandPath()+" COMMAND") {
			t.Errorf("%s does not say that it takes a command", name)
		}
		pages++
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !c.DisableFlagParsing && !strings.Contains(page, "\n--"+f.Name) && !strings.Contains(page, ", --"+f.Name) {
				t.Errorf("%s lacks --%s", name, f.Name)
			}
		})
		for _, sub := range c.Commands() {
			if !sub.Hidden && sub.Name() != "help" &&
				!strings.Contains(page, strings.ReplaceAll(sub.CommandPath(), " ", "-")+"(") {
				t.Errorf("%s does not lead to %q", name, sub.CommandPath())
			}
			visit(sub)
		}
	}
	visit(cli.Command())
	for name := range files {
		isCommand := !strings.HasPrefix(name, "docs/man/cni-") && name != "docs/man/fairlead-store.1"
		if strings.HasPrefix(name, "docs/man/") && isCommand {
			pages--
		}
	}
	if pages != 0 {
		t.Errorf("%d more commands than pages", pages)
	}
}

// The daemon's flags are told by itself; docs/dhcp.md has them too.
func TestDaemonManual(t *testing.T) {
	page := plain(generated(t)["docs/man/fairlead-dhcp-daemon.1"])
	doc, err := os.ReadFile(root + "/docs/dhcp.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `(-[a-z]+)[ `]").FindAllStringSubmatch(string(doc), -1)
	flags := regexp.MustCompile(`(?m)^(-[a-z]+)\b`).FindAllStringSubmatch(page, -1)
	if len(rows) == 0 || len(rows) != len(flags) {
		t.Errorf("docs/dhcp.md has %d flags, the manual page %d", len(rows), len(flags))
	}
	for _, r := range rows {
		if !strings.Contains(page, "\n"+r[1]+" ") && !strings.Contains(page, "\n"+r[1]+"\n") {
			t.Errorf("the manual page lacks %s", r[1])
		}
	}
}

// A plugin's page has every key that its schema knows.
func TestPluginManuals(t *testing.T) {
	files := generated(t)
	for _, p := range plugin.All() {
		page := plain(files["docs/man/cni-"+p.Name+".5"])
		var schema node
		if err := json.Unmarshal(files["docs/schema/"+p.Name+".schema.json"], &schema); err != nil {
			t.Fatal(err)
		}
		paths := schema.paths("")
		if len(paths) == 0 {
			t.Errorf("%s: the schema has no keys", p.Name)
		}
		for _, path := range paths {
			_, everybodys := everybodys()[path]
			word := strings.Contains(page, "\n"+path+" (")
			if everybodys || strings.HasPrefix(path, "dns.") || path == "type" || path == "ipam.type" {
				continue // said in words
			}
			if !word {
				t.Errorf("docs/man/cni-%s.5 lacks %s", p.Name, path)
			}
		}
	}
}

// A node is what the test reads of a schema.
type node struct {
	Properties           map[string]node
	Items                *node
	AdditionalProperties *node
}

// UnmarshalJSON reads an object; false, which allows nothing, says nothing of keys.
func (n *node) UnmarshalJSON(b []byte) error {
	type plain node
	if string(b) == "false" {
		return nil
	}
	return json.Unmarshal(b, (*plain)(n))
}

// paths are the keys that have no others in them.
func (n *node) paths(at string) (paths []string) {
	for key, sub := range n.Properties {
		path := at + key
		for e := sub.Items; e != nil || sub.AdditionalProperties != nil; e = sub.Items {
			if e == nil {
				e = sub.AdditionalProperties
			}
			if len(e.Properties) == 0 && e.Items == nil {
				break
			}
			sub, path = *e, path+"[]"
		}
		if len(sub.Properties) == 0 { // of a list of lists, the page has the key alone
			paths = append(paths, at+key)
		}
		paths = append(paths, sub.paths(path+".")...)
	}
	return paths
}

// groff has nothing against a page, and each can be read without it ending in the middle.
func TestManualsRender(t *testing.T) {
	dir := t.TempDir()
	for name, page := range generated(t) {
		if !strings.HasPrefix(name, "docs/man/") {
			continue
		}
		file := filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(file, page, 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("groff", "-man", "-Tutf8", "-ww", file)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil || stderr.Len() > 0 {
			t.Errorf("%s: %v\n%s", name, err, stderr.String())
		}
		// bold is a letter over itself
		if !strings.Contains(regexp.MustCompile(".\x08").ReplaceAllString(string(out), ""), "SEE ALSO") {
			t.Errorf("%s does not come to its end", name)
		}
	}
}

// What Markdown and roff take for their own stands on the page as it was written.
func TestManualText(t *testing.T) {
	m := newManual("a-b", "1", `says "it's"`)
	m.text("One `two_x` *three* [four] <five>\n.six_seven_ | #8\n\n  literal \\ `x` *y*\n\n# nine … \\fB")
	got := plain(m.Bytes())
	for _, want := range []string{`.TH "A-B" "1" "" "Fairlead" "Fairlead"`, `a-b - says "it's"`, "One two_x *three* [four] <five>\n.six_seven_ | #8\n", "\nliteral \\ `x` *y*\n", "# nine … \\fB\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
}
