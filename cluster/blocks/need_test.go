package blocks

import (
	"testing"
	"time"
)

func TestNeed(t *testing.T) {
	n := Need{Idle: 10 * time.Minute}
	for _, step := range []struct {
		minute, owned, needed int
		want, next            int // next is a minute; zero: none
	}{
		{0, 0, 1, 1, 0},
		{1, 1, 1, 1, 0},
		{2, 1, 2, 2, 0},
		{3, 2, 3, 3, 0},  // a burst
		{4, 3, 2, 3, 14}, // 2 would do
		{10, 3, 2, 3, 14},
		{14, 3, 2, 2, 0},
		{15, 2, 1, 2, 25},
		{20, 2, 2, 2, 0}, // needed again: the time begins anew
		{21, 2, 1, 2, 31},
		{31, 2, 1, 1, 0},
	} {
		at := time.Unix(int64(step.minute)*60, 0)
		got, next := n.Blocks(at, step.needed, step.owned)
		wantNext := time.Time{}
		if step.next != 0 {
			wantNext = time.Unix(int64(step.next)*60, 0)
		}
		if got != step.want || !next.Equal(wantNext) {
			t.Errorf("minute %d, %d needed: %d blocks, asked again at %v, want %d and %v", step.minute, step.needed, got,
				next, step.want, wantNext)
		}
	}

	restarted := Need{Idle: time.Minute}
	if got, _ := restarted.Blocks(time.Unix(0, 0), 1, 3); got != 3 {
		t.Errorf("an agent that starts wants %d blocks, and has 3", got)
	}
}
