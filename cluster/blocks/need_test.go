package blocks

import (
	"net/netip"
	"testing"
	"time"
)

func TestNeed(t *testing.T) {
	p := Pool{Prefix: netip.MustParsePrefix("10.0.0.0/16"), Bits: 28, Parts: 1} // 13 addresses
	n := Need{Least: 1, Spare: 5, Idle: 10 * time.Minute}
	for _, step := range []struct {
		minute, owned, leases int
		want, next            int // next is a minute; zero: none
	}{
		{0, 0, 0, 1, 0},
		{1, 1, 8, 1, 0},
		{2, 1, 9, 2, 0},  // 4 are free
		{3, 2, 30, 3, 0}, // a burst
		{4, 3, 9, 3, 14}, // 2 would do
		{10, 3, 20, 3, 14},
		{14, 3, 9, 2, 0},
		{15, 2, 0, 2, 25},
		{20, 2, 21, 2, 0}, // needed again: the time begins anew
		{21, 2, 0, 2, 31},
		{31, 2, 0, 1, 0},
	} {
		at := time.Unix(int64(step.minute)*60, 0)
		got, next := n.Blocks(at, p, step.owned, step.leases)
		wantNext := time.Time{}
		if step.next != 0 {
			wantNext = time.Unix(int64(step.next)*60, 0)
		}
		if got != step.want || !next.Equal(wantNext) {
			t.Errorf("minute %d, %d leases: %d blocks, asked again at %v, want %d and %v", step.minute, step.leases, got,
				next, step.want, wantNext)
		}
	}

	restarted := Need{Spare: 5, Idle: time.Minute}
	if got, _ := restarted.Blocks(time.Unix(0, 0), p, 3, 0); got != 3 {
		t.Errorf("an agent that starts wants %d blocks, and has 3", got)
	}
	fixed := Need{Least: 2}
	if got, _ := fixed.Blocks(time.Unix(0, 0), p, 0, 100); got != 2 {
		t.Errorf("%d", got)
	}
}
