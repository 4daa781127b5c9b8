package docgen

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/target"
	"github.com/fairlead-cni/fairlead/internal/txtar"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// An example is a whole list that has a plugin in it, and what an ADD makes of it.
type example struct {
	intro, name, conflist string
	capabilities          string // what the runtime gives, a JSON object; empty is nothing
	plan                  string // empty for an allocator, whose list is about another plugin
}

// readExample reads a plugin's testdata/example.txtar: what the example is, "conflist", and "capabilities" where the
// runtime has a say. The plan is what the list makes, so that no page can show another's.
func readExample(path string, p sdk.Plugin) (*example, error) {
	archive, err := txtar.ParseFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is missing: the reference page needs an example", path)
	}
	if err != nil {
		return nil, err
	}
	parts := archive.Parts()
	e := &example{intro: strings.TrimSpace(parts[""]), conflist: parts["conflist"],
		capabilities: strings.TrimSpace(parts["capabilities"])}
	list, err := spec.ParseList([]byte(e.conflist))
	if err != nil {
		return nil, err
	}
	e.name = list.Name
	var given map[string]any
	if e.capabilities != "" {
		if err := json.Unmarshal([]byte(e.capabilities), &given); err != nil {
			return nil, fmt.Errorf("capabilities: %w", err)
		}
	}
	if !p.Allocates() {
		e.plan, err = planned(list, given)
	}
	return e, err
}

// planned is what `fairlead plan` says of a list. MAC addresses derive from the machine's ID, but for those that the
// list has.
func planned(list *spec.List, capabilities map[string]any) (string, error) {
	steps, err := target.Plan(list, capabilities)
	if err != nil {
		return "", err
	}
	var source []byte
	for _, p := range list.Plugins {
		conf, err := p.Object.MarshalJSON()
		if err != nil {
			return "", err
		}
		source = append(source, bytes.ToLower(conf)...)
	}
	var b strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&b, "%s\n", s.Type)
		for _, r := range s.Resources {
			fmt.Fprintf(&b, "  %s\n", regexp.MustCompile(`\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b`).ReplaceAllStringFunc(r,
				func(mac string) string {
					if bytes.Contains(source, []byte(mac)) {
						return mac
					}
					return "MAC"
				}))
		}
	}
	return b.String(), nil
}

// heading is what comes before the plan.
func (e *example) heading() string {
	command := "fairlead plan " + e.name
	if e.capabilities != "" {
		command = "CAP_ARGS='" + e.capabilities + "' " + command
	}
	return "`" + command + "` prints what ADD makes. The addresses are examples,\n" +
		"and MAC stands for an address that derives " +
		"from the host and the container:"
}
