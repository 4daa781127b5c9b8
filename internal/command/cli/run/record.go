package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// record is what is needed to remove a `fairlead run`. It is written before anything is made. The run and its guard
// hold a lock on it; if it can be locked, the run is dead.
type record struct {
	ID          string          `json:"id"`
	Netns       string          `json:"netns"`
	Namespace   kernel.Identity `json:"namespace"`   // its name, and its inode, may be used again
	Attachments []recorded      `json:"attachments"` // in order

	dir  string
	lock *os.File
	made int           // how many of the attachments were made, or begun
	run  invoke.Runner // runs the plugins
	held bool          // the namespace is held open, so that its inode is not used again
}

type recorded struct {
	List       json.RawMessage `json:"list"`
	PluginDirs []string        `json:"pluginDirs"`
	IfName     string          `json:"ifname"`
}

// RunDir returns the directory of the records.
func RunDir() string { return filepath.Join(netconf.StateDir, "run") }

func (r *record) path() string { return filepath.Join(r.dir, r.ID+".json") }

// files returns the directory for files that the command sees, such as its resolv.conf.
func (r *record) files() string { return filepath.Join(r.dir, r.ID) }

// create writes the record. It is locked before other processes can see it.
func (r *record) create() error {
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	// The file has no name until it is complete and locked, so that a kill leaves no partial record.
	fd, err := unix.Open(r.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	// some overlays have no O_TMPFILE; a kill may leave a file there that nothing reads
	if errors.Is(err, unix.EOPNOTSUPP) {
		tmp := filepath.Join(r.dir, ".new-"+r.ID)
		defer os.Remove(tmp)
		fd, err = unix.Open(tmp, unix.O_CREAT|unix.O_TRUNC|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	}
	if err != nil {
		return &fs.PathError{Op: "create record in", Path: r.dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), r.path())
	b, err := json.Marshal(r)
	if err == nil {
		_, err = f.Write(b)
	}
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil { // a link never replaces a file, a rename does
		err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, r.path(),
			unix.AT_SYMLINK_FOLLOW)
	}
	if err != nil {
		f.Close()
		return fmt.Errorf("record %s: %w", r.path(), err)
	}
	r.lock = f
	return nil
}

// adopt reads and locks the record at path. It returns nil if there is none, or if its run is alive.
func adopt(path string) (*record, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // O_NONBLOCK, so that a pipe does not block
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, nil // the run is alive
	}
	r, err := read(path, f)
	if r == nil {
		f.Close()
	}
	return r, err
}

// read reads the record in f, if path still leads to f.
func read(path string, f *os.File) (*record, error) {
	mine, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if now, err := os.Stat(path); err != nil || !os.SameFile(mine, now) {
		return nil, nil // another process was faster
	}
	r := &record{dir: filepath.Dir(path), lock: f}
	b, err := plainfile.Read(path, plainfile.MaxSize)
	if err == nil {
		err = json.Unmarshal(b, r)
	}
	if err != nil || r.path() != path {
		return nil, fmt.Errorf("%s: not the record of a run: %w", path, err)
	}
	r.made = len(r.Attachments) // how many were made is unknown
	return r, nil
}

// takeDown ends the processes in the namespace, detaches it from its networks, the last one first, and removes it
// and the record. A missing object is no error. If a step fails, the record stays, and the next run tries again.
func (r *record) takeDown(ctx context.Context, stderr *os.File) error {
	ns, err := kernel.Reopen(r.Netns, r.Namespace)
	if err != nil {
		return fmt.Errorf("remove %s: %w", r.ID, err)
	}
	mine := ns != nil
	if mine {
		defer ns.Close()
	}
	if mine || r.held {
		killInside(r.Namespace.Ino)
	}
	var errs []error
	for i := r.made - 1; i >= 0; i-- {
		at := r.Attachments[i]
		l, err := spec.ParseList(at.List)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		rt := &attach.Runtime{PluginDirs: at.PluginDirs, Stderr: term.NewScreen(stderr), Run: r.run}
		a := r.attachment(i)
		if !mine {
			a.Netns = ""
		}
		errs = append(errs, rt.Del(ctx, l, a, attach.Continue()))
	}
	if mine || attached.IsNetns(r.Netns) != nil {
		errs = append(errs, attach.RemoveNetns(r.Netns))
	}
	if err := errors.Join(append(errs, os.RemoveAll(r.files()))...); err != nil {
		return fmt.Errorf("remove %s: %w", r.ID, err)
	}
	return os.Remove(r.path())
}

func (r *record) attachment(i int) attach.Attachment {
	return attach.Attachment{ContainerID: r.ID, Netns: r.Netns, IfName: r.Attachments[i].IfName}
}

// takeDownDead removes what remains of runs that were killed together with their guards.
func takeDownDead(ctx context.Context, a *app.App) {
	entries, err := os.ReadDir(RunDir())
	if err != nil {
		return // no run since the boot
	}
	for _, e := range entries {
		path := filepath.Join(RunDir(), e.Name())
		if !strings.HasSuffix(path, ".json") {
			continue
		}
		r, err := adopt(path)
		if err != nil {
			a.Note("%v", err)
		}
		if r == nil {
			continue
		}
		a.Note("removing %s, which a killed run left", r.ID)
		if err := r.takeDown(ctx, a.Stderr); err != nil {
			a.Note("%s\n  The next run tries again, as long as %s exists.", term.Lines(err), path)
		}
		r.lock.Close()
	}
}
