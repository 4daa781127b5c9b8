package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
)

// A NetFile is a network's configuration in the directory that runtimes search. Beside it lies a copy of what was
// written last, by which a change of another program is known. Runtimes do not read a file of that name.
type NetFile struct {
	Path string
	Same bool // the file is there, and up to date

	doc      []byte
	recorded bool // doc is what was written last
	kept     bool // another file is there, which was not written here, or which was changed since
}

// A ForeignError is returned for a configuration that another program wrote, or changed.
type ForeignError struct{ Path string }

func (e *ForeignError) Error() string {
	return e.Path + " differs from what was written there last, so it is kept: remove it to have it replaced"
}

// OpenNetFile compares the file at path with the document that should be there.
func OpenNetFile(path string, doc []byte) (*NetFile, error) {
	n := &NetFile{Path: path, doc: doc}
	now, err := plainfile.ReadLinked(path, plainfile.MaxSize)
	if errors.Is(err, plainfile.ErrNotPlain) {
		return nil, err
	}
	n.Same = err == nil && bytes.Equal(now, doc)
	last, _ := plainfile.ReadLinked(n.record(), plainfile.MaxSize)
	n.recorded = bytes.Equal(last, doc)
	n.kept = err == nil && !n.Same && !bytes.Equal(now, last)
	return n, nil
}

// WrittenNetFile returns the file at path as it was written last. It is nil if none was.
func WrittenNetFile(path string) (*NetFile, error) {
	doc, err := plainfile.ReadLinked((&NetFile{Path: path}).record(), plainfile.MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return OpenNetFile(path, doc)
}

func (n *NetFile) record() string {
	return filepath.Join(filepath.Dir(n.Path), "."+filepath.Base(n.Path)+".installed")
}

// Foreign returns a [ForeignError] if Write would not replace the file.
func (n *NetFile) Foreign() error {
	if n.kept {
		return &ForeignError{n.Path}
	}
	return nil
}

// Write puts the document in its place by one rename. It reports whether the file is another one now.
func (n *NetFile) Write() (changed bool, err error) {
	switch {
	case n.kept:
		return false, n.Foreign()
	case n.Same && n.recorded:
		return false, nil
	case n.Same:
		return false, replaceFile(n.record(), n.doc)
	}
	if err := os.MkdirAll(filepath.Dir(n.Path), 0o755); err != nil {
		return false, err
	}
	if err := replaceFile(n.Path, n.doc); err != nil {
		return false, err
	}
	return true, replaceFile(n.record(), n.doc)
}

// Remove removes the file. The error is a [ForeignError] if it has another content; nothing is removed then.
func (n *NetFile) Remove() (removed bool, err error) {
	if !n.Same {
		if exists(n.Path) {
			return false, &ForeignError{n.Path}
		}
		return false, nil
	}
	if err := os.Remove(n.Path); err != nil {
		return false, err
	}
	return true, remove(n.record())
}

// replaceFile replaces the file at path in one step, and syncs it. It refuses a path that is no regular file, such as a
// device.
func replaceFile(path string, content []byte) error {
	st, err := os.Lstat(path)
	if err == nil && !st.Mode().IsRegular() && st.Mode()&fs.ModeSymlink == 0 {
		return fmt.Errorf("%s: not a regular file, so it is not replaced", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".fairlead-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
