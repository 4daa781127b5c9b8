package sdk

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// Here returns a Runner that runs a plugin in this process if the file found for it is this program, a link to it or a
// copy. Other plugins are executed, as by invoke.Run. It is for runtimes whose program also serves the plugins (see
// Serve) and that make several calls at a time. Own, unless it is nil, is asked about each other file that is called by
// the name of a plugin: whether its plugins do what those of this program do.
//
// Warnings of the plugins go to slog's default logger, see LogTo. When ctx ends, an ADD is rolled back; nothing is
// killed.
func Here(all []Plugin, own func(path string) bool) invoke.Runner {
	files := &ownFiles{other: own}
	return func(ctx context.Context, path string, c invoke.Call) ([]byte, error) {
		i := slices.IndexFunc(all, func(p Plugin) bool { return p.Name == filepath.Base(path) })
		if i < 0 || !files.has(path) {
			return invoke.Run(ctx, path, c)
		}
		began := time.Now()
		var out []byte
		var doc *spec.Error
		done := make(chan struct{})
		go func() { // the caller's thread may be locked into another namespace (clause R11)
			defer close(done)
			out, doc = here(ctx, &site{all: all, own: files.has}, all[i], c.With(ctx))
		}()
		if <-done; doc != nil {
			return nil, invoke.Refused(ctx, path, c, doc, time.Since(began))
		}
		return out, nil
	}
}

// ownFiles knows which files hold the plugins of this program.
type ownFiles struct {
	other func(path string) bool // nil: no other one does

	mu    sync.Mutex
	known []knownFile
}

type knownFile struct {
	info os.FileInfo
	own  bool
}

// has reports whether the file at path holds the plugins of this program. Several plugins are usually one file, which
// is asked once.
func (f *ownFiles) has(path string) bool {
	file, err := os.Stat(path)
	if err != nil || file.Mode()&0o111 == 0 { // to execute it says why it cannot be
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.known {
		if os.SameFile(k.info, file) && k.info.ModTime().Equal(file.ModTime()) {
			return k.own
		}
	}
	own := sameProgram(path) || f.other != nil && f.other(path)
	f.known = append(f.known, knownFile{file, own})
	return own
}

// here answers one call in this process. The error has the form that a plugin would print.
func here(ctx context.Context, s *site, p Plugin, c invoke.Call) (out []byte, failed *spec.Error) {
	version, err := spec.Newest, error(nil)
	defer func() {
		if cause := recover(); cause != nil { // the runtime has other things to do
			err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
		if s.end(err); err != nil {
			out, failed = nil, asPrinted(document(err), version)
		}
	}()
	e := environment{
		Command: c.Command, ContainerID: c.ContainerID, Netns: c.Netns, IfName: c.IfName, Args: c.Args,
		Path: strings.Join(c.Path, string(os.PathListSeparator)), here: true, vars: c.Environ(), stderr: c.Stderr,
		setting: sharedIn(ctx).setting,
	}
	for _, kv := range e.vars {
		if value, is := strings.CutPrefix(kv, "CNI_NETNS_OVERRIDE="); is {
			e.Override = value
		}
	}
	s.begin(p, e)
	if c.Command == "VERSION" {
		out, err = versions(p, s.build, c.Stdin)
		return out, nil
	}
	if err = e.validate(); err == nil {
		version, out, err = s.serveCall(ctx, p, e, c.Stdin)
	}
	return out, nil
}

// asPrinted returns an error document as a runtime would read it from a plugin's output.
func asPrinted(doc *spec.Error, version spec.Version) *spec.Error {
	if read, ok := spec.DecodeError(doc.Encode(version)); ok {
		return read
	}
	return doc
}
