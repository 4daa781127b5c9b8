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

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"golang.org/x/sys/unix"
)

// NetnsDir is where ip(8) keeps the names of network namespaces.
const NetnsDir = "/run/netns"

// NetnsPath returns the path for a NETNS of the command line. A path is made absolute; a name is one of ip(8)'s. As
// in cnitool, a name may also be a file of the working directory.
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

// IsNetns fails if path is not a network namespace, for example the empty file that ip-netns(8) leaves in NetnsDir.
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

// NoteAbsent warns if the NETNS in args does not exist, for a command that does not need it: add would fail.
func NoteAbsent(a *app.App, args []string) error {
	if len(args) < 2 {
		return nil
	}
	path, err := NetnsPath(args[1])
	if err != nil {
		return err
	}
	if err := IsNetns(path); errors.Is(err, fs.ErrNotExist) {
		a.Note("warning: %v; `%s` does not need it, but `fairlead add` would fail", err, a.Doing)
	}
	return nil
}

// ContainerID returns the ID that cnitool derives from the absolute path of a network namespace.
func ContainerID(path string) string {
	sum := sha512.Sum512([]byte(path))
	return "cnitool-" + hex.EncodeToString(sum[:10])
}

// SamePath reports whether two paths lead to the same file, even if the file no longer exists.
func SamePath(a, b string) bool {
	x, xerr := os.Stat(a)
	y, yerr := os.Stat(b)
	if xerr == nil && yerr == nil {
		return os.SameFile(x, y)
	}
	return plain(a) == plain(b)
}

// plain resolves the links in a path, except in its last element.
func plain(path string) string {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, filepath.Base(path))
}
