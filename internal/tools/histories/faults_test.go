package main

import (
	"os"
	"strings"
	"testing"
)

// Each edit of the faults has its place in the tree.
func TestFaultsApply(t *testing.T) {
	for _, f := range faults() {
		for _, e := range f.edits {
			b, err := os.ReadFile("../../../" + e.file)
			if err != nil {
				t.Error(err)
			}
			if n := strings.Count(string(b), e.old); n != 1 {
				t.Errorf("%s: %s has %d times, not once:\n%s", f.name, e.file, n, e.old)
			}
		}
	}
}
