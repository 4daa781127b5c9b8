// Package explain is fairlead explain: it prints texts about plugins, keys, error codes, findings and settings. The
// texts of plugins are in reference.json, which internal/docgen makes from the comments at their keys.
package explain

import (
	_ "embed" // reference.json
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/doctor"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/spelling"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// Reference is the reference of a plugin, as on its page below docs/plugins, or that of a list.
type Reference struct {
	Name     string         `json:"name"`
	Synopsis string         `json:"synopsis"`
	Doc      string         `json:"doc"`
	Keys     []ReferenceKey `json:"keys"`
}

// ReferenceKey is a key of a configuration.
type ReferenceKey struct {
	Path  string `json:"path"`
	Value string `json:"value"`
	Doc   string `json:"doc"`
}

// explained is an entry in the answer of explain.
type explained struct {
	Name string `json:"name"`
	Text string `json:"text"`           // in a few words
	More string `json:"more,omitempty"` // the details

	Value string         `json:"value,omitempty"` // of a key: the type of its value
	Keys  []ReferenceKey `json:"keys,omitempty"`  // of a plugin: its keys
	Fix   string         `json:"fix,omitempty"`
	Look  string         `json:"look,omitempty"`
}

// Command is `fairlead explain`.
func Command(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: "explain PLUGIN|PLUGIN.KEY|FINDING|SETTING|code [CODE]", GroupID: "look",
		Short: "Explain a plugin, a key of its configuration, an error code, or a finding of doctor",
		Long: `Explain a plugin, a key of its configuration, an error code of the protocol, or a finding of "fairlead doctor".
The text is that of the reference pages. KEY may be a path, as errors print it. KEY without a PLUGIN is explained for
each plugin that has it. "list" stands for the keys of a network configuration list, such as cniVersions, and for those
that every plugin in it may have, such as capabilities. "fairlead.json" and "FAIRLEAD_LOG" are the settings of a node.

Exit status: 0 done, 4 no such name.`,
		Example: `  fairlead explain bridge                 what the plugin does, and its keys
  fairlead explain bridge.vlanTrunk       a key, and those inside of it
  fairlead explain mtu                    a key, for each plugin that has it
  fairlead explain list                   the keys of a list itself
  fairlead explain code 11                an error code
  fairlead explain bridge-missing         a finding
  fairlead explain fairlead.json          the settings of this node`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 2 && args[0] == "code" {
				return nil
			}
			return app.Operands("NAME")(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			all, err := explanations(args)
			if err != nil {
				return err
			}
			if a.JSON() {
				return a.PrintJSON(struct {
					Explained []explained `json:"explained"`
				}{all})
			}
			s := a.Style(a.Stdout)
			for i, e := range all {
				if i > 0 {
					a.Print("\n")
				}
				e.print(a, s)
			}
			return nil
		},
		ValidArgsFunction: completeExplain,
	}
}

// explanations returns the explanations of what the arguments name.
func explanations(args []string) (all []explained, err error) {
	if args[0] == "code" {
		return explainedCodes(args[1:])
	}
	if _, err := strconv.Atoi(args[0]); err == nil {
		return explainedCodes(args)
	}
	name := strings.TrimPrefix(plainPath(args[0]), "plugins.") // errors put this before a key
	var names []string
	for _, k := range doctor.FindingKinds() {
		id := string(k.ID)
		names = append(names, id)
		if strings.EqualFold(id, name) {
			severity := "A fault"
			if k.Warning {
				severity = "A warning"
			}
			text := severity + " that doctor finds: " + k.What + "."
			return []explained{{Name: id, Text: text, More: k.Why, Fix: k.Fix, Look: k.Look}}, nil
		}
	}
	for _, e := range explainedSettings() {
		base := filepath.Base(e.Name)
		names = append(names, base)
		if strings.EqualFold(e.Name, args[0]) || strings.EqualFold(base, args[0]) {
			return []explained{e}, nil
		}
		for _, k := range e.Keys {
			if strings.EqualFold(k.Path, name) || strings.EqualFold(base+"."+k.Path, name) {
				all = append(all, explained{Name: e.Name + ": " + k.Path, Text: k.Doc, Value: k.Value})
			}
		}
	}
	refs, err := allReferences()
	if err != nil {
		return nil, err
	}
	for _, r := range refs {
		names = append(names, r.Name)
		rest, of := strings.CutPrefix(strings.ToLower(name), strings.ToLower(r.Name))
		switch {
		case of && rest == "":
			first, more, _ := strings.Cut(r.Doc, "\n\n")
			if !strings.EqualFold(first, r.Synopsis+".") { // the text already begins with it
				more = r.Doc
			}
			return []explained{{Name: r.Name, Text: r.Synopsis, More: more, Keys: r.Keys}}, nil
		case of && rest[0] == '.':
			return r.key(rest[1:])
		}
		if found := r.find(name); len(found) > 0 {
			all = append(all, found...)
		}
		for _, k := range r.Keys {
			names = append(names, plainPath(k.Path))
		}
	}
	if len(all) > 0 {
		return all, nil
	}
	return nil, unexplained(args[0], names)
}

