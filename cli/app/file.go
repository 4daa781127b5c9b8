package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ReplaceFile puts a file with this content in the place of the one at path, in one step. A device or a pipe is none.
func ReplaceFile(path string, content []byte, mode fs.FileMode) error {
	if st, err := os.Lstat(path); err == nil && !st.Mode().IsRegular() && st.Mode()&fs.ModeSymlink == 0 {
		return fmt.Errorf("%s: is no regular file, and is not replaced", path)
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

// CreateFile writes a file that is not there yet.
func CreateFile(file string, doc []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return Fail(ExitUsage, "Choose another FILE, or remove that one.", "%w", err)
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
