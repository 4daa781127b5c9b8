package etcd

import (
	"bytes"
	"net"
	"sync/atomic"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
)

// A claim whose answer is lost counts only after another epoch has begun, so that nothing is late.
func TestUnknown(t *testing.T) {
	s := startEtcd(t)
	m := member(t.Output(), dial(t, proxy(t, "/block/p/")), "a", 1)
	epochs, claims := 0, 0
	m.before = func(a blocks.Action) {
		txn, ok := a.(blocks.Txn)
		if !ok {
			return
		}
		switch txn.Put[0].Key.Kind {
		case blocks.EpochKey:
			epochs++
		case blocks.BlockKey:
			claims++
		}
	}
	m.rest(t)
	check(t, s)
	expect(t, "a", 1)
	if epochs != 2 || claims != 1 {
		t.Errorf("%d epochs and %d claims: want another epoch, and the block that was claimed", epochs, claims)
	}
}

// proxy is a way to etcd. The connection ends instead of the answer to the first request that has a text in it.
func proxy(t *testing.T, text string) (at string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	var lost, spent atomic.Bool
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", address)
			if err != nil {
				_ = client.Close()
				continue
			}
			pass := func(to, from net.Conn, look func(data []byte) bool) {
				defer func() { _, _ = client.Close(), server.Close() }()
				b := make([]byte, 64<<10)
				for {
					n, err := from.Read(b)
					if err != nil || !look(b[:n]) {
						return
					}
					if _, err := to.Write(b[:n]); err != nil {
						return
					}
				}
			}
			go pass(server, client, func(data []byte) bool {
				if bytes.Contains(data, []byte(text)) && spent.CompareAndSwap(false, true) {
					lost.Store(true)
				}
				return true
			})
			go pass(client, server, func(data []byte) bool {
				isAnswer := len(data) > 64 // and no frame of the connection's own
				return !isAnswer || !lost.CompareAndSwap(true, false)
			})
		}
	}()
	return l.Addr().String()
}
