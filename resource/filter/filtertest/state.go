package filtertest

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter"
)

// FailClosedState is what ip(8) shows of our rules and of the table that they lead to.
func FailClosedState(t testing.TB, w *kernel.World) string {
	t.Helper()
	var s strings.Builder
	for _, line := range []string{"ip rule", "ip -6 rule", "ip route show table all", "ip -6 route show table all"} {
		for l := range strings.Lines(contract.Host(t, w, "%s", line)) {
			if strings.Contains(l, "proto 250") {
				s.WriteString(l)
			}
		}
	}
	return s.String()
}

// IPTablesState is what iptables-save shows of both variants and families, sorted: chains come in the order in which
// they were made. Asked for a table by name, the legacy one would make it.
func IPTablesState(t testing.TB, w *kernel.World) string {
	t.Helper()
	packets := regexp.MustCompile(`\[\d+:\d+\]|(?m)^#.*$`)
	return packets.ReplaceAllString(nstest.RunIn(t, w.Host.Path, "sh", "-c",
		"for f in iptables ip6tables; do for v in nft legacy; do echo $f $v; $f-$v-save 2>/dev/null | sort; done; "+
			"done"), "")
}

// State is what nft(8) shows of both tables, and so also shows that it can read them.
func State(t testing.TB, w *kernel.World) string {
	t.Helper()
	if err := w.Finish(); err != nil {
		t.Error(err)
	}
	return nstest.RunIn(t, w.Host.Path, "nft", "list", "ruleset")
}

// Elements is State without what attachments share and leave: chains that are named after what they do, empty maps
// and rules that belong to them.
func Elements(t testing.TB, w *kernel.World) string {
	s := State(t, w)
	for _, r := range []*regexp.Regexp{
		regexp.MustCompile(`(?m)^\tchain \w+_[0-9a-f]{12} \{\n(\t\t.*\n)*\t\}\n\n?`),
		regexp.MustCompile(`(?m)^\t(map|set) \w+_[0-9a-f]{12} \{\n\t\ttype .*\n(\t\tflags .*\n)?\t\}\n\n?`),
		regexp.MustCompile(`(?m)^.* jump \w+_[0-9a-f]{12} .*\n`),
	} {
		s = r.ReplaceAllString(s, "")
	}
	// The order of tables and chains is the order in which they were made, and counts for nothing.
	lines := strings.Split(s, "\n")
	slices.Sort(lines)
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// MakeTables makes the tables, so that the state before the first Ensure has them.
func MakeTables(t testing.TB, w *kernel.World) {
	t.Helper()
	for _, table := range []*nft.Table{filter.Inet(), filter.Bridge()} {
		if err := filter.Transact(t.Context(), w, table,
			func(f filter.Tx) error { return f.EnsureBase(filter.NewChainSet(f.Table)) }); err != nil {
			t.Fatal(err)
		}
	}
}

// Test is contract.Test on a host that has our tables. The state is what Elements shows.
func Test(t *testing.T, w *kernel.World, r plan.Resource, breakers ...contract.Breakage) {
	t.Helper()
	MakeTables(t, w)
	contract.Terms{State: func(t testing.TB) string { return Elements(t, w) }}.Test(t, w, r, breakers...)
}

// NFT runs one command of nft(8) on the host, once what was removed has ended.
func NFT(t testing.TB, w *kernel.World, line string) string {
	t.Helper()
	if err := w.Finish(); err != nil {
		t.Error(err)
	}
	return nstest.RunIn(t, w.Host.Path, "nft", line)
}
