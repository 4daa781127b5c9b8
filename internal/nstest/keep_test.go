package nstest

import (
	"maps"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// No state of the machine comes into a host with a directory that it keeps.
func TestKeep(t *testing.T) {
	own := t.TempDir()
	t.Setenv(Keep, own+":/var/lib:/")
	kept, err := openKept()
	if err != nil || !slices.Equal(slices.Collect(maps.Keys(kept)), []string{own}) {
		t.Errorf("keeps %v, %v; want %s", kept, err, own)
	}
	for _, fd := range kept {
		unix.Close(fd)
	}

	t.Setenv(Keep, "/run")
	if kept, err := openKept(); err == nil {
		t.Errorf("keeps %v", kept)
	}
}
