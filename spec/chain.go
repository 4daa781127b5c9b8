package spec

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// ChainType is the type of the plugin that runs the plugins of a list in one process. They stand under "plugins" in
// its own configuration.
const ChainType = "chain"

// WrittenOut is l with the plugins of each chain in that one's place: the list that attaches the same. A plugin's
// capabilities are those that the chain has as well, for a runtime gives it no others. A chain that cannot be read
// stays as it is.
func (l *List) WrittenOut() *List {
	if !slices.ContainsFunc(l.Plugins, func(c *Conf) bool { return c.Type == ChainType }) {
		return l
	}
	out := *l
	out.Plugins = nil
	for _, c := range l.Plugins {
		inner, err := c.inner()
		if c.Type != ChainType || err != nil {
			inner = []*Conf{c}
		}
		out.Plugins = append(out.Plugins, inner...)
	}
	return &out
}

// Undeclared is an error where a plugin of a chain has capabilities that the chain itself has not.
func (c *Conf) Undeclared() error {
	plugins, err := c.plugins()
	if c.Type != ChainType || err != nil {
		return nil
	}
	var errs []error
	for i, p := range plugins {
		for _, name := range slices.Sorted(maps.Keys(p.Capabilities)) {
			if p.Capabilities[name] && !c.Capabilities[name] {
				errs = append(errs, Errorf(CodeConfig, "capabilities: lacks %q, which plugins[%d] (%s) has, "+
					"so the runtime does not give it; `fairlead net chain FILE` writes it", name, i, p.Type))
			}
		}
	}
	return errors.Join(errs...)
}

// plugins are those of a chain, as they stand there.
func (c *Conf) plugins() (all []*Conf, err error) {
	raw, _ := c.Object.Fold("plugins")
	var plugins []json.RawMessage
	if err := json.Unmarshal(raw, &plugins); err != nil {
		return nil, err
	}
	for i, raw := range plugins {
		p, err := ParsePlugin(raw, "plugins["+strconv.Itoa(i)+"]")
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// inner are the plugins of a chain, each with what it is given there.
func (c *Conf) inner() ([]*Conf, error) {
	all, err := c.plugins()
	if err != nil {
		return nil, err
	}
	args, told := c.Object.Fold("args")
	for _, p := range all {
		p.Name, p.CNIVersion = c.Name, c.CNIVersion
		for name := range p.Capabilities {
			if !c.Capabilities[name] {
				p.Capabilities[name] = false
			}
		}
		if told {
			if err := p.Object.Set("args", args); err != nil {
				return nil, err
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("plugins: is empty")
	}
	return all, nil
}

// Chain is the document of l with all of its plugins in one chain. What else the
// list says stays. Folded reports whether plugins of a drop-in folder are among them, which the new document does
// without.
func (l *List) Chain() (doc []byte, folded bool, err error) {
	flat := l.WrittenOut()
	if len(flat.Plugins) == 0 {
		return nil, false, fmt.Errorf("network %s has no plugin", l.Name)
	}
	head := fmt.Sprintf(`{"type": %q, `, ChainType)
	if all := slices.Sorted(maps.Keys(flat.Capabilities())); len(all) > 0 {
		for i, name := range all {
			key, err := encode(name)
			if err != nil {
				return nil, false, err
			}
			all[i] = string(key) + ": true"
		}
		head += `"capabilities": {` + strings.Join(all, ", ") + "}, "
	}
	return l.with(flat.Plugins, head+`"plugins": [`, "]}")
}

// WriteOut is the opposite of Chain. Of a document with each plugin at the beginning of a line, as Chain writes it, it
// makes the same bytes that Chain was given.
func (l *List) WriteOut() (doc []byte, folded bool, err error) {
	return l.with(l.WrittenOut().Plugins, "", "")
}

// with is the document of l with other plugins, each as it was written and at the beginning of a line. They stand
// between head and tail, where these are not empty. All else stays as it is.
func (l *List) with(plugins []*Conf, head, tail string) (doc []byte, folded bool, err error) {
	o, err := ParseObject(l.Raw)
	if err != nil {
		return nil, false, err
	}
	var here []json.RawMessage
	raw, ok := o.Get("plugins")
	if ok {
		err = json.Unmarshal(raw, &here)
	} else {
		err = o.Set("plugins", []any{})
	}
	if err != nil {
		return nil, false, err
	}
	if folded = len(here) < len(l.Plugins); folded {
		if err := o.Set("loadOnlyInlinedPlugins", true); err != nil {
			return nil, false, err
		}
	}
	text := bytes.TrimSpace(l.Raw)
	if folded || !ok || !bytes.ContainsRune(text, '\n') {
		if text, err = o.MarshalJSON(); err != nil {
			return nil, false, err
		}
		text = indent(text)
	}
	d, bad := openObject(text, "the configuration")
	if bad != nil {
		return nil, false, bad
	}
	var at node
	base, unit := "", "  "
	for _, m := range d.root.members {
		if m.key == "plugins" {
			at = m.node
			base, _ = lead(text, m.at)
			unit = cmp.Or(base, unit)
		}
	}
	if len(at.items) > 0 {
		if deeper, first := lead(text, at.items[0].start); first && strings.HasPrefix(deeper, base) && deeper != base {
			unit = deeper[len(base):]
		}
	}
	deep := base + unit
	if head != "" {
		head, tail, deep = "\n"+deep+head, "\n"+deep+tail, deep+unit
	}
	var all []string
	for _, p := range plugins {
		raw := mustRaw(p.Object)
		was := ""
		if i := bytes.Index(l.Raw, raw); i >= 0 {
			was, _ = lead(l.Raw, i)
		}
		all = append(all, "\n"+deep+strings.ReplaceAll(string(raw), "\n"+was, "\n"+deep))
	}
	array := "[" + head + strings.Join(all, ",") + tail + "\n" + base + "]"
	return slices.Concat(text[:at.start], []byte(array), text[at.end:]), folded, nil
}

// lead is the white space that the line begins with in which an offset is, and whether nothing else comes before the
// offset.
func lead(text []byte, at int) (space string, first bool) {
	line := text[bytes.LastIndexByte(text[:at], '\n')+1 : at]
	rest := bytes.TrimLeft(line, " \t")
	return string(line[:len(line)-len(rest)]), len(rest) == 0
}

// mustRaw is an object, which is JSON already.
func mustRaw(o Object) json.RawMessage {
	raw, _ := o.MarshalJSON()
	return raw
}

// Fold is the value of a key in any case, the exact one where that is there too.
func (o Object) Fold(key string) (json.RawMessage, bool) {
	if raw, ok := o.Get(key); ok {
		return raw, true
	}
	for k, raw := range o.All() {
		if strings.EqualFold(k, key) {
			return slices.Clone(raw), true
		}
	}
	return nil, false
}
