package docgen

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairlead-cni/fairlead/cli"
)

// docDir is where the other documents are installed.
const docDir = "/usr/share/doc/fairlead"

// manuals writes a manual page for each command, and one for each topic of `fairlead help`.
func manuals(_ string, files Files) error {
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" {
			return
		}
		files["docs/man/"+manualName(c)+"."+manualSection(c)] = commandManual(c)
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(cli.Command())
	return nil
}

func manualName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manualSection is 1 for a command and 7 for a topic.
func manualSection(c *cobra.Command) string {
	if c.IsAdditionalHelpTopicCommand() {
		return "7"
	}
	return "1"
}

func commandManual(c *cobra.Command) []byte {
	m := newManual(manualName(c), manualSection(c), lower(c.Short))
	topic := c.IsAdditionalHelpTopicCommand()
	if !topic {
		m.section("SYNOPSIS")
		m.WriteString(synopsis(c) + "\n")
	}
	m.section("DESCRIPTION")
	says := c.Long
	if says == "" {
		says = c.Short + "."
	}
	m.text(says)
	m.commands(c)
	if !topic && !c.DisableFlagParsing {
		c.InitDefaultHelpFlag()
		m.flags("OPTIONS", c.NonInheritedFlags())
		m.flags("OPTIONS OF ALL COMMANDS", c.InheritedFlags())
	}
	if c.Example != "" {
		m.section("EXAMPLES")
		m.text(c.Example)
	}
	m.section("SEE ALSO")
	m.WriteString(seeAlso(c) + "\n")
	return m.page()
}

// synopsis is the usage line, the command bold. A command that only has others takes one.
func synopsis(c *cobra.Command) string {
	if c.HasSubCommands() { // by itself it only says what they are
		return "**" + c.CommandPath() + "** *COMMAND* [*option*...]"
	}
	_, rest, _ := strings.Cut(c.UseLine(), c.CommandPath())
	return "**" + c.CommandPath() + "**" + plainText(rest)
}

func (m *manual) commands(c *cobra.Command) {
	var subs []*cobra.Command
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			subs = append(subs, sub)
		}
	}
	if len(subs) == 0 {
		return
	}
	m.section("COMMANDS")
	for _, sub := range subs {
		m.item("**"+manualName(sub)+"**("+manualSection(sub)+")", sub.Short)
	}
}

func (m *manual) flags(title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	m.section(title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, says := pflag.UnquoteUsage(f)
		term := "**--" + f.Name + "**"
		if f.Shorthand != "" {
			term = "**-" + f.Shorthand + "**, " + term
		}
		if value != "" {
			term += " *" + value + "*"
		}
		if d := f.DefValue; !slices.Contains([]string{"", "false", "0", "[]", "0s"}, d) {
			says += fmt.Sprintf(" (default %s)", d)
		}
		m.item(term, says)
	})
}

func seeAlso(c *cobra.Command) string {
	refs := []string{}
	if p := c.Parent(); p != nil {
		for ; p != nil; p = p.Parent() {
			refs = append(refs, "**"+manualName(p)+"**(1)")
		}
		if c.Name() != "environment" {
			refs = append(refs, "**fairlead-environment**(7)")
		}
	} else {
		refs = append(refs, "**cni-bridge**(5)")
	}
	return strings.Join(refs, ", ") + ", and " + docDir + "/cli.md"
}

// manual is the page of a plugin's configuration.
func (r *reference) manual() []byte {
	m := newManual("cni-"+r.Name, "5", r.Synopsis)
	m.section("DESCRIPTION")
	m.text(r.doc)
	m.section("EXAMPLE")
	m.text(r.example.intro)
	m.literal(r.example.conflist)
	m.text("Lists are files in /etc/cni/net.d. This one is " + docDir + "/examples/" + r.Name + ".conflist.")
	if r.example.plan != "" {
		m.text(r.example.says())
		m.literal(r.example.plan)
	}
	m.keys("KEYS", r.fields, false)
	m.keys("KEYS THAT THE RUNTIME SETS", r.fields, true)
	m.section("KEYS OF EVERY PLUGIN")
	m.text(r.everybodys())
	m.section("SEE ALSO")
	fmt.Fprintf(m, "**fairlead-plan**(1), **fairlead-net-ls**(1), and %s/plugins/%s.md\n", docDir, r.Name)
	return m.page()
}

