package sdk

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// Here returns a Runner that runs a plugin in this process if the file found for it is this program, or a hard link to
// it. Other plugins are executed, as by invoke.Run. It is for runtimes whose program also serves the plugins (see
// Serve) and that make several calls at a time.
//
// Warnings of the plugins go to slog's default logger, see LogTo. When ctx ends, an ADD is rolled back; nothing is
// killed.
func Here(all []Plugin) invoke.Runner {
	return func(ctx context.Context, path string, c invoke.Call) ([]byte, error) {
		i := slices.IndexFunc(all, func(p Plugin) bool { return p.Name == filepath.Base(path) })
		if i < 0 || !sameFile(path) {
			return invoke.Run(ctx, path, c)
		}
		began := time.Now()
		var out []byte
		var doc *spec.Error
		done := make(chan struct{})
		go func() { // the caller's thread may be locked into another namespace (clause R11)
			defer close(done)
			out, doc = here(ctx, all, all[i], c.With(ctx))
		}()
		if <-done; doc != nil {
			return nil, invoke.Refused(ctx, path, c, doc, time.Since(began))
		}
		return out, nil
	}
}

// sameFile reports whether the file at path is this program.
func sameFile(path string) bool {
	a, err := os.Stat(path)
	if err != nil {
		return false
	}
	b, err := os.Stat("/proc/self/exe")
	return err == nil && os.SameFile(a, b)
}

// here answers one call in this process. The error has the form that a plugin would print.
func here(ctx context.Context, all []Plugin, p Plugin, c invoke.Call) (out []byte, failed *spec.Error) {
	s := &site{all: all}
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
		out, err = versions(p, c.Stdin)
		return out, nil
	}
	if err = e.validate(); err == nil {
		version, out, err = s.told(ctx, p, e, c.Stdin)
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
