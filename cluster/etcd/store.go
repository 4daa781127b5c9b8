// Package etcd gives a node its blocks of addresses: it does what the node's [blocks.Owner] wants, in etcd and in the
// files of this host. It decides nothing itself.
package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
)

// graveSeconds is how long no node claims a block of a node that was forgotten.
const graveSeconds = 600

// pause is the time between attempts.
const pause = time.Second

func (s *Store) key(k blocks.Key) string { return s.prefix + k.String() }

// identifier returns the one that etcd gave itself. A restored etcd has another one, if it was restored with another
// --initial-cluster-token.
func identifier(h *etcdserverpb.ResponseHeader) string { return strconv.FormatUint(h.ClusterId, 16) }

// Read reads entries at one revision. The answer is never an old one.
func (s *Store) Read(ctx context.Context, r blocks.Read) (blocks.Snapshot, error) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	c, err := s.connect()
	if err != nil {
		return blocks.Snapshot{}, err
	}
	before := s.highest.Load()
	resp, err := c.Txn(ctx).Then(s.gets(r)...).Commit()
	if err != nil {
		return blocks.Snapshot{}, s.failed(err)
	}
	s.checkRevision(before, resp.Header.Revision)
	return s.snapshot(r, resp.Header, resp.Responses)
}

// gets are the operations that read.
func (s *Store) gets(r blocks.Read) (gets []clientv3.Op) {
	for _, k := range r.Keys {
		gets = append(gets, clientv3.OpGet(s.key(k)))
	}
	if r.Mine != "" {
		gets = append(gets, clientv3.OpGet(s.prefix+blocks.MinePrefix(r.Mine), clientv3.WithPrefix()))
	}
	return gets
}

// snapshot returns what these operations read.
func (s *Store) snapshot(r blocks.Read, header *etcdserverpb.ResponseHeader, parts []*etcdserverpb.ResponseOp) (
	snap blocks.Snapshot, err error) {
	snap = blocks.Snapshot{Store: identifier(header), Revision: header.Revision}
	for i, part := range parts {
		for _, kv := range part.GetResponseRange().Kvs {
			isOfNode := i >= len(r.Keys)
			var k blocks.Key
			if isOfNode {
				k, err = blocks.Parse(string(kv.Key[len(s.prefix):]))
			} else {
				k = r.Keys[i]
			}
			var e blocks.Entry
			if err == nil {
				e, err = entry(k, kv)
			}
			switch {
			case err == nil:
				snap.Entries = append(snap.Entries, e)
			case !isOfNode:
				return snap, err
			}
			err = nil // a node allocates from no block of which it does not understand the entry. The view names it
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
	if !e.Value.IsOf(k.Kind) {
		return e, fmt.Errorf("etcd: the value of %s is not of this version: %s", kv.Key, kv.Value)
	}
	if e.Value.Host != nil {
		e.Value.Host.Joined = kv.CreateRevision
	}
	return e, nil
}

// Commit does a transaction. After an error, it is not known whether it was done, or will be.
func (s *Store) Commit(ctx context.Context, t blocks.Txn) (blocks.Outcome, error) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	var conditions []clientv3.Cmp
	var seen, changes []clientv3.Op
	for _, c := range t.If {
		condition := clientv3.Compare(clientv3.ModRevision(s.key(c.Key)), "=", c.Revision)
		if isOfBlocks := c.Key.Kind == blocks.BlockKey || c.Key.Kind == blocks.GraveKey; isOfBlocks && !c.Key.Block.IsValid() {
			condition = clientv3.Compare(clientv3.ModRevision(s.key(c.Key)+"/"), "=", c.Revision).WithPrefix()
		}
		conditions = append(conditions, condition)
		seen = append(seen, clientv3.OpGet(s.key(c.Key)))
	}
	for _, p := range t.Put {
		put, err := s.put(ctx, p, t.Lease)
		if err != nil {
			return blocks.Outcome{}, err
		}
		changes = append(changes, put)
	}
	for _, k := range t.Delete {
		changes = append(changes, clientv3.OpDelete(s.key(k)))
	}
	made := len(changes)
	changes = append(changes, s.gets(t.Read)...)
	c, err := s.connect()
	if err != nil {
		return blocks.Outcome{}, err
	}
	before := s.highest.Load()
	resp, err := c.Txn(ctx).If(conditions...).Then(changes...).Else(seen...).Commit()
	if err != nil {
		return blocks.Outcome{}, s.failed(err)
	}
	s.checkRevision(before, resp.Header.Revision)
	r := blocks.Outcome{Store: identifier(resp.Header), Revision: resp.Header.Revision, Done: resp.Succeeded}
	if r.Done {
		r.Snapshot, err = s.snapshot(t.Read, resp.Header, resp.Responses[made:])
		return r, err
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

// put returns the operation that writes a pair. A grave ends by itself, and what says that an agent runs ends with a lease.
func (s *Store) put(ctx context.Context, p blocks.Pair, alive int64) (clientv3.Op, error) {
	value, err := json.Marshal(p.Value)
	if err != nil {
		return clientv3.Op{}, err
	}
	switch p.Key.Kind {
	case blocks.AliveKey, blocks.WantKey:
		return clientv3.OpPut(s.key(p.Key), string(value), clientv3.WithLease(clientv3.LeaseID(alive))), nil
	case blocks.GraveKey:
	default:
		return clientv3.OpPut(s.key(p.Key), string(value)), nil
	}
	c, err := s.connect()
	if err != nil {
		return clientv3.Op{}, err
	}
	lease, err := c.Grant(ctx, graveSeconds)
	if err != nil {
		return clientv3.Op{}, s.failed(err)
	}
	return clientv3.OpPut(s.key(p.Key), string(value), clientv3.WithLease(lease.ID)), nil
}
