package cli

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/validate"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/spec"
)

// Every configuration in README.md and below docs is taken by the program without a word against it, and can be
// planned.
func TestExamples(t *testing.T) {
	bin := program(t)
	plugins := filepath.Dir(bin)
	for _, p := range plugin.All() {
		if err := os.Symlink(bin, filepath.Join(plugins, p.Name)); err != nil {
			t.Fatal(err)
		}
	}
	grantPods(t)
	seen := map[string]bool{}
	for _, e := range examples(t) {
		t.Run(e.where, func(t *testing.T) {
			list, err := spec.ParseList([]byte(e.conflist))
			if err != nil {
				t.Fatalf("%v\n%s", err, e.conflist)
			}
			for _, p := range list.Plugins {
				seen[p.Type], seen[p.IPAMType] = true, true
			}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "10-example.conflist"), []byte(e.conflist), 0o600); err != nil {
				t.Fatal(err)
			}
			fairlead := func(args ...string) []byte {
				t.Helper()
				cmd := exec.Command(bin, args...)
				cmd.Env = []string{"NETCONFPATH=" + dir, "CNI_PATH=" + plugins, "PATH=" + os.Getenv("PATH")}
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("fairlead %s: %v\n%s", strings.Join(args, " "), err, out)
				}
				return out
			}
			var doc struct {
				Networks []struct {
					Name     string
					Warnings []any
				}
				Problems []any
			}
			if err := json.Unmarshal(fairlead("net", "ls", "-o", "json"), &doc); err != nil {
				t.Fatal(err)
			}
			found := false
			for _, n := range doc.Networks {
				found = found || n.Name == list.Name
				for _, w := range n.Warnings {
					t.Errorf("network %s: %v", n.Name, w)
				}
			}
			if !found || len(doc.Problems) > 0 {
				t.Errorf("%v, networks %v", doc.Problems, doc.Networks)
			}
			fairlead("plan", list.Name)
		})
	}
	for _, p := range plugin.All() {
		if !seen[p.Name] {
			t.Errorf("no example has %s", p.Name)
		}
	}
}

// grantPods grants addresses to the network of the example with the plugin cluster, as fairlead-agent does.
func grantPods(t *testing.T) {
	t.Helper()
	boot, err := grant.Boot()
	if err == nil {
		err = grant.Write("pods", grant.Grant{Cluster: "c", Node: "n", Boot: boot,
			Ranges: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What is wrong with an example is found out: TestExamples can fail.
func TestExamplesBite(t *testing.T) {
	for _, conflist := range []string{
		`{"cniVersion":"1.1.0","name":"x","plugins":[{"type":"portmap"}]}`,
		`{"cniVersion":"1.1.0","name":"x","plugins":[{"type":"bridge","isGatewayy":true}]}`,
		`{"cniVersion":"1.1.0","name":"x","plugins":[{"type":"vlan","master":"a","vlanId":5000}]}`,
	} {
		list, err := spec.ParseList([]byte(conflist))
		if err != nil {
			t.Fatal(err)
		}
		if len(validate.Tried(&netconf.Network{List: list, BuiltIn: true})) == 0 {
			t.Errorf("nothing against %s", conflist)
		}
	}
}

type docExample struct{ where, conflist string }

// examples are the blocks of JSON in our documents that are a list, or the "ipam" of one, and the files in
// docs/examples.
func examples(t *testing.T) (all []docExample) {
	t.Helper()
	for _, pattern := range []string{"../../../*.md", "../../../docs/*.md", "../../../docs/*/*.md", "../../../docs/examples/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files, %v", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			where := strings.TrimPrefix(file, "../../../")
			if filepath.Ext(file) != ".md" {
				all = append(all, docExample{where, string(text)})
				continue
			}
			for i, part := range strings.Split(string(text), "\n```json\n")[1:] {
				block, _, ended := strings.Cut(part, "\n```\n")
				if !ended {
					t.Errorf("%s: block %d has no end", where, i+1)
				}
				for j, list := range lists(block) {
					// A plugin that the page has just made is not there; package internal/dist runs such a page.
					_, typ, _ := strings.Cut(list, `"type": "`)
					typ, _, _ = strings.Cut(typ, `"`)
					if strings.Contains(string(text), "fairlead new plugin "+typ+" ") {
						continue
					}
					all = append(all, docExample{fmt.Sprintf("%s-%d-%d", where, i+1, j+1), list})
				}
			}
		}
	}
	return all
}

// lists are the lists in a block: itself, or one around each "ipam".
func lists(block string) (all []string) {
	if !strings.HasPrefix(block, `"ipam":`) {
		return []string{block}
	}
	for _, part := range strings.Split(block, `"ipam":`)[1:] {
		all = append(all, `{"cniVersion":"1.1.0","name":"example","plugins":[{"type":"bridge","ipam":`+part+`}]}`)
	}
	return all
}
