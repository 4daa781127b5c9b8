package dist

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSize holds the sizes of the programs; every call of a plugin maps the plugins'. A list of each, size-NAME.txt, says what
// the size was and why it grew. Growth of more than 2 % needs a further line there, and so does a loss.
func TestSize(t *testing.T) {
	bin := build(t)
	for name, path := range map[string]string{"cni": "cni/bridge", "fairlead": "fairlead"} {
		list := "size-" + name + ".txt"
		text, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		var last int64
		var why string
		if _, err := fmt.Sscanf(lines[len(lines)-1], "%d %s", &last, &why); err != nil {
			t.Fatalf("%s: the last line is %q, want bytes and a reason: %v", list, lines[len(lines)-1], err)
		}
		st, err := os.Stat(filepath.Join(bin, path))
		if err != nil {
			t.Fatal(err)
		}
		if now := st.Size(); now > last*102/100 || now < last*95/100 {
			t.Errorf("%s has %d bytes, and had %d: find what changed, or say why in internal/dist/%s, and make generate", path,
				now, last, list)
		}
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