// key explains a key of r. If there is none, the error names the most similar one.
func (r Reference) key(path string) ([]explained, error) {
	if found := r.find(path); len(found) > 0 {
		return found, nil
	}
	var names []string
	for _, k := range r.Keys {
		names = append(names, plainPath(k.Path))
	}
	slices.Sort(names)
	hint := fmt.Sprintf("`fairlead explain %s` lists the keys of the plugin.", r.Name)
	if strings.HasPrefix(path, "ipam.") {
		hint += " Those of ipam belong to the IPAM plugin: host-local, cluster, static or dhcp."
	}
	name := r.Name + "." + path
	// The plugin's name does not make two keys similar.
	if near, ok := spelling.Nearest(path, slices.Compact(names)); ok {
		return nil, app.Fail(app.ExitNotFound, hint, "explain %q: nothing has that name; did you mean %q?", name,
			r.Name+"."+near)
	}
	return nil, app.Fail(app.ExitNotFound, hint, "explain %q: nothing has that name", name)
}

// find returns the keys of r at a path, which may lack its beginning, such as "ipam.".
func (r Reference) find(path string) (found []explained) {
	for _, k := range r.Keys {
		have := plainPath(k.Path)
		if !strings.EqualFold(have, path) && !strings.HasSuffix(strings.ToLower(have), "."+strings.ToLower(path)) {
			continue
		}
		e := explained{Name: r.Name + "." + k.Path, Text: k.Doc, Value: k.Value}
		for _, in := range r.Keys {
			if strings.HasPrefix(plainPath(in.Path), have+".") {
				e.Keys = append(e.Keys, in)
			}
		}
		found = append(found, e)
	}
	if i := slices.IndexFunc(found, func(e explained) bool {
		return strings.EqualFold(plainPath(e.Name), r.Name+"."+path)
	}); i > 0 { // the key itself comes before keys of that name elsewhere
		found[0], found[i] = found[i], found[0]
	}
	return found
}

// plainPath returns a path without the indices of lists.
func plainPath(path string) string {
	return regexp.MustCompile(`\[[0-9]*\]`).ReplaceAllString(path, "")
}

// unexplained returns the error for an unknown name. It names the most similar one.
func unexplained(name string, among []string) error {
	hint := "`fairlead plugins` lists the plugins, `fairlead explain PLUGIN` the keys of one, and `fairlead explain " +
		"code` " +
		"the codes; docs/doctor.md has the findings."
	slices.Sort(among)
	if near, ok := spelling.Nearest(plainPath(name), slices.Compact(among)); ok {
		return app.Fail(app.ExitNotFound, hint, "explain %q: nothing has that name; did you mean %q?", name, near)
	}
	return app.Fail(app.ExitNotFound, hint, "explain %q: nothing has that name", name)
}

// explainedCodes explains a code, or all codes.
func explainedCodes(args []string) (all []explained, err error) {
	var number int
	if len(args) > 0 {
		if number, err = strconv.Atoi(args[0]); err != nil {
			return nil, app.Usage("code %q: want a number, such as 11", args[0])
		}
	}
	for _, c := range codes() {
		if len(args) > 0 && number != int(c.code) {
			continue
		}
		exit, hint := advice.ExplainCode(c.code)
		all = append(all, explained{Name: "code " + strconv.Itoa(int(c.code)), Text: c.text, Look: hint,
			More: fmt.Sprintf("The commands of fairlead then end with exit status %d.", exit)})
	}
	switch {
	case len(all) > 0:
		return all, nil
	case number >= 100:
		return []explained{{Name: "code " + args[0],
			Text: "a plugin's own: the specification leaves the codes from 100 on to plugins; those of fairlead " +
				"use only 999"}}, nil
	}
	return nil, app.Fail(app.ExitNotFound, "`fairlead explain code` lists the codes.",
		"code %d: neither the specification nor fairlead defines it", number)
}

