package arch

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// CONTRIBUTING.md says how many seconds each part of CI may take, and all parts together take less than 35 minutes.
func TestTimesOfCI(t *testing.T) {
	out, err := exec.Command("../../.ci/run", "--table").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), string(out)) {
		t.Errorf("CONTRIBUTING.md does not have the table that `.ci/run --table` prints:\n%s", out)
	}

	rows := strings.Split(strings.TrimSpace(string(out)), "\n")
	_, all, _ := strings.Cut(rows[len(rows)-1], "| all | ")
	seconds, err := strconv.Atoi(strings.TrimSuffix(all, " |"))
	if err != nil || seconds >= 35*60 {
		t.Errorf("all parts may take %q seconds, want less than %d: %v", all, 35*60, err)
	}
}
