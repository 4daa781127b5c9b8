package dist

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSize holds the size of the plugins' program, which every call maps: size.txt says what it was and why it grew.
// Growth of more than 2 % needs a further line there.
func TestSize(t *testing.T) {
	text, err := os.ReadFile("size.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var last int64
	var why string
	if _, err := fmt.Sscanf(lines[len(lines)-1], "%d %s", &last, &why); err != nil {
		t.Fatalf("size.txt: the last line is %q, want bytes and a reason: %v", lines[len(lines)-1], err)
	}
	st, err := os.Stat(filepath.Join(build(t), "cni", "bridge"))
	if err != nil {
		t.Fatal(err)
	}
	if now := st.Size(); now > last*102/100 {
		t.Errorf("the plugins' program has %d bytes, and had %d: find what grew, or say why in internal/dist/size.txt", now,
			last)
	}
}

// TestStartReadsNoCgroup holds that no call reads the mounts of the host for the sake of the runtime's scheduler.
func TestStartReadsNoCgroup(t *testing.T) {
	for _, program := range []string{filepath.Join("cni", "bridge"), "fairlead"} {
		info, err := buildinfo.ReadFile(filepath.Join(build(t), program))
		if err != nil {
			t.Fatal(err)
		}
		set := ""
		for _, s := range info.Settings {
			if s.Key == "DefaultGODEBUG" {
				set = s.Value
			}
		}
		if !strings.Contains(set, "containermaxprocs=0") || !strings.Contains(set, "updatemaxprocs=0") {
			t.Errorf("%s: the program's own GODEBUG is %q", program, set)
		}
	}
}
