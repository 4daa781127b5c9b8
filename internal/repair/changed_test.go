package repair_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/spec"
)

// A network has changed if its plugins have, whatever else its file says.
func TestChanged(t *testing.T) {
	const was = `{"cniVersion":"1.0.0","name":"lan","plugins":[{"type":"bridge","mtu":1400}]}`
	for what, tc := range map[string]struct {
		now  string
		want bool
	}{
		"the same":        {was, false},
		"formatted":       {strings.ReplaceAll(was, ",", ",\n  "), false},
		"another version": {strings.Replace(was, "1.0.0", "1.1.0", 1), false},
		"another MTU":     {strings.Replace(was, "1400", "1300", 1), true},
		"in a chain": {`{"cniVersion":"1.0.0","name":"lan","plugins":[{"type":"chain","plugins":[{"type":"bridge","mtu":1400}]}]}`,
			false},
	} {
		now, err := spec.ParseList([]byte(tc.now))
		if err != nil {
			t.Fatal(err)
		}
		if got := repair.Changed(now, &attach.Cached{Config: []byte(was)}); got != tc.want {
			t.Errorf("%s: %t", what, got)
		}
	}
}

// Old libraries do not record the namespace of an attachment. A handover passes over such an attachment.
func TestHandOverWithoutNamespace(t *testing.T) {
	s := newSite(t)
	l := s.list(`{"cniVersion":"1.1.0","name":"lan","plugins":[{"type":"loopback"}]}`)
	a := attach.Attachment{ContainerID: "a", Netns: nstest.NewNS(t), IfName: "lo"}
	if _, err := s.Add(bounded(t), l, a); err != nil {
		t.Fatal(err)
	}
	all, problems := s.List("lan")
	if len(all) != 1 || len(problems) > 0 {
		t.Fatal(all, problems)
	}
	b, err := os.ReadFile(all[0].File)
	if err != nil {
		t.Fatal(err)
	}
	var entry map[string]json.RawMessage
	if err := json.Unmarshal(b, &entry); err != nil {
		t.Fatal(err)
	}
	delete(entry, "netns")
	if b, err = json.Marshal(entry); err != nil {
		t.Fatal(err)
	}
	b = []byte(strings.ReplaceAll(string(b), `"sandbox":"`+all[0].Netns+`"`, `"sandbox":""`))
	if err := os.WriteFile(all[0].File, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if again, _ := s.List("lan"); len(again) != 1 || again[0].Netns != "" {
		t.Fatalf("the namespace is recorded: %+v", again)
	}

	if got := states(s.handOver(&repair.Repairer{})); got != "lan/a/lo in order" {
		t.Error(got)
	}
}
