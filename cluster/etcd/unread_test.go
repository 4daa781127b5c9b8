package etcd

import (
	"context"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
)

// A node goes on beside entries that it does not understand, also among its own, claims no block of which it does not
// understand the owners, and names each.
func TestUnread(t *testing.T) {
	s := startEtcd(t)
	m := member(t.Output(), s, "a", 1)
	m.rest(t)
	j, err := (&host{network: "a"}).loadJournal()
	if err != nil {
		t.Fatal(err)
	}
	mine := s.mustRead(t, blocks.Read{Mine: j.Node}).Entries
	other := "0a090000-26"
	if mine[len(mine)-1].Key.Block.String() == "10.9.0.0/26" {
		other = "0a090040-26"
	}
	for key, value := range map[string]string{
		"mine/" + j.Node + "/p/xyz": "{}", "node/u9": "{", "node/u8": "{}", "block/p/" + other: "{", "block/p/xyz": "{}", "later/x": "{",
	} {
		if _, err := s.mustConnect(t).Put(t.Context(), s.prefix+key, value); err != nil {
			t.Fatal(err)
		}
	}

	m = member(t.Output(), s, "a", 2)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	follows := make(chan struct{}, 1)
	go s.Follow(ctx, m.View, func(bool) { notify(follows) }, func(err error) { t.Error(err) })
	<-follows
	m.rest(t)
	expect(t, "a", 1)
	got := strings.Join(m.View.Unread(), "\n")
	for _, want := range []string{"p/xyz", "node/u9", "node/u8", "block/p/" + other, "block/p/xyz"} {
		if !strings.Contains(got, want) {
			t.Errorf("nothing says %s: %s", want, got)
		}
	}
	if strings.Contains(got, "later") {
		t.Errorf("an entry of a later version is named: %s", got)
	}
}
