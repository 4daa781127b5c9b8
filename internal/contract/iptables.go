package contract

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// EachIPTables runs fn for both variants of iptables, on a host whose nat tables are of that one.
func EachIPTables(t *testing.T, fn func(t *testing.T, v xtables.Variant)) {
	for _, v := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		t.Run(v.String(), func(t *testing.T) {
			for _, program := range []string{"iptables-", "ip6tables-"} {
				out, err := exec.Command("nsenter", "--net="+nstest.NewNS(t), program+v.String(), "-t", "nat", "-L",
					"-n").CombinedOutput()
				if err != nil {
					nstest.Skip(t, string(out))
				}
			}
			fn(t, v)
		})
	}
}

// ChooseVariant makes the tables of a variant, so that it is the one of this host.
func ChooseVariant(t testing.TB, w *kernel.World, v xtables.Variant) {
	t.Helper()
	for _, program := range []string{"iptables-", "ip6tables-"} {
		for _, table := range []string{"nat", "filter"} {
			Host(t, w, "%s%v -t %s -N TO-BE-HERE", program, v, table)
			Host(t, w, "%s%v -t %s -X TO-BE-HERE", program, v, table)
		}
	}
}

// IPTablesState is what iptables-save says of both families, without counters.
func IPTablesState(t testing.TB, w *kernel.World, v xtables.Variant) string {
	t.Helper()
	var keep []string
	for _, program := range []string{"iptables-", "ip6tables-"} {
		for line := range strings.Lines(Host(t, w, "%s%v-save", program, v)) {
			if !strings.HasPrefix(line, "#") {
				line, _, _ = strings.Cut(line, " [")
				keep = append(keep, program+strings.TrimSpace(line))
			}
		}
	}
	slices.Sort(keep)
	return strings.Join(keep, "\n")
}
