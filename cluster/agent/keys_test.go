package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
)

// withKey is node i with a public key.
func withKey(t *testing.T, i byte) directory.Node {
	t.Helper()
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	n := node(i)
	n.Tunnel = directory.Tunnel{Key: key.PublicKey().String(), Port: 51820}
	return n
}

// Nodes with another mode, with no key and with a key of another node get no way, and the error names both nodes.
func TestTunnelsOf(t *testing.T) {
	a := &Agent{Node: "n1", Mode: WireGuard, Tunnel: Tunnel{Device: "wg0", Port: 51820, KeyFile: filepath.Join(t.TempDir(), "key")}}
	own, err := a.LoadKey()
	if err != nil {
		t.Fatal(err)
	}
	one, two, three := node(1), withKey(t, 2), withKey(t, 3)
	one.Tunnel = own
	with := func(n directory.Node, tunnel directory.Tunnel) directory.Node {
		n.Tunnel = tunnel
		return n
	}
	older := with(two, own)
	older.Joined = one.Joined - 1
	for name, tc := range map[string]struct {
		mode    Mode
		n       directory.Node // beside n1 and n3
		suits   string         // names of the nodes that get a way
		problem string
	}{
		"WireGuard":    {WireGuard, two, "n2 n3", ""},
		"no key":       {WireGuard, with(two, directory.Tunnel{}), "n3", "node n2 has published no WireGuard key, and node n1 has --mode wireguard"},
		"garbage":      {WireGuard, with(two, directory.Tunnel{Key: "x", Port: 1}), "n3", `node n2 has published "x" as its WireGuard key`},
		"no port":      {WireGuard, with(two, directory.Tunnel{Key: two.Tunnel.Key}), "n3", "node n2 has published"},
		"this node's":  {WireGuard, with(two, own), "n3", "nodes n2 and n1 have published one WireGuard key, " + own.Key + ", and n1 keeps it"},
		"by an older":  {WireGuard, older, "n3", "nodes n2 and n1 have published one WireGuard key, " + own.Key + ", and n1 keeps it"},
		"a younger's":  {WireGuard, with(two, three.Tunnel), "n2", "nodes n3 and n2 have published one WireGuard key, " + three.Tunnel.Key + ", and n2 keeps it"},
		"VXLAN":        {VXLAN, two, "", "node n2 has published a WireGuard key, so it has --mode wireguard, and node n1 has --mode vxlan"},
		"by default":   {"", two, "", "and node n1 has --mode vxlan"},
		"direct":       {Direct, two, "", "and node n1 has --mode direct"},
		"VXLAN of one": {VXLAN, with(two, directory.Tunnel{}), "n2", "node n3 has published a WireGuard key"},
	} {
		a.Mode = tc.mode
		nodes := []directory.Node{one, tc.n, three}
		peers, err := a.peers(nodes, one, []uplink{{addr: one.Endpoints[0], name: "up0"}})
		var names []string
		for _, p := range peers {
			names = append(names, p.Node)
		}
		if got := strings.Join(names, " "); got != tc.suits || !strings.Contains(fmt.Sprint(err), tc.problem) || tc.problem == "" && err != nil {
			t.Errorf("%s: %q, %v; want %q, %q", name, got, err, tc.suits, tc.problem)
		}
		for _, p := range a.describe(view{nodes: nodes}, err).Problems {
			if p.Kind != agentstatus.NoWay || p.Node == "" || p.Node == "n1" {
				t.Errorf("%s: %+v; want no way to a node", name, p)
			}
		}
		if tc.mode != WireGuard {
			continue
		}
		if refused := a.refused(nodes, peers); len(refused)+len(peers) != 2 {
			t.Errorf("%s: %v are refused beside %v", name, refused, peers)
		}
		for _, p := range slices.Concat(peers, a.refused(nodes, peers)) {
			for _, dst := range p.Prefixes {
				if leads := slices.Contains(names, p.Node); !p.Sealed || (p.Hop(dst).Link == "wg0") != leads {
					t.Errorf("%s: %+v goes by %v", name, p, p.Hop(dst))
				}
			}
		}
		seen := map[wgtypes.Key]bool{}
		for i, p := range a.wireguard(nodes, peers).Peers {
			if p.Node != peers[i].Node || fmt.Sprint(p.Prefixes) != fmt.Sprint(peers[i].Prefixes) || p.Endpoints[0].Port() != 51820 || seen[p.Key] {
				t.Errorf("%s: %+v of %v", name, p, peers[i])
			}
			seen[p.Key] = true
		}
	}
}

// A key that cannot be used is an error that names the mode and the file. A mode without keys reads none.
func TestLoadKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &Agent{Mode: WireGuard, Tunnel: Tunnel{KeyFile: file}}
	if _, err := a.LoadKey(); err == nil || !strings.HasPrefix(err.Error(), "--mode wireguard: "+file) {
		t.Error(err)
	}
	a.Mode = VXLAN
	if said, err := a.LoadKey(); err != nil || said != (directory.Tunnel{}) {
		t.Error(said, err)
	}
}

// What a node says of itself is published until the cluster has it, and what fails is a problem of this node.
func TestPublish(t *testing.T) {
	attempts, results := make(chan directory.Tunnel), make(chan error)
	a := &Agent{Node: "n1", Mode: WireGuard, Tunnel: Tunnel{Port: 51820, KeyFile: filepath.Join(t.TempDir(), "key")}}
	own, err := a.LoadKey()
	if err != nil {
		t.Fatal(err)
	}
	a.Publish = func(_ context.Context, tunnel directory.Tunnel) error {
		attempts <- tunnel
		return <-results
	}
	events := make(chan struct{}, 1)
	ctx, stop := context.WithCancel(t.Context())
	wait := a.publisher.start(ctx, a.Publish, events)
	attempt := func(want directory.Tunnel, result error) {
		t.Helper()
		if got := <-attempts; got != want {
			t.Errorf("published %+v, want %+v", got, want)
		}
		results <- result
	}
	bare := node(1)
	if err := a.publish(bare); err != nil {
		t.Error(err)
	}
	select {
	case <-attempts:
		t.Error("published before the cluster has said what it has")
	default:
	}
	a.known = true
	if err := a.publish(bare); err != nil {
		t.Errorf("before the first attempt has ended: %v", err)
	}
	refused := errors.New("refused")
	attempt(own, refused)
	<-events
	err = a.publish(bare)
	if want := "node n1 cannot publish its WireGuard key, so other nodes send it nothing: refused"; fmt.Sprint(err) != want || !errors.Is(err, refused) {
		t.Errorf("%v; want %s", err, want)
	}
	attempt(own, nil)
	<-events
	said := bare
	said.Tunnel = own
	if err := a.publish(said); err != nil {
		t.Error(err)
	}

	a.Mode = VXLAN // and the key of before is still there
	if err := a.publish(said); err != nil {
		t.Error(err)
	}
	attempt(directory.Tunnel{}, refused)
	<-events
	if err := a.publish(said); err == nil || !strings.Contains(err.Error(), "kubectl annotate node n1 fairlead-cni.github.io/wireguard-") {
		t.Error(err)
	}
	attempt(directory.Tunnel{}, nil)
	stop()
	wait()
}
