package etcd

import (
	"context"
	"net"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
)

// An oldServer says its version, and counts what else it is asked.
type oldServer struct {
	etcdserverpb.UnimplementedMaintenanceServer
	etcdserverpb.UnimplementedKVServer
	writes int
}

func (s *oldServer) Status(context.Context, *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	return &etcdserverpb.StatusResponse{Version: "3.3.27"}, nil
}

func (s *oldServer) Txn(ctx context.Context, r *etcdserverpb.TxnRequest) (*etcdserverpb.TxnResponse, error) {
	s.writes++
	return s.UnimplementedKVServer.Txn(ctx, r)
}

// An agent claims nothing in an etcd that is too old, or does not answer, and says which and why.
func TestNoEtcd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	old, server := &oldServer{}, grpc.NewServer()
	etcdserverpb.RegisterMaintenanceServer(server, old)
	etcdserverpb.RegisterKVServer(server, old)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)

	const nowhere = "127.0.0.1:1"
	for _, c := range []struct{ node, at, want string }{
		{"a", l.Addr().String(), "is version 3.3.27, and fairlead-agent needs 3.4.0 or later"},
		{"b", nowhere, "does not answer"},
	} {
		at, want := c.at, c.want
		s, err := Open(Access{Cluster: "c", Endpoints: []string{"http://" + at}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		ctx, stop := context.WithCancel(t.Context())
		m := member(t.Output(), s, c.node, 1)
		var failure error
		m.Failed = func(err error) {
			failure = err
			stop()
		}
		if err := m.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if failure == nil || !strings.Contains(failure.Error(), at) || !strings.Contains(failure.Error(), want) {
			t.Errorf("%v, want %s and %q", failure, at, want)
		}
		expect(t, c.node, 0)
		g, err := grant.OfBoot(c.node)
		if err != nil || !strings.Contains(g.Missing, want) || old.writes > 0 {
			t.Errorf("%+v, %v, %d writes: want %q, and none", g, err, old.writes, want)
		}
	}
}
