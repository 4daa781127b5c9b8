package etcd

import (
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
)

// The first and the last container of a node are news after a minute, as is much, and each other one after ten.
func TestNews(t *testing.T) {
	for _, c := range []struct {
		was, is int
		age     time.Duration
		want    bool
	}{
		{0, 2, time.Second, false}, {0, 2, 2 * time.Minute, true}, {2, 0, 2 * time.Minute, true}, {0, 0, time.Hour, false},
		{2, 3, 2 * time.Minute, false}, {2, 3, 11 * time.Minute, true}, {3, 2, 11 * time.Minute, true}, {3, 3, time.Hour, false},
		{2, 12, 2 * time.Minute, true}, {2, 12, time.Second, false},
	} {
		m := &Member{said: blocks.Host{Name: "a", Leased: map[string]int{"p": c.was}}, saidAt: time.Now().Add(-c.age)}
		if got := m.isNews(blocks.Host{Name: "a", Leased: map[string]int{"p": c.is}}, 61); got != c.want {
			t.Errorf("%d, and %d said %v ago: %v", c.is, c.was, c.age, got)
		}
	}
}
