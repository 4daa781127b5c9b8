package etcd

import (
	"context"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/cluster/directory"
)

// The others know the key that a node said, with the rights of the fleet's role alone. What somebody else wrote there is
// written again, and a node without WireGuard has no key any more.
func TestTunnel(t *testing.T) {
	s := startEtcd(t)
	said := directory.Tunnel{Key: "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=", Port: 51820}
	run := func(host *blocks.Tunnel) (m *Member, stop func()) {
		m = member(t.Output(), s, "a", 1)
		m.Host.Tunnel = host
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- m.Run(ctx) }()
		return m, func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	until := func(what string, want directory.Tunnel) {
		t.Helper()
		for {
			v, err := s.Look(t.Context())
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if nodes := v.Nodes(); len(nodes) == 1 && nodes[0].Tunnel == want {
				return
			}
		}
	}
	own := blocks.Tunnel(said)
	m, stop := run(&own)
	until("at first", said)

	v, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e := v.All(blocks.NodeKey)[0]
	forged := *e.Value.Host
	forged.Tunnel = &blocks.Tunnel{Key: "forged", Port: 1}
	if _, err := s.Commit(t.Context(), blocks.Txn{Put: []blocks.Pair{{Key: e.Key, Value: blocks.Value{Host: &forged}}}}); err != nil {
		t.Fatal(err)
	}
	until("forged", directory.Tunnel(*forged.Tunnel))
	m.SayAgain()
	until("said again", said)
	stop()

	_, stop = run(nil)
	until("without WireGuard", directory.Tunnel{})
	stop()
}
