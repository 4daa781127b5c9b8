package attached

import (
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead-cni/fairlead/cli/app"
	"golang.org/x/sys/unix"
)

// NetnsDir is where ip(8) keeps the names of network namespaces.
const NetnsDir = "/run/netns"

// NetnsPath is the path that a NETNS on the command line means: a path is made absolute, a name is one of
// ip(8)'s. A name is allowed to be a file of the working directory too, as cnitool has it.
func NetnsPath(arg string) (string, error) {
	if strings.Contains(arg, "/") {
		return filepath.Abs(arg)
	}
	named := filepath.Join(NetnsDir, arg)
	if _, err := os.Lstat(named); err != nil {
		if _, err := os.Lstat(arg); err == nil {
			return filepath.Abs(arg)
		}
	}
	return named, nil
}

// IsNetns reports whether path leads to a network namespace. The file that a name leaves behind when the
// namespace went without it, or the namespace of another kind, does not.
func IsNetns(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open netns", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		return fmt.Errorf("open netns %s: not a network namespace: %w", path, fs.ErrNotExist)
	}
	return nil
}

// NoteAbsent says of a NETNS that a command goes without, if it is given, that it is not there: add would fail.
func NoteAbsent(a *app.App, args []string) error {
	if len(args) < 2 {
		return nil
	}
	path, err := NetnsPath(args[1])
	if err != nil {
		return err
	}
	if err := IsNetns(path); errors.Is(err, fs.ErrNotExist) {
		a.Note("warning: %v; `%s` goes without it, and `fairlead add` would fail", err, a.Doing)
	}
	return nil
}

// ContainerID is the ID that cnitool makes from the absolute path of a network namespace.
func ContainerID(path string) string {
	sum := sha512.Sum512([]byte(path))
	return "cnitool-" + hex.EncodeToString(sum[:10])
}

// SamePath reports whether two paths lead to one file, or did when it was there.
func SamePath(a, b string) bool {
	x, xerr := os.Stat(a)
	y, yerr := os.Stat(b)
	if xerr == nil && yerr == nil {
		return os.SameFile(x, y)
	}
	return plain(a) == plain(b)
}

// plain is a path without the links on the way to its last element.
func plain(path string) string {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, filepath.Base(path))
}
