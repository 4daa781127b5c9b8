// Package docgen writes the documents that are made from the code, and its test holds that they are
// current. `make generate` writes them anew.
package docgen

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/doctor"
	"github.com/fairlead-cni/fairlead/internal/command/cli/metrics"
)

// Files are generated documents by path, relative to the root of the tree.
type Files map[string][]byte

// Generate makes every document from the tree at root.
func Generate(root string) (Files, error) {
	files := Files{}
	for _, generate := range []func(string, Files) error{clauses, plugins, manuals, storeManual, commandPages,
		explained, notice, sizes} {
		if err := generate(root, files); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// commandPages writes the pages of what `fairlead doctor` finds, and of metrics.
func commandPages(_ string, files Files) error {
	files["docs/doctor.md"] = doctor.Page()
	files["docs/metrics.md"] = metrics.Page()
	return nil
}

// Stale is what differs between the tree and files, a line each.
func Stale(root string, files Files) (stale []string, err error) {
	for _, path := range slices.Sorted(maps.Keys(files)) {
		have, err := os.ReadFile(filepath.Join(root, path))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			stale = append(stale, path+" is missing")
		case err != nil:
			return nil, err
		case !bytes.Equal(have, files[path]):
			stale = append(stale, path+" is out of date"+firstDifference(have, files[path]))
		}
	}
	orphans, err := orphans(root, files)
	for _, path := range orphans {
		stale = append(stale, path+" has no source any more")
	}
	return stale, err
}

// Write brings the tree at root to files.
func Write(root string, files Files) error {
	orphans, err := orphans(root, files)
	if err != nil {
		return err
	}
	for _, path := range orphans {
		if err := os.Remove(filepath.Join(root, path)); err != nil {
			return err
		}
	}
	for path, content := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// orphans are the files without a source in the directories in which every file is generated.
func orphans(root string, files Files) (paths []string, err error) {
	for _, dir := range []string{"docs/man", "docs/plugins", "docs/schema"} {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if path := dir + "/" + e.Name(); files[path] == nil {
				paths = append(paths, path)
			}
		}
	}
	return paths, nil
}

func firstDifference(have, want []byte) string {
	h, w := strings.Split(string(have), "\n"), strings.Split(string(want), "\n")
	for i := range w {
		if i >= len(h) || h[i] != w[i] {
			got := "nothing"
			if i < len(h) {
				got = h[i]
			}
			return fmt.Sprintf(" at line %d:\n  has   %s\n  wants %s", i+1, got, w[i])
		}
	}
	return fmt.Sprintf(": it goes on after line %d", len(w))
}
