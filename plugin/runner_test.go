package plugin_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/spec"
)

func (a *attachment) fill(args []string) []string {
	var out []string
	for _, s := range args {
		out = append(out, a.text(s))
	}
	return out
}

func (a *attachment) text(s string) string {
	ip := map[bool]string{}
	if res, err := spec.DecodeResult(a.prev, spec.V110); err == nil {
		for _, i := range res.IPs {
			ip[i.Address.Addr().Is4()] = i.Address.Addr().String()
		}
	}
	return strings.NewReplacer("IP4", ip[true], "IP6", ip[false], "NET", a.network).Replace(s)
}

// A runner is a runtime of 30 lines: it runs a chain and remembers the result.
type runner struct {
	t      *testing.T
	dir    string
	chain  chain
	ifName string
	host   string                // the namespace that is the host; empty: the test's own
	start  func(*exec.Cmd) error // runs a plugin; nil: Run
}

func newRunner(t *testing.T, c chain) *runner {
	if f := setups[strings.TrimSuffix(c.name, inChain)]; f != nil {
		f(t)
	}
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range plugin.All() {
		if err := os.Symlink(exe, filepath.Join(dir, p.Name)); err != nil {
			t.Fatal(err)
		}
	}
	return &runner{t: t, dir: dir, chain: c, ifName: "eth0"}
}

type attachment struct {
	id, netns, network string
	prev               json.RawMessage
}

// run asks one verb of one plugin of the chain; wrap is a command to run it under.
func (r *runner) run(i int, verb string, a *attachment, extra string, wrap ...string) (json.RawMessage, error) {
	conf := `{"cniVersion":"1.1.0","name":"` + r.network() + `",` + r.chain.plugins[i] + extra
	if a.prev != nil {
		conf += `,"prevResult":` + string(a.prev)
	}
	conf += `}`
	var typ struct{ Type string }
	if err := json.Unmarshal([]byte(conf), &typ); err != nil {
		return nil, err
	}
	argv := append(slices.Clone(wrap), filepath.Join(r.dir, typ.Type))
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(conf)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+a.id, "CNI_NETNS="+a.netns,
		"CNI_IFNAME="+r.ifName, "CNI_PATH="+r.dir)
	start := cmd.Run
	if r.start != nil {
		start = func() error { return r.start(cmd) }
	}
	if err := nstest.In(r.host, start); err != nil {
		var e spec.Error
		if json.Unmarshal(out.Bytes(), &e) == nil && e.Msg != "" {
			return nil, &e
		}
		return nil, fmt.Errorf("%w: stdout %q, stderr %q", err, out.String(), stderr.String())
	}
	if verb == "ADD" {
		var one map[string]any
		if err := json.Unmarshal(out.Bytes(), &one); err != nil {
			return nil, fmt.Errorf("stdout is not one document: %w: %q", err, out.String())
		}
	} else if out.Len() > 0 {
		return nil, fmt.Errorf("%s printed %q on stdout", verb, out.String())
	}
	return out.Bytes(), nil
}

func (r *runner) network() string { return "life-" + r.chain.name }

// add runs the chain, its last plugin under wrap.
func (r *runner) add(a *attachment, wrap ...string) error {
	a.network, a.prev = r.network(), nil
	for i := range r.chain.plugins {
		var under []string
		if i == len(r.chain.plugins)-1 {
			under = wrap
		}
		out, err := r.run(i, "ADD", a, "", under...)
		if err != nil {
			return err
		}
		a.prev = out
	}
	return nil
}

func (r *runner) check(a *attachment) error {
	for i := range r.chain.plugins {
		if _, err := r.run(i, "CHECK", a, ""); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) del(a *attachment) error {
	for i := len(r.chain.plugins) - 1; i >= 0; i-- {
		if _, err := r.run(i, "DEL", a, ""); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) gc(ids ...string) error {
	var list []spec.Attachment // nil is null in JSON: what CRI-O sends for a network without attachments
	for _, id := range ids {
		list = append(list, spec.Attachment{ContainerID: id, IfName: "eth0"})
	}
	b, _ := json.Marshal(list)
	for i := range r.chain.plugins {
		if _, err := r.run(i, "GC", &attachment{}, `,"cni.dev/valid-attachments":`+string(b)); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) status() error {
	for i := range r.chain.plugins {
		if _, err := r.run(i, "STATUS", &attachment{}, ""); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) must(what string, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

// volatile is what stays without being anybody's, and what is a network's rather than an attachment's.
var volatile = regexp.MustCompile(`last_reserved_ip|\.fairlead-index/|fairlead/nft-ending$|/lock$|\.lock$|fairlead/ipam|fairlead/network-|memory/closed|memory/gateway|memory/pinned|fairlead/history/|[0-9a-f]{12} [0-9a-f]{16} [^/]+//`)

// state is what the host holds: links, addresses, routes, nft elements, leases, memory.
func state(t *testing.T) string {
	t.Helper()
	s := nstest.Run(t, "sh", "-c", `
		{ ip -br link | sed 's/@.*//; s/ .*//'; ip -o link | grep -o ' \(alias\|altname\) .*' || true; ip -br addr | sed 's/@[^ ]*//; s/ \(UP\|DOWN\|UNKNOWN\|LOWERLAYERDOWN\) / /'; ip route; ip -6 route; } | sort
		for p in iptables ip6tables; do $p-save -t nat 2>/dev/null | grep -- 'CNI-[0-9a-f]\{8\}\|CNI-DN-' || true; done
		nft -a list ruleset 2>/dev/null | grep 'elements\|fairlead.*[0-9a-f]\{12\} [0-9a-f]\{16\}' || true
		{ iptables-save; ip6tables-save; } 2>/dev/null | grep '[0-9a-f]\{12\} [0-9a-f]\{16\}' || true
		find /var/lib/cni /run/cni -type f 2>/dev/null | sort`)
	var keep []string
	for _, line := range strings.Split(s, "\n") {
		if !volatile.MatchString(line) {
			keep = append(keep, strings.Join(strings.Fields(strings.ReplaceAll(line, "linkdown", "")), " "))
		}
	}
	return strings.Join(keep, "\n")
}

func same(t *testing.T, what, before string) {
	t.Helper()
	if after := state(t); after != before {
		t.Errorf("%s left\n%s\nbefore it was\n%s", what, after, before)
	}
}

// withoutBridges removes the bridges at the end: several have the same subnet, and the first one's route would win.
func withoutBridges(t *testing.T) {
	t.Cleanup(func() {
		nstest.Run(t, "sh", "-c", "ip -br link show type bridge | while read -r name rest; do ip link del $name; done")
	})
}
