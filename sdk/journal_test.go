package sdk

import (
	"os"
	"path/filepath"
	"testing"
)

// A record that would make the file longer than it may be begins another one, and the former one is kept.
func TestJournalFull(t *testing.T) {
	j := Journal{File: filepath.Join(t.TempDir(), "calls"), Max: 10}
	for _, record := range []string{"123456\n", "abc", "ABCDEF\n", "longer than it may be\n"} {
		if err := j.write([]byte(record)); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range map[string]string{j.File: "longer than it may be\n", j.File + ".1": "ABCDEF\n"} {
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", file, got, err, want)
		}
	}
}
