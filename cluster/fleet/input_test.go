package fleet

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// What nobody can use is refused before anything is made. The error says the flag, the value and what is right.
func TestInitRefuses(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("a", 300)
	const silent = "http://192.0.2.254:2379" // no call asks it
	for _, c := range []struct{ flag, value, want string }{
		{"--network", "a b", `usage: fairlead cluster: --network: name "a b" has the character ' '`},
		{"--network", ".", `--network: name "." begins with '.'`},
		{"--network", "..", `--network: name ".." begins with '.'`},
		{"--network", "-x", `--network: name "-x" begins with '-'`},
		{"--network", "a\n", `--network: name "a\n" has the character '\n'`},
		{"--network", "a/b", `--network: name "a/b" has the character '/'`},
		{"--network", "", "--network: name is empty"},
		{"--network", long, "has 300 characters: want at most 80"},
		{"--cluster", "a\x1b[31m", `--cluster: name "a\x1b[31m" has the character '\x1b'`},
		{"--cluster", ".", `--cluster: name "." begins with '.'`},
		{"--cluster", "a/b", `--cluster: name "a/b" has the character '/'`},
		{"--cluster", long, "has 300 characters: want at most 63"},
		{"--etcd", "http://u:secret@192.0.2.254:2379", "want http://HOST:PORT or https://HOST:PORT, with --etcd-user and --etcd-password-file"},
		{"--etcd", silent + "/path", `"` + silent + `/path" has something behind the port`},
		{"--etcd", silent + "?x=1", `"` + silent + `?x=1" has something behind the port`},
		{"--etcd", silent + "#x", `"` + silent + `#x" has something behind the port`},
		{"--etcd", "http://192.0.2.254", `has the port "": want one from 1 to 65535`},
		{"--etcd", "http://192.0.2.254:0", `has the port "0": want one from 1 to 65535`},
		{"--etcd", "http://192.0.2.254:65536", `has the port "65536": want one from 1 to 65535`},
		{"--etcd", "http://:2379", "is no URL"},
		{"--etcd", "", "want the URL of at least one member of etcd"},
		{"--etcd", ",", "want the URL of at least one member of etcd"},
	} {
		args := []string{"init", "--pool", "a=10.9.0.0/24", "--file", filepath.Join(dir, "fleet.json")}
		if c.flag != "--etcd" {
			args = append(args, "--etcd", silent)
		}
		got := doesArgs(t, append(args, c.flag, c.value)...)
		if !strings.Contains(got, c.want) || strings.Contains(got, "secret") {
			t.Errorf("%s %q: %q, want %q", c.flag, c.value, got, c.want)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v are made", left, err)
	}
}

// A file without a cluster is named by all commands, with what is wrong and what to do. Keys that nobody reads are warned of.
func TestBadFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "fleet.json")
	for content, want := range map[string]string{
		"":                      "it is empty",
		" \n":                   "it is empty",
		`{"clus`:                "unexpected end of JSON input",
		"garbage":               "invalid character 'g'",
		"{}":                    `"cluster" is missing`,
		"null":                  `"cluster" is missing`,
		"[]":                    "the file: want an object, and not a JSON array",
		`{"cluster":"fleet"}`:   "endpoints: want the URL of at least one member of etcd",
		`{"cluster":"a\u001b"}`: `cluster: "a\x1b": want a name without spaces, / and control characters`,
		`{"cluster":"fleet","endpoints":"http://192.0.2.254:2379"}`:                      "endpoints: want a list of strings, and not a JSON string",
		`{"cluster":"fleet","endpoints":["http://192.0.2.254:2379/x"]}`:                  "endpoints: ",
		`{"cluster":"fleet","endpoints":["http://192.0.2.254:2379"],"network":"../etc"}`: "network: name",
	} {
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{"nodes", "token", "init --etcd http://192.0.2.254:2379 --pool a=10.9.0.0/24"} {
			got := does(t, line+" --file "+file)
			for _, part := range []string{"failed: ", file + " is not what fairlead cluster join writes: ", want, "remove it and let the node join"} {
				if !strings.Contains(got, part) {
					t.Errorf("%s with %q: no %q in %q", line, content, part, got)
				}
			}
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("gone", file); err != nil {
		t.Fatal(err)
	}
	if got := does(t, "nodes --file "+file); !strings.Contains(got, file+": it is no plain file but a symbolic link") {
		t.Error(got)
	}
}

// A token is printed only if the files of the node are those that a further node needs.
func TestTokenRefuses(t *testing.T) {
	dir := t.TempDir()
	file, conf := filepath.Join(dir, "fleet.json"), filepath.Join(dir, "10-pods.conflist")
	says := func(warning string) string {
		t.Helper()
		content := `{"cluster":"fleet","endpoints":["http://192.0.2.254:2379"],"network":"pods","conf":"` + conf + `"` + warning + `}`
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return does(t, "token --file "+file)
	}
	for content, want := range map[string]string{
		"":                    conf + ":1:1: there is no JSON here",
		`{"cniVersion":"1.0.`: conf + ":1:",
		`{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"ptp"}]}`: conf + `: name: it is "other", and the cluster's network is "pods"`,
	} {
		if err := os.WriteFile(conf, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := says(""); !strings.HasPrefix(got, "failed: ") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", content, got, want)
		}
	}
	good := `{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"ptp"}]}`
	if err := os.WriteFile(conf, []byte(good), 0o644); err != nil {
		t.Fatal(err)
	}
	text := strings.TrimSpace(says(""))
	if _, err := decode(text); err != nil {
		t.Error(err)
	}
	for i := len(tokenPrefix); i < len(text); i += 7 {
		other := "A"
		if text[i] == 'A' {
			other = "B"
		}
		if _, err := decode(text[:i] + other + text[i+1:]); err == nil {
			t.Errorf("a token with another character %d is accepted", i)
		}
	}
}

// A cluster whose file has no configuration of the network has a token without one: the further node makes its own.
func TestTokenWithoutConf(t *testing.T) {
	startEtcd(t)
	first, further := filepath.Join(t.TempDir(), "fleet.json"), filepath.Join(t.TempDir(), "fleet.json")
	does(t, "init --etcd "+url+" --pool a=10.9.0.0/24 --file "+first)
	b, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, `"conf"`) {
			kept = append(kept, line)
		}
	}
	text := strings.Replace(strings.TrimSuffix(strings.TrimSpace(strings.Join(kept, "")), "}"), `"pods",`, `"pods"`, 1) + "}"
	if err := os.WriteFile(first, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(does(t, "token --file "+first))
	if got := does(t, "join "+token+" --file "+further); !strings.Contains(got, "this node is of the cluster fleet") {
		t.Error(got)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(further), "10-pods.conflist")); err != nil {
		t.Error(err)
	}
}

