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

// chainType is the type of the plugin that runs the plugins of a list in one process. Its configuration has them in the
// key "plugins".
const chainType = "chain"

// IsChain reports whether c is a chain: a plugin that runs the plugins of a list in one process.
func (c *Conf) IsChain() bool { return c.Type == chainType }

// WrittenOut returns l with each chain replaced by its plugins: a list that makes the same attachments. A plugin keeps
// only the capabilities that the chain has too, because a runtime passes it no others. A chain that cannot be read
// stays unchanged.
func (l *List) WrittenOut() *List {
	if !slices.ContainsFunc(l.Plugins, (*Conf).IsChain) {
		return l
	}
	out := *l
	out.Plugins = nil
	for _, c := range l.Plugins {
		inner, err := c.inner()
		if !c.IsChain() || err != nil {
			inner = []*Conf{c}
		}
		out.Plugins = append(out.Plugins, inner...)
	}
	return &out
}

// Undeclared returns an error for each capability of a plugin in a chain that the chain itself does not declare.
func (c *Conf) Undeclared() error {
	plugins, err := c.plugins()
	if !c.IsChain() || err != nil {
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

// plugins returns the plugins of a chain as they are written there.
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

// inner returns the plugins of a chain, each with the name, version, capabilities and args that it gets there.
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

// Chain returns the document of l with all plugins in one chain. Everything else in the list stays. Folded reports
// whether plugins of a drop-in directory are among them; the new document does not use the directory.
func (l *List) Chain() (doc []byte, folded bool, err error) {
	flat := l.WrittenOut()
	if len(flat.Plugins) == 0 {
		return nil, false, fmt.Errorf("network %s has no plugin", l.Name)
	}
	head := fmt.Sprintf(`{"type": %q, `, chainType)
	if all := slices.Sorted(maps.Keys(flat.Capabilities())); len(all) > 0 {
		for i, name := range all {
			key, _ := encode(name) // a string can be encoded
			all[i] = string(key) + ": true"
		}
		head += `"capabilities": {` + strings.Join(all, ", ") + "}, "
	}
	return l.with(flat.Plugins, head+`"plugins": [`, "]}")
}

// WriteOut is the inverse of Chain. If each plugin of the document begins a line, as Chain writes it, the result has
// the same bytes as the list that Chain was given.
func (l *List) WriteOut() (doc []byte, folded bool, err error) {
	return l.with(l.WrittenOut().Plugins, "", "")
}

// with returns the document of l with other plugins, each as it was written and at the beginning of a line. They are
// put between head and tail, if these are not empty. Everything else stays as it is.
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
	if folded = len(here) < len(l.Plugins); folded {
		err = errors.Join(err, o.Set("loadOnlyInlinedPlugins", true))
	}
	if err != nil {
		return nil, false, err
	}
	text := bytes.TrimSpace(l.Raw)
	if folded || !ok || !bytes.ContainsRune(text, '\n') {
		text = indent(mustRaw(o))
	}
	d, _ := openObject(text, "the configuration") // it is that of l.Raw, or of o
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

// lead returns the white space at the beginning of the line that contains the offset at, and whether only white space
// precedes the offset in that line.
func lead(text []byte, at int) (space string, first bool) {
	line := text[bytes.LastIndexByte(text[:at], '\n')+1 : at]
	rest := bytes.TrimLeft(line, " \t")
	return string(line[:len(line)-len(rest)]), len(rest) == 0
}

// mustRaw returns an object as JSON. It cannot fail, because an Object is JSON already.
func mustRaw(o Object) json.RawMessage {
	raw, _ := o.MarshalJSON()
	return raw
}

// Fold returns the value of a key, ignoring case. An exact match is preferred.
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
