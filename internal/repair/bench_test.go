package repair_test

import (
	"fmt"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// BenchmarkRepair is a repair of 1,000 attachments, each with a published port and a masqueraded address, after a
// flush, and where nothing is missing.
func BenchmarkRepair(b *testing.B) {
	const n = 1000
	s := newSite(b)
	l := s.network("lan", "10.9.0.0/16")
	for i := range n {
		s.add(l, fmt.Sprint("c", i), fmt.Sprint(10000+i, ":80"))
	}
	for name, flush := range map[string]bool{"flushed": true, "whole": false} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				if flush {
					nstest.Run(b, "nft", "flush", "ruleset")
				}
				b.StartTimer()
				if r := s.repair(); !r.OK() || len(r.Findings) != n {
					b.Fatalf("%v, %d attachments", r.Problems, len(r.Findings))
				}
			}
		})
	}
}