// Two nodes with one name are told apart by their identifiers, and nobody forgets one of them by chance. A name that moves the
// cursor of a terminal is printed escaped.
func TestNamesakes(t *testing.T) {
	startEtcd(t)
	file := " --file " + filepath.Join(t.TempDir(), "fleet.json")
	does(t, "init --etcd "+url+" --pool a=10.9.0.0/24"+file)
	var txn blocks.Txn
	put := func(k blocks.Key, v blocks.Value) { txn.Put = append(txn.Put, blocks.Pair{Key: k, Value: v}) }
	for id, name := range map[string]string{"id1": "web", "id2": "web", "id3": "bad\x1b[2J", "id4": "other"} {
		put(blocks.Key{Kind: blocks.EpochKey, Node: id}, blocks.Value{Epoch: &blocks.Epoch{N: 1, Name: name}})
	}
	for block, owner := range map[string]string{"10.9.0.0/26": "id1", "10.9.0.64/26": "id2", "10.9.0.128/26": "id3"} {
		put(blocks.Key{Kind: blocks.BlockKey, Pool: "a", Block: netip.MustParsePrefix(block)}, blocks.Value{Owners: []string{owner}})
	}
	if _, err := open(t, "fleet").Commit(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		line  string
		wants []string
		not   string
	}{
		{"nodes", []string{"web (id1) ", "web (id2) ", `bad\x1b[2J `, "\nother "}, "other ("},
		{"blocks", []string{" web (id1)\n", " web (id2)\n", ` bad\x1b[2J`}, "\x1b"},
		{"blocks web", []string{"web (id1)\n", "web (id2)\n"}, "bad"},
		{"blocks id2", []string{"web (id2)\n"}, "id1"},
		{"forget web --confirmed-dead", []string{"failed: ", "2 nodes have the name web", "id1 (agent: does not run, 0 blocks), id2 ("}, "forgotten"},
		{"drain web", []string{"failed: ", "2 nodes have the name web"}, "claims"},
		{"drain id1", []string{"node web has 0 blocks"}, "failed"},
		{"drain ghost", []string{"failed: ", `has no node "ghost"; it has bad\x1b[2J, other, web, web`}, "\x1b"},
		{"forget id2 --confirmed-dead", []string{"node web is forgotten"}, "failed"},
		{"forget web --confirmed-dead", []string{"node web is forgotten"}, "failed"},
	} {
		got := does(t, c.line+file)
		for _, want := range c.wants {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q, want %q", c.line, got, want)
			}
		}
		if strings.Contains(got, c.not) {
			t.Errorf("%s: %q has %q", c.line, got, c.not)
		}
	}
}