func (m *manual) keys(title string, fields []field, byRuntime bool) {
	chosen := choose(fields, byRuntime)
	if len(chosen) == 0 && byRuntime {
		return
	}
	m.section(title)
	if len(chosen) == 0 {
		m.text("This plugin has no keys of its own.")
	}
	walk(chosen, "", func(path string, f field) {
		m.item("**"+path+"** ("+plainText(f.shape.values())+")", f.doc)
	})
}

func lower(s string) string {
	if s == "" || len(s) > 1 && strings.ToUpper(s[1:2]) == s[1:2] {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

// A manual is a page as Markdown, which md2man, that cobra's own pages are made by too, turns into roff. Those of
// package cobra/doc lack the topics, what each command does, and the names of values. A page has no date, for it is the
// same whenever it is made.
type manual struct{ bytes.Buffer }

// newManual begins a page: name, section of the manual, and what it is in a line.
func newManual(name, section, line string) *manual {
	m := &manual{}
	fmt.Fprintf(m, "%% %q %q \"\" \"Fairlead\" \"Fairlead\"\n", strings.ToUpper(name), section)
	m.section("NAME")
	fmt.Fprintf(m, "%s - %s\n", name, plainText(line))
	return m
}

// page is m in roff, without the empty lines that md2man has before requests, for each would be one on the page; and a
// hyphen is a minus, which is what can be copied into a shell.
func (m *manual) page() []byte {
	roff := regexp.MustCompile(`\n+(\n\.[A-Z])`).ReplaceAll(md2man.Render(m.Bytes()), []byte("$1"))
	roff = regexp.MustCompile(`(?m)^[^.].*`).ReplaceAllFunc(roff, func(line []byte) []byte {
		return regexp.MustCompile(`\\?-`).ReplaceAll(line, []byte(`\-`))
	})
	return append([]byte(".\\\" Generated by `make generate`: do not edit.\n"), roff...)
}

func (m *manual) section(title string) { fmt.Fprintf(m, "\n# %s\n", title) }

// text is paragraphs as our comments and helps have them: an empty line ends one, and what is indented stands as it is.
func (m *manual) text(s string) {
	for paragraph := range strings.SplitSeq(s, "\n\n") {
		indented := ""
		for line := range strings.Lines(paragraph) {
			// cobra's help of completion has headings
			line = strings.TrimPrefix(strings.TrimRight(line, " \n"), "#### ")
			as, ok := strings.CutPrefix(strings.Replace(line, "\t", "  ", 1), "  ")
			if ok {
				indented += as + "\n"
				continue
			}
			m.literal(indented)
			indented = ""
			m.WriteString(plainText(line) + "\n")
		}
		m.literal(indented)
		m.WriteString("\n")
	}
}

// literal is text that stands as it is.
func (m *manual) literal(s string) {
	if s != "" {
		m.WriteString("\n> ```\n> " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n> ") + "\n> ```\n\n")
	}
}

// item is a term, which is marked up already, and what is to be said of it.
func (m *manual) item(term, says string) { fmt.Fprintf(m, "\n%s\n: %s\n", term, plainText(says)) }

// plainText is s with what Markdown takes for its own escaped, but for what stands between grave accents, which is
// code.
func plainText(s string) string {
	parts := strings.Split(s, "`")
	for i := 0; i < len(parts); i += 2 {
		parts[i] = strings.NewReplacer(`\`, `\\`, "*", `\*`, "_", `\_`, "<", `\<`, "[", `\[`, "#", `\#`, "|",
			`\|`).Replace(parts[i])
	}
	return strings.Join(parts, "`")
}
