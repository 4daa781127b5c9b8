// Package install puts the plugins' program into a plugin directory, keeps what it replaces, and restores that on
// request. A runtime may call a plugin at any moment, so each entry is replaced by a single rename and is a complete
// program before and after it.
package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// A State says what a file in the directory is, and what a change does with it.
type State string

// The states. Same and Kept files are not touched.
const (
	Same     State = "same"     // is this version of Fairlead
	Added    State = "added"    // no file had the name
	Updated  State = "updated"  // was another version of Fairlead
	Replaced State = "replaced" // was the reference plugin of that name
	Removed  State = "removed"  // is Fairlead's, and was not there before or has no place in this version
	Restored State = "restored" // the file that Fairlead had replaced is back
	Kept     State = "kept"     // another program of that name, neither Fairlead's nor the reference's
)

// An Entry is one file of the directory.
type Entry struct {
	Name  string `json:"name"`
	State State  `json:"state"`
}

// ErrNothingKept is the error of Rollback if no install replaced anything, or if it was already rolled back.
var ErrNothingKept = errors.New("the last install here replaced nothing, or was rolled back already")

// A Change is what an install does to a directory, or would do.
type Change struct {
	Dir     string  `json:"dir"`  // without symbolic links
	From    string  `json:"from"` // the program that is copied
	Entries []Entry `json:"entries"`

	label []byte // SELinux's, of the files there
}

// Plan compares the plugins of a source with those in dir, which need not exist. With ownOnly, the
// reference's plugins are left alone, like plugins of other projects. Plan changes nothing.
func Plan(from Source, dir string, ownOnly bool) (*Change, error) {
	known := digests{}
	want, err := known.of(from.Program)
	if err != nil {
		return nil, err
	}
	c := &Change{From: from.Program}
	if c.Dir, err = resolve(dir); err != nil {
		return nil, err
	}
	if exists(c.Dir) {
		err = trusted(c.Dir)
	} else {
		err = ancestors(c.Dir)
	}
	if err != nil {
		return nil, err
	}
	present, err := list(c.Dir)
	if err != nil {
		return nil, err
	}
	for _, name := range from.Names {
		state := Added
		if slices.Contains(present, name) {
			if state, err = c.stateOf(name, want, known, ownOnly); err != nil {
				return nil, err
			}
		}
		c.Entries = append(c.Entries, Entry{name, state})
	}
	for _, name := range present {
		if !slices.Contains(from.Names, name) && originOf(filepath.Join(c.Dir, name)) == ours {
			c.Entries = append(c.Entries, Entry{name, Removed})
		}
	}
	return c, nil
}

// stateOf returns the state of a file with the name of a plugin.
func (c *Change) stateOf(name string, want digest, known digests, ownOnly bool) (State, error) {
	path := filepath.Join(c.Dir, name)
	from := originOf(path)
	if from != others && c.label == nil {
		c.label = label(path)
	}
	switch {
	case from == ours:
		have, err := known.of(path)
		if err == nil && have == want {
			return Same, nil
		}
		return Updated, err
	case from == reference && !ownOnly:
		return Replaced, nil
	}
	return Kept, nil
}

// Changes reports whether Install changes anything.
func (c *Change) Changes() bool {
	return slices.ContainsFunc(c.Entries, func(e Entry) bool { return e.State != Same && e.State != Kept })
}

// Install carries out what Plan returns, and makes dir if it does not exist. It first makes hard links to all files
// that it replaces, then replaces one entry after the other. If it is killed, dir contains both versions; the next
// Install completes the change, and Rollback still restores the state before it.
func Install(from Source, dir string, ownOnly bool) (*Change, error) {
	c, err := Plan(from, dir, ownOnly)
	if err != nil {
		return nil, err
	}
	if err := makeDir(c.Dir); err != nil {
		return nil, err
	}
	d, err := open(c.Dir)
	if err != nil {
		return nil, err
	}
	defer d.close()
	if c, err = Plan(from, c.Dir, ownOnly); err != nil { // another install may just have ended
		return nil, err
	}
	if !c.Changes() {
		return c, d.complete()
	}
	if err := d.stage(c.From, c.label); err != nil {
		return nil, err
	}
	if err := d.keep(c.Entries); err != nil {
		return nil, err
	}
	for _, e := range c.Entries {
		switch e.State {
		case Added, Updated, Replaced:
			err = d.place(e.Name)
		case Removed:
			err = os.Remove(d.entry(e.Name))
		}
		if err != nil {
			return nil, err
		}
	}
	return c, errors.Join(syncDir(d.path), d.complete())
}

// Rollback restores what the last Install replaced, and removes what it added. It keeps a file that another program has
// replaced since. Entries list what was done.
func Rollback(dir string) (entries []Entry, err error) {
	d, err := openExisting(dir)
	if err != nil {
		return nil, err
	}
	defer d.close()
	last, err := d.last()
	if err != nil {
		return nil, err
	}
	if last == nil {
		return nil, fmt.Errorf("%s: %w", d.path, ErrNothingKept)
	}
	names, err := list(d.state(previous))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		e, err := d.restore(previous, name)
		if err != nil {
			return entries, err
		}
		if originOf(d.entry(name)) == reference { // what uninstalling would put back is back
			err = remove(d.state(original, name))
		}
		if entries = append(entries, e); err != nil {
			return entries, err
		}
	}
	for _, name := range last.Added {
		e, err := d.removeOurs(name)
		if err != nil {
			return entries, err
		}
		entries = append(entries, e)
	}
	return entries, errors.Join(syncDir(d.path), os.RemoveAll(d.state(previous)), os.Remove(d.state(record)))
}

// Uninstall removes Fairlead's plugins of any version, and restores plugins of the reference that they had replaced.
func Uninstall(dir string) (entries []Entry, err error) {
	d, err := openExisting(dir)
	if err != nil {
		return nil, err
	}
	defer d.close()
	names, err := list(d.path)
	if err != nil {
		return nil, err
	}
	replaced, err := list(d.state(original))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if originOf(d.entry(name)) == ours && !slices.Contains(replaced, name) {
			entries = append(entries, Entry{name, Removed})
			if err := os.Remove(d.entry(name)); err != nil {
				return entries, err
			}
		}
	}
	for _, name := range replaced {
		e, err := d.restore(original, name)
		if err != nil {
			return entries, err
		}
		entries = append(entries, e)
	}
	return entries, errors.Join(syncDir(d.path), os.RemoveAll(d.state()))
}

// restore moves a kept file back to its name.
func (d *directory) restore(from, name string) (Entry, error) {
	if exists(d.entry(name)) && originOf(d.entry(name)) != ours {
		return Entry{name, Kept}, nil
	}
	return Entry{name, Restored}, os.Rename(d.state(from, name), d.entry(name))
}

// removeOurs removes an entry, unless the file belongs to another program now.
func (d *directory) removeOurs(name string) (Entry, error) {
	if exists(d.entry(name)) && originOf(d.entry(name)) != ours {
		return Entry{name, Kept}, nil
	}
	return Entry{name, Removed}, remove(d.entry(name))
}

// remove is like os.Remove, but a missing file is not an error.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// label returns the SELinux label of a file, or nil.
func label(path string) []byte {
	buf := make([]byte, 1024)
	n, err := unix.Getxattr(path, selinux, buf)
	if err != nil || n <= 0 {
		return nil
	}
	return buf[:n]
}

const selinux = "security.selinux"
