package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A watcher ends its watches when its client is closed.
type watcher struct {
	*link
	closed chan struct{}
}

func (w watcher) Close() error                          { close(w.closed); return nil }
func (w watcher) RequestProgress(context.Context) error { return nil }

// Watch implements clientv3.Watcher. A watch that begins at a revision that is not there yet says nothing until then.
func (w watcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpGet(key, opts...)
	out := make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		next := op.Rev()
		isFirst := true
		for {
			if isCut, _, healed := w.state(); isCut {
				select {
				case <-healed:
				case <-w.closed:
					return
				case <-ctx.Done():
					return
				}
			}
			if _, isDead, _ := w.state(); isDead || w.pass(ctx, "watch "+key) != nil {
				return
			}
			s := w.store
			s.mu.Lock()
			if next == 0 {
				next = s.revision + 1
			}
			events := s.since(next, op.KeyBytes(), op.RangeBytes())
			next = max(next, s.revision+1)
			header, changed, broken, isDown := *s.header(), s.changed, s.broken, s.isDown
			s.mu.Unlock()
			if isDown {
				return
			}
			if isFirst || len(events) > 0 {
				isFirst = false
				select {
				case out <- clientv3.WatchResponse{Header: header, Events: events, Created: len(events) == 0}:
				case <-w.closed:
					return
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
			case <-broken:
				return
			case <-w.closed:
				return
			}
		}
	}()
	return out
}
