package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/fairlead-cni/fairlead/spec"
)

// A stamp tells a file of the cache from one that took its name later.
type stamp struct {
	inode uint64
	mtime syscall.Timespec
}

func stampOf(info fs.FileInfo) stamp {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{}
	}
	return stamp{st.Ino, st.Mtim}
}

// Gone tells whether the namespace that was attached is certainly not there any more, as far as the cache knows.
func (c *Cached) Gone() bool { return c.stale() }

// Gone tells whether the namespace that was attached is certainly not there any more. It is what Add goes by.
func (r *Runtime) Gone(c *Cached) bool {
	return c.stale() || c.Netns != "" && r.Vanished != nil && r.Vanished(c)
}

// Hidden tells whether there is nothing to be seen of the namespace that was attached, which may be there all the same.
func (c *Cached) Hidden() bool {
	_, err := identity(c.Netns)
	return err != nil && !c.stale()
}

// Hold keeps every other operation of this package away from an attachment that List told of, until release is
// called. Still is false where it was deleted, or made anew, in the meantime; then nothing is held.
//
// Other programs with the reference library know nothing of these locks.
func (r *Runtime) Hold(ctx context.Context, c *Cached) (release func(), still bool, err error) {
	op := &operation{r: r, owner: c.Owner()}
	if err := op.lock(ctx); err != nil {
		op.end()
		return nil, false, err
	}
	info, err := os.Stat(c.File)
	if err == nil && stampOf(info) == c.stamp {
		return op.end, true, nil
	}
	op.end()
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return nil, false, err
}

// A Told is what one plugin is told by CHECK.
type Told struct {
	Conf  *spec.Conf // as the list has it
	Stdin []byte
}

// Told is what CHECK of a remembered attachment tells the plugins of its list l, in their order, and with which
// CNI_ARGS; the plugins of a chain are told it one by one, as of a list that is written out. It is for who wants to
// know what was attached and runs none of them.
func (r *Runtime) Told(l *spec.List, c *Cached) (told []Told, args [][2]string, err error) {
	op := &operation{r: r, verb: "CHECK", l: l, owner: c.Owner(),
		a: Attachment{ContainerID: c.ContainerID, IfName: c.IfName, Netns: c.Netns}}
	switch {
	case c.noResult != nil:
		return nil, nil, c.noResult
	case c.Result == nil:
		return nil, nil, fmt.Errorf("%s: has no result", c.File)
	}
	if err := op.prepare(); err != nil {
		return nil, nil, err
	}
	op.inherit(c)
	for _, conf := range l.WrittenOut().Plugins {
		stdin, err := op.stdin("CHECK", conf, c.Result)
		if err != nil {
			return nil, nil, fmt.Errorf("plugin %s: request: %w", conf.Type, err)
		}
		told = append(told, Told{conf, stdin})
	}
	return told, c.Args, nil
}