// With --dry-run, adopt changes nothing of the former network, also where a crash left a lease file empty.
func TestAdoptDryRun(t *testing.T) {
	startEtcd(t)
	file := " --file " + filepath.Join(t.TempDir(), "fleet.json")
	does(t, "init --etcd "+url+" --pool a=10.9.0.0/16,24,closed"+file)
	lease(t, "cbr0", "10.9.1.7", "c1")
	const dir = "/var/lib/cni/networks/cbr0"
	if err := os.WriteFile(dir+"/10.9.1.8", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	before := nstest.Run(t, "sh", "-c", "ls -laR --time-style=full-iso /var/lib/cni")
	if got := does(t, "adopt --pool a --dry-run"+file); !strings.Contains(got, "the agent of network pods does not answer") {
		t.Error(got)
	}
	if after := nstest.Run(t, "sh", "-c", "ls -laR --time-style=full-iso /var/lib/cni"); after != before {
		t.Errorf("before\n%safter\n%s", before, after)
	}
}

// A configuration of the store that was lost is named, and nothing is made in its place.
func TestBadStoreConfig(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "store", "config.json")
	for _, content := range []string{"", "{}", "garbage"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(config), 0o700), os.WriteFile(config, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
		got := does(t, "init --store-ip 192.0.2.1 --pool a=10.9.0.0/24 --file "+filepath.Join(dir, "fleet.json"))
		if want := config + " is not what fairlead cluster init writes: want JSON with a data-dir"; !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", content, got, want)
		}
	}
}

// A key of the file that nobody reads is said once, with what may be meant.
func TestUnknownKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fleet.json")
	content := `{"cluster":"fleet","endpoint":[],"Endpoints":["http://192.0.2.254:2379"],"x":1}`
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	status := Main(t.Context(), []string{"token", "--file", file}, &out, &errs)
	want := "fairlead cluster: warning: " + file + ": unknown key \"endpoint\", did you mean \"endpoints\"?\n" +
		"fairlead cluster: warning: " + file + ": unknown key \"x\"\n"
	if status != 0 || errs.String() != want {
		t.Errorf("%d, %q, want %q", status, errs.String(), want)
	}
}
