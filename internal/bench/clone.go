package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// The reference's plugins take longer for an attachment the more rules there are, and minutes to hours for a thousand.
// So few are attached by them. What these have added to the rules of iptables, or of its nf_tables table, is written
// once more for each of the others, with its own names, addresses and ports, and loaded at once.

// cloneFrom is the number of attachments from which the reference's rules are cloned.
const cloneFrom = 20

// A pattern is what one attachment adds to the rules, and the rules of the others that are to be loaded.
type pattern struct {
	of     attachment
	ip     string
	rules  []ruleLine
	hashed *regexp.Regexp        // names that the reference's plugins derive from a container's
	more   map[string][]ruleLine // by the program that they are saved with
}

func newPattern(of attachment, ip string, rules []ruleLine) *pattern {
	return &pattern{of, ip, rules, regexp.MustCompile(`\bCNI-(DN-)?[0-9a-f]{12,}\b`), map[string][]ruleLine{}}
}

// A ruleLine is a line of a program that prints rules, and where it stands.
type ruleLine struct{ program, where, text string }

// saved is what there is of rules, in the lines that an attachment may add.
func saved() (all []ruleLine, err error) {
	for _, program := range []string{"iptables", "ip6tables"} {
		out, err := exec.Command(program + "-save").Output()
		if err != nil {
			return nil, fmt.Errorf("%s-save: %w", program, err)
		}
		table := ""
		for line := range strings.Lines(string(out)) {
			line = strings.TrimSpace(line)
			switch {
			case strings.HasPrefix(line, "*"):
				table = line
			case strings.HasPrefix(line, ":CNI"), strings.HasPrefix(line, "-A"):
				all = append(all, ruleLine{program, table, line})
			}
		}
	}
	out, err := exec.Command("nft", "list", "tables", "ip").Output()
	if err != nil || !bytes.Contains(out, []byte("table ip cni_hostport\n")) {
		return all, err
	}
	if out, err = exec.Command("nft", "list", "table", "ip", "cni_hostport").Output(); err != nil {
		return nil, fmt.Errorf("nft list table: %w", err)
	}
	chain := ""
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "chain "); ok {
			chain = strings.TrimSuffix(name, " {")
		} else if strings.Contains(line, "comment ") && chain != "" {
			all = append(all, ruleLine{"nft", chain, line})
		}
	}
	return all, nil
}

// learn attaches a and keeps what it added.
func (h host) learn(a attachment) (*pattern, error) {
	before, err := saved()
	if err != nil {
		return nil, err
	}
	result, err := h.add(a, &answer{Took: map[string]cost{}})
	if err != nil {
		return nil, err
	}
	after, err := saved()
	if err != nil {
		return nil, err
	}
	added := slices.DeleteFunc(after, func(l ruleLine) bool { return slices.Contains(before, l) })
	if len(added) == 0 {
		return nil, fmt.Errorf("an attachment has added no rule that iptables or nft shows")
	}
	ip, err := addressOf(result)
	return newPattern(a, ip, added), err
}

// attach attaches a by the first plugin, without what that would do with iptables, and keeps its rules for restore.
func (p *pattern) attach(h host, a attachment) error {
	first := maps.Clone(h.c.Plugins[0])
	delete(first, "ipMasq")
	h.c.Plugins = []map[string]any{first}
	result, err := h.add(a, &answer{Took: map[string]cost{}})
	if err != nil {
		return err
	}
	ip, err := addressOf(result)
	if err == nil {
		p.clone(a, ip)
	}
	return err
}

// clone keeps the rules of an attachment with that address.
func (p *pattern) clone(a attachment, ip string) {
	port := func(a attachment, i int) string { return fmt.Sprint(20000 + 2*a.number + i) }
	words := strings.NewReplacer(p.of.id, a.id, p.ip, ip, port(p.of, 0), port(a, 0), port(p.of, 1), port(a, 1))
	for _, l := range p.rules {
		var names []string
		text := p.hashed.ReplaceAllStringFunc(l.text, func(name string) string {
			names = append(names, name[:len(name)-8]+fmt.Sprintf("%08x", a.number))
			return fmt.Sprintf("\x00%d\x00", len(names)-1) // a port may stand in a hash
		})
		text = words.Replace(text)
		for i, name := range names {
			text = strings.Replace(text, fmt.Sprintf("\x00%d\x00", i), name, 1)
		}
		p.more[l.program] = append(p.more[l.program], ruleLine{l.program, l.where, text})
	}
}

// restore loads the rules that are kept. A rule in a chain that attachments share goes to its front, so that those of
// those attached by plugins, which are measured, come last.
func (p *pattern) restore() error {
	if p == nil {
		return nil
	}
	for program, lines := range p.more {
		var in bytes.Buffer
		cmd := exec.Command(program+"-restore", "--noflush")
		if program == "nft" {
			cmd = exec.Command("nft", "-f", "-")
			for _, l := range lines {
				fmt.Fprintf(&in, "insert rule ip cni_hostport %s %s\n", l.where, l.text)
			}
		} else {
			writeTables(&in, lines)
		}
		cmd.Stdin = &in
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("load the rules of %d lines by %s: %w: %s", len(lines), program, err, first(string(out)))
		}
	}
	return nil
}

// writeTables writes lines as iptables-restore reads them.
func writeTables(in *bytes.Buffer, lines []ruleLine) {
	own, tables := map[string]bool{}, []string{}
	for _, l := range lines {
		if name, ok := strings.CutPrefix(l.text, ":"); ok {
			own[strings.Fields(name)[0]] = true
		}
		if !slices.Contains(tables, l.where) {
			tables = append(tables, l.where)
		}
	}
	for _, table := range tables {
		fmt.Fprintln(in, table)
		for _, declared := range []bool{true, false} {
			for _, l := range lines {
				if l.where != table || strings.HasPrefix(l.text, ":") != declared {
					continue
				}
				if f := strings.Fields(l.text); !declared && !own[f[1]] {
					l.text = "-I" + strings.TrimPrefix(l.text, "-A")
				}
				fmt.Fprintln(in, l.text)
			}
		}
		fmt.Fprintln(in, "COMMIT")
	}
}

// addressOf is the first address of a result, without its length.
func addressOf(result json.RawMessage) (string, error) {
	var r struct{ IPs []struct{ Address string } }
	if err := json.Unmarshal(result, &r); err != nil || len(r.IPs) == 0 {
		return "", fmt.Errorf("no address in %s: %v", result, err)
	}
	ip, _, _ := strings.Cut(r.IPs[0].Address, "/")
	return ip, nil
}
