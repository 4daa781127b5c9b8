package etcd

import (
	"bytes"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
)

// The first agent makes the secret, all others read it, and neither takes it for an entry about nodes.
func TestSecret(t *testing.T) {
	s := startEtcd(t)
	if _, err := s.Secret(); err == nil {
		t.Error("a secret before etcd was asked")
	}
	follow := func(s *Store) []byte {
		t.Helper()
		told := make(chan struct{}, 1)
		go s.Follow(t.Context(), NewView(), func(bool) { notify(told) }, func(err error) { t.Log(err) })
		for range told {
			secret, err := s.Secret()
			if err == nil {
				return secret
			}
			if err := s.Drain(t.Context(), "a", true); err != nil { // which is told
				t.Fatal(err)
			}
		}
		return nil
	}
	first := follow(s)
	later := dial(t, address)
	if second := follow(later); len(first) != secretBytes || !bytes.Equal(first, second) {
		t.Errorf("%x and %x", first, second)
	}
	view, err := later.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for kind := range view.entries {
		if kind != blocks.ConfigKey && kind != blocks.DrainKey {
			t.Errorf("entries of the kind %v", kind)
		}
	}
}
