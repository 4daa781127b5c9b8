package plugin_test

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk/sdktest"
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
	var types []string
	for _, p := range plugin.All() {
		types = append(types, p.Name)
	}
	dir := sdktest.Plugins(t, types...)
	return &runner{t: t, dir: dir, chain: c, ifName: "eth0"}
}

// in is the runner for a subtest.
func (r *runner) in(t *testing.T) *runner {
	inner := *r
	inner.t = t
	return &inner
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
	return sdktest.Call{Dir: r.dir, Conf: json.RawMessage(conf), Verb: verb, ContainerID: a.id, Netns: a.netns,
		IfName: r.ifName, Host: r.host, Under: wrap, Start: r.start}.Do()
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

// state is what the host holds.
func state(t *testing.T) string {
	t.Helper()
	return sdktest.HostState(t)
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
