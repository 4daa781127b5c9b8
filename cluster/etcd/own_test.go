package etcd

import (
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// The refusal to remove a member says which others have to run.
func TestLostQuorum(t *testing.T) {
	list := []StoreMember{{Name: "m1", ID: 1, Answers: true}, {Name: "m2", ID: 2}, {Name: "m3", ID: 3}}
	for want, list := range map[string][]StoreMember{"start m3 before": list, "try again": list[:2], "it is the only one": list[1:2]} {
		err := lostQuorum(list, StoreMember{Name: "m2", ID: 2}, rpctypes.ErrUnhealthy)
		if !strings.Contains(err.Error(), "member m2 stays") || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
	if err := lostQuorum(list, list[1], errUnwatched); err != errUnwatched {
		t.Error(err)
	}
}
