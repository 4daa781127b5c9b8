package install

import (
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// An origin is whose program a file is.
type origin int

const (
	others    origin = iota // also what cannot be read, or is no program
	ours                    // of any version
	reference               // the plugin of that name of the reference implementation
)

// originOf reads what Go's linker writes into every program: the path of its main package.
func originOf(path string) origin {
	if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
		return others
	}
	info, err := buildinfo.ReadFile(path)
	switch {
	case err != nil:
		return others
	case info.Path == module+"/cmd/cni" || info.Path == module+"/cmd/fairlead":
		return ours
	case strings.HasPrefix(info.Path, "github.com/containernetworking/plugins/") &&
		filepath.Base(info.Path) == filepath.Base(path):
		return reference
	}
	return others
}

const module = "github.com/fairlead-cni/fairlead"

// Find is the directory with the plugins that came with a program of ours: cni beside it, as `make build` leaves them;
// lib/fairlead/cni beside its directory, as packages have them; or its own directory, as in an unpacked archive.
func Find(program string) (dir string, err error) {
	if program, err = filepath.EvalSymlinks(program); err != nil {
		return "", err
	}
	here := filepath.Dir(program)
	looked := []string{filepath.Join(here, "cni"), filepath.Join(here, "../lib/fairlead/cni"), here}
	for _, dir := range looked {
		if originOf(filepath.Join(dir, probe)) == ours {
			return dir, nil
		}
	}
	return "", fmt.Errorf("the plugins that belong to %s are missing: none of %s has Fairlead's %s", program,
		strings.Join(looked, ", "), probe)
}

// probe is a plugin that every version has.
const probe = "loopback"

// shipped are the plugins in the directory from, and one file of the program that all of them are.
func shipped(from string) (names []string, program string, err error) {
	all, err := list(from)
	if err != nil {
		return nil, "", err
	}
	if err := written(from); err != nil {
		return nil, "", err
	}
	known, want := digests{}, digest{}
	for _, name := range all {
		path := filepath.Join(from, name)
		if originOf(path) != ours || name == "fairlead" || name == "cni" {
			continue
		}
		if err := written(path); err != nil {
			return nil, "", err
		}
		have, err := known.of(path)
		switch {
		case err != nil:
			return nil, "", err
		case program == "":
			program, want = path, have
		case have != want:
			return nil, "", fmt.Errorf("%s and %s are plugins of different versions of Fairlead: unpack or build "+
				"one version into an empty directory",
				program, path)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, "", fmt.Errorf("%s has no plugins of Fairlead", from)
	}
	return names, program, nil
}

// written refuses a program, or a directory of programs, that anybody may have written.
func written(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if st.Mode().Perm()&0o002 != 0 {
		return &UnsafeError{path, "every user may write to it"}
	}
	return nil
}

// list is the names of the files in a directory, without what begins with a dot; none where there is no directory.
func list(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, err
}

type digest [sha256.Size]byte

// digests remembers what a file contains by its inode: entries are hard links.
type digests map[[2]uint64]digest

func (known digests) of(path string) (sum digest, err error) {
	f, err := os.Open(path)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return sum, err
	}
	sys := st.Sys().(*syscall.Stat_t)
	inode := [2]uint64{uint64(sys.Dev), sys.Ino}
	if sum, ok := known[inode]; ok {
		return sum, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return sum, err
	}
	h.Sum(sum[:0])
	known[inode] = sum
	return sum, nil
}
