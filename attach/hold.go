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

// A stamp distinguishes a file of the cache from a later one with the same name.
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

// Gone reports whether the attached namespace certainly no longer exists. Add uses it to decide whether to replace an
// attachment.
func (r *Runtime) Gone(c *Cached) bool {
	return c.Gone() || c.Netns != "" && r.Vanished != nil && r.Vanished(c)
}

// Hidden reports whether this program cannot see the attached namespace, although it may exist.
func (c *Cached) Hidden() bool {
	_, err := c.identity()
	return err != nil && !c.Gone()
}

// Hold locks an attachment that List returned, until release is called, so that other operations of this package wait.
// Still is false if the attachment was deleted or made again in the meantime; then nothing is locked.
//
// Other programs that use the reference library do not know these locks.
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

// HoldNetwork waits until no operation of this package works on a network, and lets others wait until release is
// called, as GC does.
func (r *Runtime) HoldNetwork(ctx context.Context, network string) (release func(), err error) {
	return r.lockNetwork(ctx, network, true)
}

// ShareNetwork keeps GC and the holder of [Runtime.HoldNetwork] waiting until release is called. ADD, DEL and CHECK go
// on, as they do beside each other.
func (r *Runtime) ShareNetwork(ctx context.Context, network string) (release func(), err error) {
	return r.lockNetwork(ctx, network, false)
}

// An Input is the document that CHECK sends to one plugin.
type Input struct {
	Conf  *spec.Conf // as the list has it
	Stdin []byte
}

// Inputs returns what CHECK of a stored attachment sends to the plugins of its list l, in their order, and the
// CNI_ARGS. The plugins of a chain are listed one by one. It is for programs that inspect an attachment without calling
// plugins.
func (r *Runtime) Inputs(l *spec.List, c *Cached) (inputs []Input, args [][2]string, err error) {
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
		inputs = append(inputs, Input{conf, stdin})
	}
	return inputs, c.Args, nil
}
