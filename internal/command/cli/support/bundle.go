// Package support is fairlead support-bundle: it collects the parts of a bundle. The top-level package support hides
// secrets, addresses and names, and writes the archive.
package support

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/internal/command/support"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Command is `fairlead support-bundle`.
func Command(a *app.App) *cobra.Command {
	var file string
	var mask bool
	c := &cobra.Command{
		Use: "support-bundle", GroupID: "look", Args: app.Operands(""),
		Short: "Write what a maintainer needs to find a fault into one file, without secrets",
		Long: `Write one file with what a maintainer needs: versions; the files of networks, cache, leases and
records; the output of doctor, status, ls, inspect and repair --dry-run; links, addresses, routes, rules and neighbours
of the host and of containers; the packet filter rules of all programs; sysctls, modules, and the log of calls. The file
README in it lists the contents. Of more than 30 containers, the bundle has those with findings of doctor first, and
the command says how many it leaves out. Nothing is changed, and no packet is sent.

Values of keys such as password, token and secret are always removed. With --mask, addresses, MACs and the names of pods,
containers and the host are replaced. The same name or address has the same replacement everywhere, and addresses of one
subnet stay in one subnet. Names of networks and links are not replaced. Look through the file before you pass it on.

An existing file is not replaced. Only its owner can read the file. What an ordinary user may not see is missing, and the
command says so.

Exit status: 0 the file is written, 1 it is not.`,
		Example: `  sudo fairlead support-bundle
  sudo fairlead support-bundle --mask -o /tmp/node-7.tar.gz`,
		RunE: func(c *cobra.Command, args []string) error {
			if file == "" {
				file = "fairlead-support-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			return supportBundle(a, file, mask)
		},
	}
	c.Flags().StringVarP(&file, "output", "o", "",
		"write `FILE`, - is standard output; default: fairlead-support-TIME.tar.gz in this directory")
	c.Flags().BoolVar(&mask, "mask", false, "replace addresses, MACs and the names of pods, containers and the host")
	return c
}

// bundleTime limits the collection of all parts, and partTime that of one.
const (
	bundleTime = 2 * time.Minute
	partTime   = 20 * time.Second
)

func supportBundle(a *app.App, file string, mask bool) error {
	if _, err := os.Lstat(file); err == nil && file != "-" {
		return exists(file)
	}
	ctx, cancel := context.WithTimeout(a.Interruptible(), bundleTime)
	defer cancel()
	now := time.Now().UTC()
	s, err := snapshot.Read("")
	if err != nil {
		return err
	}
	defer s.Close()
	c := &collector{App: a, Snapshot: s, ctx: ctx,
		bundle: &support.Bundle{Mask: mask, When: now, Key: make([]byte, 32)}}
	rand.Read(c.bundle.Key) // never fails
	c.bundle.About = fmt.Sprintf("Support bundle of fairlead %s, %s.\n%s\n", a.Version, now.Format(time.RFC3339),
		app.Built(a.Version).Program())
	if err := c.write(file); err != nil {
		return err
	}
	if mask {
		a.Note("masked: addresses, MACs, names of pods, containers and the host; values of secret keys are removed")
	} else {
		a.Note("values of secret keys are removed; addresses and names are not, --mask replaces them")
	}
	if c.left != "" {
		a.Note("%s", c.left)
	}
	for _, line := range c.bundle.Failed() {
		a.Note("not collected, or incomplete: %s", line)
	}
	a.Note("look through it before you pass it on: tar -xzOf %s | less", file)
	return nil
}

// write collects all parts and writes them to a file, which appears when it is complete, or to standard output.
func (c *collector) write(file string) error {
	if file == "-" {
		c.all()
		if err := c.App.Ctx.Err(); err != nil {
			return err
		}
		_, err := c.bundle.Write(c.Stdout)
		return err
	}
	removeLeft(filepath.Dir(file))
	f, err := os.CreateTemp(filepath.Dir(file), unfinished) // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	c.all()
	if err := c.App.Ctx.Err(); err != nil {
		return err
	}
	files, err := c.bundle.Write(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := renameNew(f.Name(), file); err != nil {
		return err
	}
	size := int64(0)
	if st, err := os.Stat(file); err == nil {
		size = st.Size()
	}
	c.Print("wrote %s (%d kB, %d files)\n", file, (size+1023)/1024, files)
	return nil
}

// unfinished is the pattern for the name of a file that is being written.
const unfinished = ".fairlead-support-*"

// removeLeft removes the unfinished files in a directory that killed runs of this user left.
func removeLeft(dir string) {
	all, _ := filepath.Glob(filepath.Join(dir, unfinished))
	for _, path := range all {
		st, err := os.Lstat(path)
		if err != nil || !st.Mode().IsRegular() || time.Since(st.ModTime()) < time.Hour {
			continue
		}
		if s, ok := st.Sys().(*syscall.Stat_t); ok && int(s.Uid) == os.Geteuid() {
			os.Remove(path)
		}
	}
}

// renameNew renames a file, and fails if the new name exists.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // not supported by this file system
		err = os.Link(from, to)
	}
	if errors.Is(err, fs.ErrExist) {
		return exists(to)
	}
	if err != nil {
		return &fs.PathError{Op: "rename to", Path: to, Err: err}
	}
	return nil
}

func exists(file string) error {
	return app.Fail(app.ExitUsage, "Give another one with -o.", "%s exists already, and is not replaced", file)
}

// collector collects the parts of a bundle. It continues after a part that fails.
type collector struct {
	*app.App
	*snapshot.Snapshot
	ctx    context.Context
	bundle *support.Bundle
	left   string // which containers the bundle leaves out; "" if none
}

// part adds what collect returns, if it returns in time, and returns it.
func (c *collector) part(name, about string, collect func() ([]byte, error)) []byte {
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 1) // a late result does not block
	ctx, cancel := context.WithTimeout(c.ctx, partTime)
	defer cancel()
	if ctx.Err() == nil {
		go func() {
			defer func() {
				if p := recover(); p != nil { // the other parts are the more needed
					done <- result{nil, fmt.Errorf("panic: %v", p)}
				}
			}()
			b, err := collect()
			done <- result{b, err}
		}()
	}
	p := support.Part{Name: name, About: about}
	select {
	case r := <-done:
		p.Content, p.Err = r.b, r.err
	case <-ctx.Done():
		p.Err = fmt.Errorf("it took too long: %w", context.Cause(ctx))
	}
	c.bundle.Add(p)
	return p.Content
}

// file adds a file, if it exists.
func (c *collector) file(name, path, about string) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return
	}
	c.part(name, about, func() ([]byte, error) { return plainfile.Read(path, support.MostPart) })
}
