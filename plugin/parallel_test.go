package plugin_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestParallel adds many containers at once: no address is given twice.
//
// clause: P20
func TestParallel(t *testing.T) {
	r := listed(t, "bridge").runner(t)
	const n = 64
	var all [n]attachment
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range all {
		all[i] = attachment{id: fmt.Sprint("p", i), netns: nstest.NewNS(t)}
		wg.Go(func() { errs[i] = r.add(&all[i]) })
	}
	wg.Wait()
	seen := map[string]string{}
	for i := range all {
		if errs[i] != nil {
			t.Errorf("add %s: %v", all[i].id, errs[i])
			continue
		}
		res, err := spec.DecodeResult(all[i].prev, spec.V110)
		if err != nil {
			t.Fatal(err)
		}
		for _, ip := range res.IPs {
			if other, ok := seen[ip.Address.String()]; ok {
				t.Errorf("%s and %s both have %s", other, all[i].id, ip.Address)
			}
			seen[ip.Address.String()] = all[i].id
		}
	}
	if len(seen) != 2*n {
		t.Errorf("%d addresses for %d containers", len(seen), n)
	}
	for i := range all {
		wg.Go(func() { errs[i] = r.del(&all[i]) })
	}
	wg.Wait()
	for i := range errs {
		if errs[i] != nil {
			t.Errorf("del %s: %v", all[i].id, errs[i])
		}
	}
	if s := state(t); strings.Contains(s, "veth") || strings.Contains(s, "10.77.0.2") {
		t.Errorf("left after all were deleted:\n%s", s)
	}
}
