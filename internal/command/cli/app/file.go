package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ReplaceFile replaces the file at path in one step. It refuses a path that is not a regular file, such as a device.
func ReplaceFile(path string, content []byte, mode fs.FileMode) error {
	if st, err := os.Lstat(path); err == nil && !st.Mode().IsRegular() && st.Mode()&fs.ModeSymlink == 0 {
		return fmt.Errorf("%s: not a regular file, so it is not replaced", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".fairlead-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	for _, step := range []func() error{func() error { return f.Chmod(mode) }, f.Sync, f.Close} {
		if serr := step(); err == nil {
			err = serr
		}
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// CreateFile writes a new file. It fails if the file exists.
func CreateFile(file string, doc []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return Fail(ExitUsage, "Choose another FILE, or remove this one.", "%w", err)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(doc)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	return nil
}
