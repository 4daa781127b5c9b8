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

// An origin says to which project a program belongs.
type origin int

const (
	others    origin = iota // also what cannot be read, or is no program
	ours                    // of any version
	reference               // the plugin of that name of the reference implementation
)

// originOf determines the origin by the path of the main package, which Go's linker writes into every program.
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

// Find returns the directory with the plugins that belong to a program of Fairlead: cni beside it, as `make build`
// makes it; lib/fairlead/cni beside its directory, as in packages; or its own directory, as in an unpacked archive. A
// program that is alone, as `go install` makes it, has no such directory: Find returns "".
func Find(program string) (dir string, err error) {
	if program, err = filepath.EvalSymlinks(program); err != nil {
		return "", err
	}
	here := filepath.Dir(program)
	for _, dir := range []string{filepath.Join(here, "cni"), filepath.Join(here, "../lib/fairlead/cni"), here} {
		if originOf(filepath.Join(dir, probe)) == ours {
			return dir, nil
		}
	}
	return "", nil
}

// Single returns a program that is every plugin by itself, under each of these names.
func Single(program string, names []string) (s Source, err error) {
	if program, err = filepath.EvalSymlinks(program); err != nil {
		return s, err
	}
	return Source{Names: names, Program: program}, written(program)
}

// probe is the name of a plugin that every version has.
const probe = "loopback"

// A Source is the plugins that are installed: their names, and the path of their common program.
type Source struct {
	Names   []string
	Program string
}

// Directory returns the plugins in the directory from.
func Directory(from string) (s Source, err error) {
	all, err := list(from)
	if err != nil {
		return s, err
	}
	if err := written(from); err != nil {
		return s, err
	}
	known, want := digests{}, digest{}
	for _, name := range all {
		path := filepath.Join(from, name)
		if originOf(path) != ours || name == "fairlead" || name == "cni" {
			continue
		}
		if err := written(path); err != nil {
			return s, err
		}
		have, err := known.of(path)
		switch {
		case err != nil:
			return s, err
		case s.Program == "":
			s.Program, want = path, have
		case have != want:
			return s, fmt.Errorf("%s and %s are plugins of different versions of Fairlead: unpack or build "+
				"one version into an empty directory",
				s.Program, path)
		}
		s.Names = append(s.Names, name)
	}
	if len(s.Names) == 0 {
		return s, fmt.Errorf("%s has no plugins of Fairlead", from)
	}
	return s, nil
}

// written refuses a program, or a directory of programs, that other users may have written.
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

// list returns the names of the files in a directory, without those that begin with a dot. A missing directory has
// none.
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

// digests stores hashes of files by inode, because entries are hard links.
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
