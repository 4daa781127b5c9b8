package fleet

import (
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/etcd"
)

// What a node said is told with its age, where that is known.
func TestUses(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for want, at := range map[string]int64{
		"1 blocks, and said that 2 addresses were in use":        0,
		"1 blocks, and said 4m ago that 2 addresses were in use": 1_000_000 - 241,
	} {
		if got := uses(etcd.MemberInfo{Blocks: 1, Leased: 2, LeasedAt: at}, now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
