// Package hide lays empty directories over those of the machine, for hosts that are thrown away.
package hide

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Dir makes dir an empty directory of this mount namespace, whose /run has to be its own already. Where
// the machine has no dir, its parent is covered by a directory that shows the same entries, and dir:
// nothing is made on the machine.
func Dir(dir string) error {
	if st, err := os.Stat(dir); err == nil && st.IsDir() {
		return cover(dir)
	}
	parent := filepath.Dir(dir)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	was := filepath.Join("/run/.hidden", parent)
	if err := os.MkdirAll(was, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(parent, was, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return &fs.PathError{Op: "bind", Path: parent, Err: err}
	}
	if err := cover(parent); err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Symlink(filepath.Join(was, e.Name()), filepath.Join(parent, e.Name())); err != nil &&
			!errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return os.MkdirAll(dir, 0o755)
}

func cover(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
		return &fs.PathError{Op: "mount over", Path: dir, Err: err}
	}
	return nil
}
