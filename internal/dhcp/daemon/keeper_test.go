package daemon

import (
	"errors"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
)

// What is next, and when, follows from the times of the lease alone.
func TestPhases(t *testing.T) {
	now := time.Now()
	lease := func(since, t1, t2, valid time.Duration) *dhcp.Lease {
		return &dhcp.Lease{Asked: now.Add(-since), T1: t1, T2: t2, Valid: valid}
	}
	const s = time.Second
	for name, tc := range map[string]struct {
		lease      *dhcp.Lease
		confirm    bool
		lost       error
		phase      phase
		begin, end time.Duration // from now; end 0: none
	}{
		"bound":           {lease(0, 50*s, 87*s, 100*s), false, nil, renewing, 50 * s, 87 * s},
		"at T1":           {lease(50*s, 50*s, 87*s, 100*s), false, nil, renewing, 0, 37 * s},
		"at T2":           {lease(87*s, 50*s, 87*s, 100*s), false, nil, rebinding, 0, 13 * s},
		"at its end":      {lease(100*s, 50*s, 87*s, 100*s), true, nil, expiring, 0, 0},
		"to be confirmed": {lease(10*s, 50*s, 87*s, 100*s), true, nil, confirming, 0, 90 * s},
		"lost":            {lease(10*s, 50*s, 87*s, 100*s), true, errors.New("x"), acquiring, 0, 0},
		"T1 is T2":        {lease(0, 10*s, 10*s, 100*s), false, nil, renewing, 10 * s, 10 * s},
		"for ever": {lease(1e6*s, dhcp.Forever, dhcp.Forever, dhcp.Forever), false, nil, renewing,
			8760 * time.Hour, 8760 * time.Hour},
		"an end, and no word": {lease(0, dhcp.Forever, dhcp.Forever, 10*s), false, nil, renewing, 10 * s, 10 * s},
	} {
		k := &keeper{rec: leaseFile{Lease: tc.lease}, confirm: tc.confirm, lost: tc.lost}
		p, begin, end := k.next(now)
		if p != tc.phase || begin.Sub(now) != tc.begin || tc.end != 0 && end.Sub(now) != tc.end || tc.end == 0 &&
			p != expiring && !end.IsZero() {
			t.Errorf("%s: %v, from %v to %v", name, p, begin.Sub(now), end.Sub(now))
		}
	}
}

// Tries come less and less often, never at once and never after an hour of a short lease.
func TestPauses(t *testing.T) {
	for _, tc := range []struct{ left, valid, want time.Duration }{
		{time.Hour, 24 * time.Hour, 30 * time.Minute},
		{time.Minute, 24 * time.Hour, time.Minute},
		{time.Second, 24 * time.Hour, time.Minute},
		{3 * time.Second, 6 * time.Second, 1500 * time.Millisecond},
		{0, 6 * time.Second, time.Second},
		{-time.Hour, 320 * time.Second, 10 * time.Second},
	} {
		if got := pause(tc.left, tc.valid); got != tc.want {
			t.Errorf("%v left of %v: %v, want %v", tc.left, tc.valid, got, tc.want)
		}
	}
	for tries, want := range map[int]time.Duration{1: 2 * time.Second, 2: 4 * time.Second, 5: 32 * time.Second,
		6: time.Minute, 1000: time.Minute} {
		if got := again(tries); got != want {
			t.Errorf("after %d tries: %v, want %v", tries, got, want)
		}
	}
}
