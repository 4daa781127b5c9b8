package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
)

const conflist = `{"cniVersion":"1.0.0","name":"pods1","plugins":[{"type":"ptp","ipam":{"type":"cluster"}}]}`

// withConflist gives the agent a configuration to install, and returns where.
func (h *host) withConflist() (path string) {
	dir := h.t.TempDir()
	h.agent.Conflist = Conflist{Source: filepath.Join(dir, "10-pods.conflist"), Dir: filepath.Join(dir, "net.d")}
	h.put(h.agent.Conflist.Source, conflist)
	return h.agent.Conflist.path()
}

func (h *host) put(path, text string) {
	h.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// text is the content of a file, or why there is none.
func text(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// compared tells the nodes, and waits until they were compared.
func (h *host) compared(nodes ...directory.Node) {
	h.tell(nodes...)
	h.tell(nodes...) // is taken when the first has been compared
}

// problems are those of the status.
func (h *host) problems() (text string) {
	for _, p := range h.agent.Status().Problems {
		text += p.Text + "\n"
	}
	return text
}

// The configuration is there when pods can be attached, and not before. It stays when the agent ends, and another
// program's is kept.
func TestConflist(t *testing.T) {
	h := newHost(t, 1)
	path := h.withConflist()
	one, two := node(1), node(2)
	if err := h.agent.Saved.Save("c", []directory.Node{one, two}); err != nil {
		t.Fatal(err)
	}
	h.start()
	h.until("the saved nodes", h.peer(two, one))
	bare := one
	bare.Prefixes = nil
	h.compared(bare, two)
	if got := text(path); !strings.Contains(got, "no such file") {
		t.Errorf("without a range: %s", got)
	}
	old := filepath.Join("/var/lib/cni/networks", "cbr0") // flannel's, of a container that goes on
	contract.Host(t, h.w, "mkdir -p %s", old)
	h.put(filepath.Join(old, "10.244.1.9"), "c1\r\neth0")
	contract.Host(t, h.w, "ip route add 10.244.3.0/24 dev up0 proto 99")
	h.compared(one, two, node(3)) // a node whose range another program's route takes is no reason to wait
	if got := text(path); got != conflist || !strings.Contains(h.problems(), "route takes 10.244.3.0/24") {
		t.Errorf("all stands: %s\n%s", got, h.problems())
	}
	if got := text(filepath.Join("/var/lib/cni/networks", "pods1/10.244.1.9")); got != "c1\r\neth0" {
		t.Errorf("the lease of the former network: %q", got)
	}
	h.stop()
	if got := text(path); got != conflist {
		t.Errorf("the agent has ended: %s", got)
	}

	later := "10.244.1.10" // of another network that came since, whose containers the node's never were
	h.put(filepath.Join(old, later), "c2\r\neth0")
	changed := strings.Replace(conflist, "1.0.0", "1.1.0", 1)
	h.put(h.agent.Conflist.Source, changed)
	h.start()
	h.compared(one, two)
	if got := text(path); got != changed {
		t.Errorf("another source: %s\n%s", got, h.problems())
	}
	if got := text(filepath.Join("/var/lib/cni/networks/pods1", later)); !strings.Contains(got, "no such file") {
		t.Errorf("a lease was taken over by an agent that has installed its network: %s", got)
	}
	h.put(path, "theirs")
	h.compared(one, two)
	if got := text(path); got != "theirs" || !strings.Contains(h.problems(),
		h.agent.Conflist.Source+" is not installed: "+path+" differs from what was written there last") {
		t.Errorf("another program's: %s\n%s", got, h.problems())
	}
	for want, source := range map[string]string{
		"has the network pods2, and this agent grants to pods1 (--network)": strings.Replace(conflist, "pods1", "pods2", 1),
		"no plugin allocates from the grant":                                strings.Replace(conflist, "cluster", "static", 1),
		h.agent.Conflist.Source + ": ":                                      "{",
	} {
		h.put(h.agent.Conflist.Source, source)
		h.compared(one, two)
		if !strings.Contains(h.problems(), want) {
			t.Errorf("no %q in %s", want, h.problems())
		}
	}
	if err := os.Remove(h.agent.Conflist.Source); err != nil {
		t.Fatal(err)
	}
	h.compared(one, two)
	if want := h.agent.Conflist.Source + ": no such file"; !strings.Contains(h.problems(), want) {
		t.Errorf("no %q in %s", want, h.problems())
	}
}

// What agents made is removed, and nothing else. Beside an agent nothing is.
func TestRemove(t *testing.T) {
	h := newHost(t, 1)
	path := h.withConflist()
	contract.Host(t, h.w, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
	before := contract.State(t, h.w)
	h.agent.Saved.Path = agentstatus.Saved("pods1")
	h.start()
	h.compared(node(1), node(2))
	l, err := Listen(agentstatus.Socket("pods1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.agent.Remove(t.Context()); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("beside an agent: %v", err)
	}
	if got := text(path); got != conflist {
		t.Errorf("beside an agent: %s", got)
	}
	l.Close()
	h.stop()

	other := h.newAgent(1)
	other.Conflist, other.Saved = h.agent.Conflist, h.agent.Saved
	for range 2 {
		if err := other.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if after := contract.State(t, h.w); after != before {
		t.Error(contract.Difference(before, after))
	}
	if sets := contract.Host(t, h.w, "nft list sets"); strings.Contains(sets, "10.244") {
		t.Error(sets)
	}
	for _, gone := range []string{path, grant.Path("pods1"), agentstatus.Socket("pods1"),
		agentstatus.Socket("pods1") + ".lock", other.Saved.Path} {
		if got := text(gone); !strings.Contains(got, "no such file") {
			t.Errorf("%s: %s", gone, got)
		}
	}
	if left, err := os.ReadDir(other.Conflist.Dir); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}

// On etcd, a node is ready when it has a range and the others know of it.
func TestConflistOnEtcd(t *testing.T) {
	h := newHost(t, 1)
	path := h.withConflist()
	h.agent.Source = Etcd
	one, two := node(1), node(2)
	one.Prefixes = one.Prefixes[:1]
	h.agent.Grant = &grant.File{Network: "pods1"}
	if err := h.agent.Grant.Change(func(g *grant.Grant) { g.Ranges = one.Prefixes }); err != nil {
		t.Fatal(err)
	}
	h.start()
	bare := one
	bare.Prefixes = nil
	h.compared(bare, two)
	if got := text(path); !strings.Contains(got, "no such file") {
		t.Errorf("without a range in the directory: %s", got)
	}
	h.compared(one, two)
	if got := text(path); got != conflist {
		t.Errorf("with a range: %s\n%s", got, h.problems())
	}
}
