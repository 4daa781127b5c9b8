package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// The test binary is the plugin when a runtime calls it.
func TestMain(m *testing.M) {
	if os.Getenv("CNI_COMMAND") != "" {
		os.Exit(sdk.Serve([]sdk.Plugin{Plugin}, "cluster", "test"))
	}
	nstest.Main(m)
}

type answer struct {
	out    []byte
	stderr string
	status int
}

func (a answer) String() string { return fmt.Sprintf("exit %d: %s %s", a.status, a.out, a.stderr) }

// call runs the plugin as a runtime does.
func call(t testing.TB, verb, id, conf string) answer {
	t.Helper()
	return callWith(t, verb, id, conf, "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default")
}

// callWith runs it with these CNI_ARGS.
func callWith(t testing.TB, verb, id, conf, args string) answer {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	var stderr strings.Builder
	cmd.Stdin, cmd.Stderr = strings.NewReader(conf), &stderr
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", "CNI_PATH=/x",
		"CNI_NETNS=/run/netns/none", "CNI_ARGS=" + args}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return answer{out, stderr.String(), cmd.ProcessState.ExitCode()}
}

// network is a configuration of the network pods, with more keys.
func network(more string) string {
	return `{"cniVersion":"1.1.0","name":"pods","type":"cluster","ipam":{"type":"cluster"}` + more + `}`
}

// give writes a grant of this boot with these ranges.
func give(t *testing.T, ranges ...string) {
	t.Helper()
	boot, err := grant.Boot()
	if err != nil {
		t.Fatal(err)
	}
	g := grant.Grant{Cluster: "c", Node: "a", Boot: boot, MTU: 1450}
	for _, r := range ranges {
		g.Ranges = append(g.Ranges, netip.MustParsePrefix(r))
	}
	if err := grant.Write("pods", g); err != nil {
		t.Fatal(err)
	}
}

