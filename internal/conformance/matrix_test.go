package conformance

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// alsoTable names the checks that fail beside the one that a model's fault is for. A fault breaks more than one rule there.
const alsoTable = "testdata/tables/also.txt"

// No check fails for a fault that another one is for, but where a table says so.
func TestOnlyItCatches(t *testing.T) {
	var lines bytes.Buffer
	known, all, made := readAlso(t), Checks(), 0
	nstest.Sample(t, 60, func(n int) (there bool) {
		if n > len(all) {
			return false
		}
		made++
		c := all[n-1]
		others := slices.DeleteFunc(failures(brokenRun(t, c, nil)), func(id string) bool { return id == c.ID })
		slices.Sort(others)
		if len(others) > 0 {
			fmt.Fprintf(&lines, "%s: %s\n", c.ID, strings.Join(others, " "))
		}
		if want := known[c.ID]; !slices.Equal(others, want) && !*update {
			t.Errorf("the fault of %s fails %q, too; want %q", c.ID, others, want)
		}
		return true
	})
	if *update && made == len(all) {
		if err := os.WriteFile(alsoTable, lines.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// readAlso returns the table.
func readAlso(t *testing.T) map[string][]string {
	b, err := os.ReadFile(alsoTable)
	if err != nil && !*update {
		t.Fatal(err)
	}
	table := map[string][]string{}
	for line := range strings.Lines(string(b)) {
		id, others, _ := strings.Cut(strings.TrimSpace(line), ": ")
		table[id] = strings.Fields(others)
	}
	return table
}