// codeText is what a code of the protocol means.
type codeText struct {
	code spec.Code
	text string
}

func codes() []codeText {
	return []codeText{
		{spec.CodeVersion, "the plugin does not support the configuration's cniVersion"},
		{spec.CodeUnsupported, "a key of the configuration, or its value, is not supported; the message names both"},
		{spec.CodeUnknown, "the container is unknown, or does not exist"},
		{spec.CodeEnvironment, "an environment variable of the call is missing or wrong, such as CNI_IFNAME or " +
			"CNI_ARGS"},
		{spec.CodeIO, "reading or writing failed, for example of the configuration or a lease"},
		{spec.CodeDecode, "the configuration is not JSON, or a value has the wrong type"},
		{spec.CodeConfig, "the configuration is invalid: a value is out of range, missing, or contradicts another"},
		{spec.CodeNetns, "the network namespace is the host's, or does not exist (a code of the reference's library)"},
		{spec.CodeTryAgain, "a temporary condition: the runtime should try again later"},
		{spec.CodeUnavailable, "STATUS: the plugin cannot serve an ADD now"},
		{spec.CodeLimited, "STATUS: as code 50; in addition, existing attachments may have limited connectivity"},
		{spec.CodeInternal, "an error that has no code of its own"},
	}
}

// references is what there is to say of a list and of each plugin, a []Reference in JSON. `make generate` writes it
// from the comments at the keys.
//
//go:embed reference.json
var references string

func allReferences() (all []Reference, err error) {
	return all, json.Unmarshal([]byte(references), &all)
}

func (e explained) print(a *app.App, s term.Style) {
	title := s.Bold(e.Name)
	if e.Value != "" {
		title += term.Sprintf("  %s", e.Value)
	}
	a.Print("%s\n", title)
	paragraph(a, e.Text, "  ")
	if e.More != "" {
		for part := range strings.SplitSeq(e.More, "\n\n") {
			a.Print("\n")
			paragraph(a, part, "  ")
		}
	}
	if e.Fix != "" {
		a.Print("\n")
		paragraph(a, "Fix: "+e.Fix, "  ")
	}
	if e.Look != "" {
		a.Print("\n")
		paragraph(a, "Look: "+e.Look, "  ")
	}
	if len(e.Keys) > 0 {
		a.Print("\n  keys:\n")
	}
	for _, k := range e.Keys {
		a.Print("    %s  %s\n", s.Bold(k.Path), k.Value)
		paragraph(a, k.Doc, "        ")
	}
}

// paragraph prints a text with lines of readable length.
func paragraph(a *app.App, text, indent string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(indent)+len(line)+1+len(word) > 100 {
			a.Print("%s%s\n", indent, line)
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	if line != "" {
		a.Print("%s%s\n", indent, line)
	}
}

// completeExplain completes the names that explain knows, for a shell: after a plugin's name, its keys.
func completeExplain(_ *cobra.Command, args []string, word string) (names []string, _ cobra.ShellCompDirective) {
	directive := cobra.ShellCompDirectiveNoFileComp
	switch {
	case len(args) == 1 && args[0] == "code":
		for _, c := range codes() {
			names = append(names, strconv.Itoa(int(c.code))+"\t"+c.text)
		}
		return names, directive
	case len(args) > 0:
		return nil, directive
	}
	refs, _ := allReferences()
	for _, r := range refs {
		names = append(names, r.Name+"\t"+r.Synopsis)
		for _, k := range r.Keys {
			if strings.HasPrefix(word, r.Name+".") {
				names = append(names, r.Name+"."+plainPath(k.Path)+"\t"+k.Value)
			}
		}
	}
	for _, k := range doctor.FindingKinds() {
		names = append(names, string(k.ID)+"\t"+k.What)
	}
	for _, e := range explainedSettings() {
		names = append(names, filepath.Base(e.Name)+"\t"+e.Text)
	}
	return append(names, "code\tan error code of the protocol"), directive
}