// Without a grant there is nothing to allocate, and the error says what is missing and which command tells more.
// clause: P7 P21
func TestNoGrant(t *testing.T) {
	boot, err := grant.Boot()
	if err != nil {
		t.Fatal(err)
	}
	path := grant.Path("pods")
	for name, tc := range map[string]struct{ file, say, hint string }{
		"none":         {"", path + ": is missing: no agent has granted addresses to this node", "Start fairlead-agent"},
		"empty":        {"\n", path + ": is no grant, or was cut short", "Start fairlead-agent"},
		"torn":         {`{"cluster":"c","boot":"` + boot + `","ranges":["10.2`, path + ": is no grant, or was cut short", "journalctl -u"},
		"huge":         {strings.Repeat(" ", 16<<20+1), path + ": cannot be read: it is no plain file of ours: it has more than 16777216 bytes", "Start fairlead-agent"},
		"another boot": {`{"boot":"b0","ranges":["10.244.1.0/24"]}`, path + `: is of boot "b0", and this is boot ` + boot, "Start fairlead-agent"},
		"no podCIDR": {`{"boot":"` + boot + `","node":"a","missing":"node a has no podCIDR","hint":"Run kubectl get node a."}`,
			path + ": grants no range: node a has no podCIDR", "Run kubectl get node a."},
	} {
		nstest.Apart(t, name, func(t *testing.T) {
			if tc.file != "" {
				if err := os.MkdirAll(grant.Dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(tc.file), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for verb, code := range map[string]spec.Code{"ADD": spec.CodeTryAgain, "STATUS": spec.CodeUnavailable} {
				got := call(t, verb, "a", network(""))
				doc, ok := spec.DecodeError(got.out)
				if !ok || got.status == 0 || doc.Code != code || !strings.HasPrefix(doc.Msg, tc.say) ||
					!strings.Contains(doc.Hint, tc.hint) {
					t.Errorf("%s: %v", verb, got)
				}
			}
			if _, err := os.Stat("/var/lib/cni/networks/pods"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a refused ADD made the directory of leases: %v", err)
			}
		})
	}
}

// The runtime may ask for an address of this node's ranges, in any of three ways, and for none of another node's.
func TestRequested(t *testing.T) {
	give(t, "10.9.0.0/26", "10.9.1.0/26", "fd00:9::/122")
	for n, tc := range []struct {
		conf, env string
		want      []string
	}{
		{`,"runtimeConfig":{"ips":["10.9.1.7/26","fd00:9::9"]}`, "", []string{`"10.9.1.7/26"`, `"fd00:9::9/122"`}},
		{`,"args":{"cni":{"ips":["10.9.0.9"]}}`, "", []string{`"10.9.0.9/26"`}},
		{"", "IP=10.9.1.8", []string{`"10.9.1.8/26"`}},
		{"", "IP=10.9.1.8", []string{"requested address 10.9.1.8 is in use by", "c2"}},
		{"", "IP=10.9.2.1", []string{"requested address 10.9.2.1 is in no range"}},
		{"", "IP=10.9.1.1", []string{"requested address 10.9.1.1 is the gateway of 10.9.1.0/26"}},
		{`,"runtimeConfig":{"ips":["ten"]}`, "", []string{`requested address "ten"`, "runtimeConfig.ips[0]"}},
	} {
		got := callWith(t, "ADD", fmt.Sprint("c", n), network(tc.conf), tc.env)
		said := string(got.out)
		doc, failed := spec.DecodeError(got.out)
		if failed {
			said = doc.Msg
		}
		for _, want := range tc.want {
			if !strings.Contains(said, want) || failed != (got.status != 0) {
				t.Errorf("%d: no %s in %v", n, want, got)
			}
		}
	}
}

// The node wants no more containers while fewer addresses are free than its reserve, and says why there are no more.
// clause: P21
func TestReserve(t *testing.T) {
	give(t, "10.9.0.0/29")
	file := grant.File{Network: "pods"}
	if err := file.Change(func(g *grant.Grant) { g.Reserve, g.Missing, g.Hint = 4, "no block is free", "Add a pool." }); err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		if got := call(t, "ADD", fmt.Sprint("c", n), network("")); got.status != 0 {
			t.Fatal(got)
		}
	}
	got := call(t, "STATUS", "", network(""))
	doc, ok := spec.DecodeError(got.out)
	if !ok || doc.Code != spec.CodeUnavailable || doc.Hint != "Add a pool." ||
		!strings.Contains(doc.Msg, "3 of 5 addresses are left in 10.9.0.1-10.9.0.6, and 4 are the reserve; no block is free") {
		t.Error(got)
	}
	if err := file.Change(func(g *grant.Grant) { g.Reserve = 3 }); err != nil {
		t.Fatal(err)
	}
	if got := call(t, "STATUS", "", network("")); got.status != 0 {
		t.Errorf("3 are left, and 3 are the reserve: %v", got)
	}
}

// The grant is needed to allocate, and for nothing else.
// clause: P12 P15 P21 P22 I4
func TestLife(t *testing.T) {
	silent := func(what string, a answer) {
		t.Helper()
		if a.status != 0 || len(a.out) > 0 || a.stderr != "" {
			t.Errorf("%s: %s", what, a)
		}
	}
	give(t, "10.244.1.0/29", "fd00:1::/64")
	silent("STATUS", call(t, "STATUS", "", network("")))
	first := call(t, "ADD", "a", network(""))
	var res struct {
		IPs    []struct{ Address, Gateway string }
		Routes []struct {
			Dst string
			MTU int
		}
	}
	if err := json.Unmarshal(first.out, &res); err != nil || first.status != 0 {
		t.Fatal(err, first)
	}
	const want = "[{10.244.1.2/29 10.244.1.1} {fd00:1::2/64 fd00:1::1}] [{0.0.0.0/0 1450} {::/0 1450}]"
	if got := fmt.Sprint(res.IPs, res.Routes); got != want {
		t.Errorf("ADD gave %s, want %s", got, want)
	}
	for _, id := range []string{"b", "c", "d", "e"} {
		if got := call(t, "ADD", id, network("")); got.status != 0 {
			t.Error(got)
		}
	}
	full := call(t, "ADD", "f", network(""))
	if doc, ok := spec.DecodeError(full.out); !ok || doc.Code != spec.CodeTryAgain ||
		!strings.Contains(doc.Msg, "10.244.1.1-10.244.1.6: 5 of 5 are in use") {
		t.Errorf("ADD of a full range: %s", full)
	}

	if err := os.Remove(grant.Path("pods")); err != nil {
		t.Fatal(err)
	}
	prev := network(`,"prevResult":` + string(first.out))
	silent("CHECK without a grant", call(t, "CHECK", "a", prev))
	silent("DEL without a grant", call(t, "DEL", "a", network("")))
	silent("DEL again", call(t, "DEL", "a", network("")))
	if got := call(t, "CHECK", "a", prev); got.status == 0 || !bytes.Contains(got.out, []byte("lease 10.244.1.2: is missing")) {
		t.Errorf("CHECK after DEL: %s", got)
	}
	if got := call(t, "GC", "", network(`,"cni.dev/valid-attachments":[{"containerID":"b","ifname":"eth0"}]`)); got.status != 0 {
		t.Errorf("GC without a grant: %s", got)
	}
	left, err := filepath.Glob("/var/lib/cni/networks/pods/10.*")
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "10.244.1.3" {
		t.Errorf("GC left %q, %v; want the lease of b", left, err)
	}

	give(t, "10.244.7.0/24") // the node was registered again, and got another range
	if got := call(t, "ADD", "g", network("")); !bytes.Contains(got.out, []byte(`"10.244.7.2/24"`)) {
		t.Errorf("ADD with another grant: %s", got)
	}
	silent("DEL of an address of the former grant", call(t, "DEL", "b", network("")))
}

// Routes of the configuration are instead of the default ones.
func TestRoutes(t *testing.T) {
	give(t, "10.244.1.0/24")
	got := call(t, "ADD", "a", strings.Replace(network(""), `"type":"cluster"}`, `"type":"cluster","routes":[{"dst":"10.0.0.0/8"}]}`, 1))
	var res spec.Result
	if err := json.Unmarshal(got.out, &res); err != nil || len(res.Routes) != 1 || res.Routes[0].Dst.String() != "10.0.0.0/8" {
		t.Errorf("%v: %s", err, got)
	}
}
