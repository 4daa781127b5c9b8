package docgen

import (
	"fmt"
	"slices"
	"strings"

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
	return m.Bytes()
}

// synopsis is the usage line, the command bold. A command that only has others takes one.
func synopsis(c *cobra.Command) string {
	if c.HasSubCommands() { // by itself it only says what they are
		return bold(c.CommandPath()) + " " + italic("COMMAND") + " [" + italic("option") + "...]"
	}
	_, rest, _ := strings.Cut(c.UseLine(), c.CommandPath())
	return bold(c.CommandPath()) + roff(rest)
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
	begun := false
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		if !begun {
			m.section(title)
			begun = true
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
	return strings.Join(refs, ", ") + ", and " + roff(docDir+"/cli.md")
}

// manual is the page of a plugin's configuration.
func (r *reference) manual() []byte {
	name := "cni-" + r.Name
	m := newManual(name, "5", r.Synopsis)
	m.section("DESCRIPTION")
	m.text(r.doc)
	m.section("EXAMPLE")
	m.text(r.example.intro)
	m.literal(r.example.conflist)
	m.text("It is a file in /etc/cni/net.d, and this one is " + docDir + "/examples/" + r.Name + ".conflist.")
	if r.example.plan != "" {
		m.text(r.example.says())
		m.literal(r.example.plan)
	}
	m.keys("KEYS", r.fields, false)
	m.keys("KEYS THAT THE RUNTIME SETS", r.fields, true)
	m.section("KEYS OF EVERY PLUGIN")
	m.text(r.everybodys())
	m.section("SEE ALSO")
	m.WriteString(bold("fairlead-plan") + "(1), " + bold("fairlead-net-ls") + "(1), and " + roff(docDir+"/plugins/"+r.Name+".md") + "\n")
	return m.Bytes()
}

func (m *manual) keys(title string, fields []field, byRuntime bool) {
	chosen := choose(fields, byRuntime)
	if len(chosen) == 0 && byRuntime {
		return
	}
	m.section(title)
	if len(chosen) == 0 {
		m.text("It has no keys of its own.")
	}
	walk(chosen, "", func(path string, f field) {
		m.item(bold(path)+" ("+inline(f.shape.values())+")", f.doc)
	})
}

func lower(s string) string {
	if s == "" || len(s) > 1 && strings.ToUpper(s[1:2]) == s[1:2] {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}
