package routing

import (
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/resource/addr"
)

// A table is free if no rule leads to it and no route is in it, of either family.
func TestFreeTable(t *testing.T) {
	w := routed(t)
	for _, line := range []string{"rule add from 192.0.2.1 lookup 100", "-6 rule add from 2001:db8::1 lookup 101",
		"route add 192.0.2.9 dev eth0 table 102",
		"-6 route add 2001:db8::9 dev lo table 103", "rule add iif lo lookup 105"} {
		contract.Container(t, w, "ip %s", line)
	}
	contract.Must(t, w, SourceRouting{Owner: contract.Owner, Sources: []Source{source4, source6}})
	shows(t, w, "rule show from 10.1.0.2", "32765: from 10.1.0.2 lookup 104 proto 250")
	shows(t, w, "-6 rule show from fd00::2", "32765: from fd00::2 lookup 106 proto 250")
}

// The kernel's own tables are not free, whatever is in them.
func TestFreeTableAboveTheKernels(t *testing.T) {
	w := routed(t)
	var lines strings.Builder
	for n := 100; n < 253; n++ {
		lines.WriteString("rule add from 192.0.2.1 lookup " + strconv.Itoa(n) + "\n")
	}
	contract.IPBatch(t, w.Container.Path, lines.String())
	contract.Must(t, w, SourceRouting{Owner: contract.Owner, Sources: []Source{source4}})
	shows(t, w, "rule show from 10.1.0.2", "32765: from 10.1.0.2 lookup 256 proto 250")
}

// With a table that somebody else fills, nothing but rules is made.
func TestSourceRoutingToATable(t *testing.T) {
	w := routed(t)
	contract.Must(t, w, addr.Route{Link: "eth0", Dst: contract.Default4, Via: source4.Via, Table: 70000})
	s := SourceRouting{Owner: contract.Owner, Sources: []Source{source4, source6}, Table: 70000}
	before := contract.State(t, w)
	contract.Terms{State: sourceState(w)}.Test(t, w, s,
		contract.Break("rule", contract.In(w, "ip rule del from 10.1.0.2"), "from 10.1.0.2 lookup 70000: is missing"),
		contract.Break("IPv6 rule", contract.In(w, "ip -6 rule del from fd00::2"), "from fd00::2 lookup 70000: is missing"),
	)
	contract.Must(t, w, s)
	if after := contract.State(t, w); after != before {
		t.Errorf("more than rules:%s", contract.Difference(before, after))
	}
	// Both kinds in one chain have their owner in common.
	own := SourceRouting{Owner: contract.Owner, Sources: []Source{source4}}
	contract.Must(t, w, own)
	for _, r := range []SourceRouting{s, own} {
		if err := r.Verify(t.Context(), w); err != nil {
			t.Errorf("%v: %v", r, err)
		}
	}
	if err := (SourceRouting{Owner: contract.Owner}).Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	if after := contract.State(t, w); after != before || len(remembered(t, w)) != 0 {
		t.Errorf("left behind:%s %v", contract.Difference(before, after), remembered(t, w))
	}
	shows(t, w, "-4 rule", "0: from all lookup local", "32766:", "32767:")
}
