package conformance

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

var matrix = flag.String("matrix", "1/60", "K/N: make all checks of each N-th model, from the K-th on")

// alsoTable names the checks that fail beside the one that a model's fault is for. A fault breaks more than one rule there.
const alsoTable = "testdata/tables/also.txt"

// No check fails for a fault that another one is for, but where a table says so.
func TestOnlyItCatches(t *testing.T) {
	var k, n int
	if _, err := fmt.Sscanf(*matrix, "%d/%d", &k, &n); err != nil || n < 1 {
		t.Fatalf("-matrix=%s: want K/N, as 1/12", *matrix)
	}
	also := make([][]string, len(Checks()))
	var all sync.WaitGroup
	free := make(chan struct{}, 4)
	for i, c := range Checks() {
		if i%n != k%n {
			continue
		}
		all.Go(func() {
			free <- struct{}{}
			also[i] = failures(brokenRun(t, c, nil))
			<-free
		})
	}
	all.Wait()

	var lines bytes.Buffer
	known := readAlso(t)
	for i, c := range Checks() {
		others := slices.DeleteFunc(also[i], func(id string) bool { return id == c.ID })
		slices.Sort(others)
		if len(others) > 0 {
			fmt.Fprintf(&lines, "%s: %s\n", c.ID, strings.Join(others, " "))
		}
		if want := known[c.ID]; i%n == k%n && !slices.Equal(others, want) && !*update {
			t.Errorf("the fault of %s fails %q, too; want %q", c.ID, others, want)
		}
	}
	if *update && n == 1 {
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
