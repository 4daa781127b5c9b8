package etcd

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
)

// An agent reads what etcd says of its node once when it starts, and again when another one changed something. What the agent
// itself wrote, it does not read.
func TestNotices(t *testing.T) {
	s := startEtcd(t)
	begun := time.Now()
	m := member(t.Output(), s, "a", 1)
	var reads atomic.Int32
	m.before = func(a blocks.Action) {
		if r, is := a.(blocks.Read); is && r.Mine != "" {
			reads.Add(1)
		}
	}
	owned := make(chan int, 100)
	go s.Follow(t.Context(), m.View, func(bool) { owned <- len(m.View.All(blocks.BlockKey)) }, func(err error) { t.Log(err) })
	until := func(n int) {
		t.Helper()
		for {
			select {
			case is := <-owned:
				if is == n {
					return
				}
			case <-t.Context().Done():
				t.Fatal("etcd does not say it")
			}
		}
	}
	until(0) // before the member starts, because the first answer is news to it
	m.start(t)
	until(1)
	<-m.identified
	if err := s.Drain(t.Context(), m.node, true); err != nil {
		t.Fatal(err)
	}
	until(0)
	isSoon := time.Since(begun) < again // else it may have read all to make sure
	if n := reads.Load(); isSoon && n != 2 {
		t.Errorf("%d reads: want one at the start, and one when the node is drained", n)
	}
}
