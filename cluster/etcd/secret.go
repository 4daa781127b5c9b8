package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// secretKey is not one of the keys of package blocks: agents of former releases take all of these for entries of theirs.
func (s *Store) secretKey() string { return strings.TrimSuffix(s.prefix, "v1/") + "agents-secret" }

// secretBytes is the length of the secret.
const secretBytes = 32

// A secret is what the agents of the cluster know and nothing else does, or why it is unknown.
type secret struct {
	bytes []byte
	err   error
}

// readSecret asks etcd for the secret until it answers, or ctx ends. Nothing else depends on it.
func (s *Store) readSecret(ctx context.Context) {
	for ctx.Err() == nil {
		bytes, err := s.askSecret(ctx)
		if _, unknown := s.Secret(); err == nil || unknown != nil {
			s.secret.Store(&secret{bytes, err})
		}
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// askSecret returns what the first agent that asked has made.
func (s *Store) askSecret(ctx context.Context) ([]byte, error) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	c, err := s.connect()
	if err != nil {
		return nil, err
	}
	has, err := c.Get(ctx, s.secretKey()) // which is no write, as the transaction is to etcd also where it changes nothing
	if err != nil {
		return nil, s.failed(err)
	}
	if len(has.Kvs) > 0 {
		return has.Kvs[0].Value, nil
	}
	made := make([]byte, secretBytes)
	_, _ = rand.Read(made) // it never fails
	isNew := clientv3.Compare(clientv3.CreateRevision(s.secretKey()), "=", 0)
	resp, err := c.Txn(ctx).If(isNew).Then(clientv3.OpPut(s.secretKey(), string(made))).
		Else(clientv3.OpGet(s.secretKey())).Commit()
	if err != nil {
		return nil, s.failed(err)
	}
	if !resp.Succeeded {
		made = resp.Responses[0].GetResponseRange().Kvs[0].Value
	}
	return made, nil
}

// Secret returns what etcd last said that the agents of the cluster know.
func (s *Store) Secret() ([]byte, error) {
	if last := s.secret.Load(); last != nil {
		return last.bytes, last.err
	}
	return nil, errors.New("etcd has not answered since this agent began")
}
