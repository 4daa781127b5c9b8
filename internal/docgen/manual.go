package docgen

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairlead-cni/fairlead/internal/command/cli"
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
		m.lines(synopsis(c))
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
	m.lines(seeAlso(c))
	return m.Bytes()
}

// synopsis is the usage line, the command bold. A command that only has others takes one.
func synopsis(c *cobra.Command) string {
	if c.HasSubCommands() { // by itself it only says what they are
		return bold(c.CommandPath()) + " " + italic("COMMAND") + " [" + italic("option") + "...]"
	}
	_, rest, _ := strings.Cut(c.UseLine(), c.CommandPath())
	return bold(c.CommandPath()) + plainText(rest)
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
		m.item(bold(manualName(sub))+"("+manualSection(sub)+")", sub.Short)
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
		term := bold("--" + f.Name)
		if f.Shorthand != "" {
			term = bold("-"+f.Shorthand) + ", " + term
		}
		if value != "" {
			term += " " + italic(value)
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
			refs = append(refs, bold(manualName(p))+"(1)")
		}
		if c.Name() != "environment" {
			refs = append(refs, bold("fairlead-environment")+"(7)")
		}
	} else {
		refs = append(refs, bold("cni-bridge")+"(5)")
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
		m.text(r.example.heading())
		m.literal(r.example.plan)
	}
	m.keys("KEYS", r.fields, false)
	m.keys("KEYS THAT THE RUNTIME SETS", r.fields, true)
	m.section("KEYS OF EVERY PLUGIN")
	m.text(r.everybodys())
	m.section("SEE ALSO")
	m.lines(bold("fairlead-plan") + "(1), " + bold("fairlead-net-ls") + "(1), and " +
		escaped(docDir+"/plugins/"+r.Name+".md"))
	return m.Bytes()
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
		m.item(bold(path)+" ("+plainText(f.shape.values())+")", f.doc)
	})
}

func lower(s string) string {
	if s == "" || len(s) > 1 && strings.ToUpper(s[1:2]) == s[1:2] {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

// A manual is a page in roff. The pages of package cobra/doc lack the topics, what each command does, and the names of
// values. A page has no date, for it is the same whenever it is made.
type manual struct{ bytes.Buffer }

// newManual begins a page: name, section of the manual, and what it is in a line.
func newManual(name, section, line string) *manual {
	m := &manual{}
	m.WriteString(".\\\" Generated by `make generate`: do not edit.\n.nh\n")
	fmt.Fprintf(m, ".TH %q %q \"\" \"Fairlead\" \"Fairlead\"\n", strings.ToUpper(name), section)
	m.section("NAME")
	m.lines(plainText(name + " - " + line))
	return m
}

func (m *manual) section(title string) { fmt.Fprintf(m, ".SH %s\n", title) }

// paragraph begins one, but for the first of a section.
func (m *manual) paragraph() {
	before := strings.TrimSuffix(m.String(), "\n")
	if last := before[strings.LastIndexByte(before, '\n')+1:]; !strings.HasPrefix(last, ".SH ") {
		m.WriteString(".PP\n")
	}
}

// text is paragraphs as our comments and helps have them: an empty line ends one, and what is indented stands as it is.
func (m *manual) text(s string) {
	for paragraph := range strings.SplitSeq(s, "\n\n") {
		indented, flowing := "", ""
		flow := func() {
			if flowing != "" {
				m.paragraph()
				m.lines(plainText(strings.TrimSuffix(flowing, "\n")))
			}
			flowing = ""
		}
		for line := range strings.Lines(paragraph) {
			// cobra's help of completion has headings
			line = strings.TrimPrefix(strings.TrimRight(line, " \n"), "#### ")
			as, ok := strings.CutPrefix(strings.Replace(line, "\t", "  ", 1), "  ")
			if ok {
				flow()
				indented += as + "\n"
				continue
			}
			m.literal(indented)
			indented = ""
			flowing += line + "\n"
		}
		flow()
		m.literal(indented)
	}
}

// literal is text that stands as it is.
func (m *manual) literal(s string) {
	if s == "" {
		return
	}
	m.WriteString(".PP\n.RS\n.EX\n")
	m.lines(escaped(strings.TrimRight(s, "\n")))
	m.WriteString(".EE\n.RE\n")
}

// item is a term, which is in roff already, and what is to be said of it.
func (m *manual) item(term, says string) {
	m.WriteString(".TP\n")
	m.lines(term + "\n" + plainText(says))
}

// lines writes text in roff, in which no line is a request.
func (m *manual) lines(s string) {
	for line := range strings.SplitSeq(s, "\n") {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			m.WriteString(`\&`)
		}
		m.WriteString(line + "\n")
	}
}

func bold(s string) string { return `\fB` + escaped(s) + `\fP` }

func italic(s string) string { return `\fI` + escaped(s) + `\fP` }

// escaped is s in roff. A hyphen is a minus, which is what can be copied into a shell.
func escaped(s string) string { return strings.NewReplacer(`\`, `\\`, "-", `\-`).Replace(s) }

// plainText is s in roff; what stands between grave accents, which is code, is bold.
func plainText(s string) string {
	parts := strings.Split(escaped(s), "`")
	var b strings.Builder
	for i, part := range parts {
		switch {
		case i == 0:
		case i%2 == 1:
			b.WriteString(`\fB`)
		default:
			b.WriteString(`\fR`)
		}
		b.WriteString(part)
	}
	return b.String()
}
