package hostview

import (
	"os"
	"path/filepath"
	"testing"
)

// A procDir is a directory like /proc.
type procDir struct {
	*testing.T
	dir string
}

// link makes a link of a process, such as ns/mnt, to a file of that name, which is the same for all processes.
func (p procDir) link(name, target string) {
	path, file := filepath.Join(p.dir, name), filepath.Join(p.dir, target)
	if target == "" {
		return
	}
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if _, missing := os.Stat(file); err == nil && missing != nil {
		err = os.WriteFile(file, nil, 0o644)
	}
	beside := filepath.Join(filepath.Dir(path), target)
	if _, missing := os.Stat(beside); err == nil && missing != nil {
		err = os.Link(file, beside)
	}
	if err == nil {
		err = os.Symlink(target, path)
	}
	if err != nil {
		p.Fatal(err)
	}
}

// The mounts are the host's in the kernel's first namespace, and in that of the host's process 1. Where this cannot be
// told, they are not.
func TestHostMounts(t *testing.T) {
	const firstMounts, firstPIDs = "mnt:[4026531832]", "pid:[4026531836]"
	for name, tc := range map[string]struct {
		mine, init, pids string
		want             bool
	}{
		"the first":                {firstMounts, "", "", true},
		"those of process 1":       {"mnt:[7]", "mnt:[7]", firstPIDs, true},
		"those of a container":     {"mnt:[8]", "mnt:[7]", firstPIDs, false},
		"beside another process 1": {"mnt:[7]", "mnt:[7]", "pid:[9]", false},
		"without process 1":        {"mnt:[7]", "", firstPIDs, false},
		"without numbers":          {"mnt:[7]", "mnt:[7]", "", false},
		"without mounts":           {"", "mnt:[7]", firstPIDs, false},
	} {
		p := procDir{t, t.TempDir()}
		p.link("thread-self/ns/mnt", tc.mine)
		p.link("1/ns/mnt", tc.init)
		p.link("thread-self/ns/pid", tc.pids)
		if got := hostMounts(p.dir); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// Process 1 of a container sees no process of the host. Others of the host do.
func TestOwnProcesses(t *testing.T) {
	for name, tc := range map[string]struct {
		first, self string
		want        bool
	}{
		"process 1": {"plugin", "plugin", true},
		"another":   {"init", "plugin", false},
		"no first":  {"", "plugin", false},
		"no self":   {"init", "", false},
	} {
		p := procDir{t, t.TempDir()}
		p.link("1/exe", tc.first)
		p.link("self/exe", tc.self)
		if got := ownProcesses(p.dir); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// A file that is missing in a directory is gone.
func TestUnseen(t *testing.T) {
	if dir := t.TempDir(); Unseen(filepath.Join(dir, "none")) {
		t.Error("a file whose directory exists is unseen")
	}
	if netns := "/proc/4000000/ns/net"; Unseen(netns) != ownProcesses("/proc") {
		t.Errorf("%s: unseen %v", netns, Unseen(netns))
	}
	if netns := "/nowhere/at/all"; Unseen(netns) == hostMounts("/proc") {
		t.Errorf("%s: unseen %v", netns, Unseen(netns))
	}
}
