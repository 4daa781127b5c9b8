// Package etcd gives a node its blocks of addresses: it does what the node's [blocks.Owner] wants, in etcd and in the
// files of this host. It decides nothing itself.
package etcd

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
)

// graveSeconds is how long nobody claims a block of a node that was forgotten.
const graveSeconds = 600

// pause is the time between attempts.
const pause = time.Second

// A Store is where the nodes of a cluster share blocks.
type Store struct {
	client *clientv3.Client
	prefix string // of all keys
}

// Open returns the store of a cluster. It does not wait for etcd. The URLs of the endpoints are those of etcd's members.
func Open(endpoints []string, security *tls.Config, cluster string) (*Store, error) {
	reconnect := backoff.DefaultConfig
	reconnect.MaxDelay = pause // the default is two minutes
	c, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints,
		TLS:       security,
		Logger:    zap.NewNop(), // each error is returned, too

		DialKeepAliveTime:    10 * time.Second, // a member that is gone without a word is found by then
		DialKeepAliveTimeout: 5 * time.Second,
		DialOptions:          []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect})},
	})
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return &Store{client: c, prefix: "/fairlead/" + cluster + "/v1/"}, nil
}

// Close ends the connections.
func (s *Store) Close() error { return s.client.Close() }

func (s *Store) key(k blocks.Key) string { return s.prefix + k.String() }

// identifier returns the one that etcd gave itself. A restored etcd has another one, if it was restored with another
// --initial-cluster-token.
func identifier(h *etcdserverpb.ResponseHeader) string { return strconv.FormatUint(h.ClusterId, 16) }

// Read reads entries at one revision. The answer is never an old one.
func (s *Store) Read(ctx context.Context, r blocks.Read) (blocks.Snapshot, error) {
	var gets []clientv3.Op
	for _, k := range r.Keys {
		gets = append(gets, clientv3.OpGet(s.key(k)))
	}
	if r.Mine != "" {
		gets = append(gets, clientv3.OpGet(s.prefix+blocks.MinePrefix(r.Mine), clientv3.WithPrefix()))
	}
	resp, err := s.client.Txn(ctx).Then(gets...).Commit()
	if err != nil {
		return blocks.Snapshot{}, fmt.Errorf("read from etcd: %w", err)
	}
	snap := blocks.Snapshot{Store: identifier(resp.Header)}
	for i, part := range resp.Responses {
		for _, kv := range part.GetResponseRange().Kvs {
			var k blocks.Key
			if i < len(r.Keys) {
				k = r.Keys[i]
			} else if k, err = blocks.ParseMine(r.Mine, string(kv.Key[len(s.prefix):])); err != nil {
				return snap, err
			}
			e, err := entry(k, kv)
			if err != nil {
				return snap, err
			}
			snap.Entries = append(snap.Entries, e)
		}
	}
	return snap, nil
}

// entry decodes what etcd has of a key.
func entry(k blocks.Key, kv *mvccpb.KeyValue) (blocks.Entry, error) {
	e := blocks.Entry{Pair: blocks.Pair{Key: k}, Revision: kv.ModRevision}
	if err := json.Unmarshal(kv.Value, &e.Value); err != nil {
		return e, fmt.Errorf("etcd: the value of %s is not of this version: %w", kv.Key, err)
	}
	return e, nil
}

// Commit does a transaction. After an error, nobody knows whether it was done, or will be.
func (s *Store) Commit(ctx context.Context, t blocks.Txn) (blocks.Outcome, error) {
	var conditions []clientv3.Cmp
	var seen, changes []clientv3.Op
	for _, c := range t.If {
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(s.key(c.Key)), "=", c.Revision))
		seen = append(seen, clientv3.OpGet(s.key(c.Key)))
	}
	for _, p := range t.Put {
		put, err := s.put(ctx, p)
		if err != nil {
			return blocks.Outcome{}, err
		}
		changes = append(changes, put)
	}
	for _, k := range t.Delete {
		changes = append(changes, clientv3.OpDelete(s.key(k)))
	}
	resp, err := s.client.Txn(ctx).If(conditions...).Then(changes...).Else(seen...).Commit()
	if err != nil {
		return blocks.Outcome{}, fmt.Errorf("write to etcd: %w", err)
	}
	r := blocks.Outcome{Store: identifier(resp.Header), Revision: resp.Header.Revision, Done: resp.Succeeded}
	if r.Done {
		return r, nil
	}
	for i, part := range resp.Responses {
		for _, kv := range part.GetResponseRange().Kvs {
			e, err := entry(t.If[i].Key, kv)
			if err != nil {
				return r, err
			}
			r.Seen = append(r.Seen, e)
		}
	}
	return r, nil
}

// put returns the operation that writes a pair. A grave ends by itself.
func (s *Store) put(ctx context.Context, p blocks.Pair) (clientv3.Op, error) {
	value, err := json.Marshal(p.Value)
	if err != nil {
		return clientv3.Op{}, err
	}
	if p.Key.Kind != blocks.GraveKey {
		return clientv3.OpPut(s.key(p.Key), string(value)), nil
	}
	lease, err := s.client.Grant(ctx, graveSeconds)
	if err != nil {
		return clientv3.Op{}, fmt.Errorf("write to etcd: %w", err)
	}
	return clientv3.OpPut(s.key(p.Key), string(value), clientv3.WithLease(lease.ID)), nil
}

// watch sends to changed after each change that concerns a node, and when it may have missed some, until ctx ends.
func (s *Store) watch(ctx context.Context, node string, changed chan<- struct{}) {
	for _, prefix := range []string{blocks.MinePrefix(node), blocks.Key{Kind: blocks.EpochKey, Node: node}.String(),
		string(blocks.ConfigKey), string(blocks.ReadoptKey)} {
		go s.watchPrefix(ctx, s.prefix+prefix, changed)
	}
}

// watchPrefix begins anew when etcd ends the watch: it has no leader, or has dropped revisions.
func (s *Store) watchPrefix(ctx context.Context, prefix string, changed chan<- struct{}) {
	for ctx.Err() == nil {
		events := s.client.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(),
			clientv3.WithCreatedNotify())
		for range events {
			notify(changed)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}
