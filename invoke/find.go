// Package invoke finds CNI plugins and executes them.
package invoke

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/spelling"
	"github.com/fairlead-cni/fairlead/spec"
)

// ErrNotFound is wrapped by the errors of [Find] if no directory contains the plugin.
var ErrNotFound = errors.New("plugin not found")

// Find returns the path of a plugin: the first regular file with the name typ in dirs, in their order (clauses I1,
// R11). Find ignores the executable bits. Executing a damaged file then fails with "permission denied", instead of
// another file being used.
//
// A typ that is not a plain file name is refused before any directory is read (clause C2).
func Find(typ string, dirs []string) (string, error) {
	if err := spec.ValidType(typ); err != nil {
		return "", fmt.Errorf("find plugin: %w", err)
	}
	var odd []error
	for _, dir := range dirs {
		if dir == "" { // it would mean the working directory
			continue
		}
		path, err := filepath.Abs(filepath.Join(dir, typ)) // exec looks a bare name up in PATH
		if err != nil {
			return "", fmt.Errorf("find plugin %q: %w", typ, err)
		}
		switch info, err := os.Stat(path); {
		case err == nil && info.Mode().IsRegular():
			return path, nil
		case err == nil:
			odd = append(odd, fmt.Errorf("%s is a %s", path, kind(info.Mode())))
		case !errors.Is(err, os.ErrNotExist):
			odd = append(odd, err)
		default:
			if target, err := os.Readlink(path); err == nil {
				odd = append(odd, fmt.Errorf("%s is a link to %s, which does not exist", path, target))
			}
		}
	}
	return "", notFound(typ, dirs, odd)
}

func kind(m os.FileMode) string {
	switch {
	case m.IsDir():
		return "directory"
	case m&os.ModeNamedPipe != 0:
		return "named pipe"
	case m&os.ModeSocket != 0:
		return "socket"
	}
	return "device"
}

func notFound(typ string, dirs []string, odd []error) error {
	err := fmt.Errorf("find plugin %q: %w in %s", typ, ErrNotFound, strings.Join(dirs, ":"))
	if strings.Join(dirs, "") == "" {
		err = fmt.Errorf("find plugin %q: %w (no plugin directory is set)", typ, ErrNotFound)
	}
	for _, o := range odd {
		err = fmt.Errorf("%w; %w", err, o)
	}
	hint := "Set CNI_PATH to the directories that have the plugins; `fairlead` has the usual ones and its own " +
		"plugins where that is unset."
	if near, ok := spelling.Nearest(typ, installed(dirs)); ok {
		err = fmt.Errorf("%w; did you mean %q?", err, near)
		hint = "Correct the type in the network's configuration; `fairlead net ls` says in which file it is."
	}
	return spec.AsError(err, spec.CodeConfig).WithHint(hint)
}

// installed returns the types of the plugins in dirs that can be executed.
func installed(dirs []string) (types []string) {
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // a directory that is not there holds no plugin
		}
		for _, e := range entries {
			info, err := os.Stat(filepath.Join(dir, e.Name()))
			if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				types = append(types, e.Name())
			}
		}
	}
	return types
}
