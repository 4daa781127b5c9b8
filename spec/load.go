package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/internal/spelling"
)

// ErrNotFound is wrapped by the error of Load if no file defines the network.
var ErrNotFound = errors.New("network not found")

// A FileError describes a problem in a configuration file and its position. Line and Column count from 1, a column is a
// character. Both are 0 if the problem concerns the whole file.
type FileError struct {
	File         string
	Line, Column int
	Path         string // of the value that Err is about, such as plugins[0].mtu; empty: unknown, or it does not exist
	Err          error
}

func (e *FileError) Error() string {
	switch {
	case e.Line == 0 && e.File == "":
		return e.Err.Error()
	case e.Line == 0:
		return e.File + ": " + e.Err.Error()
	case e.File == "":
		return fmt.Sprintf("line %d, column %d: %v", e.Line, e.Column, e.Err)
	}
	return fmt.Sprintf("%s:%d:%d: %v", e.File, e.Line, e.Column, e.Err)
}

func (e *FileError) Unwrap() error { return e.Err }

// LoadDir reads all networks of a directory: *.conflist in byte order, then *.conf and *.json. If several files have
// the same network name, the first one is used and its Warnings name the others. A bad file is reported in problems,
// which are of type *FileError, and does not affect the other files (clause C10). A missing directory has no networks.
func LoadDir(dir string) (lists []*List, problems []error) {
	all, err := loadAll(dir)
	if err != nil {
		return nil, []error{err}
	}
	return firstOfName(all)
}

// firstOfName chooses the first list of each name.
func firstOfName(all []loaded) (lists []*List, problems []error) {
	for _, f := range all {
		if f.problem != nil {
			problems = append(problems, f.problem)
			continue
		}
		winner := slices.IndexFunc(lists, func(l *List) bool { return l.Name == f.list.Name })
		if winner < 0 {
			lists = append(lists, f.list)
			continue
		}
		lists[winner].Warnings = append(lists[winner].Warnings, again(lists[winner], f))
	}
	for _, f := range all {
		for _, l := range lists {
			if f.problem != nil && f.name == l.Name {
				l.Warnings = append(l.Warnings, &FileError{File: f.file, Line: f.problem.Line, Column: f.problem.Column,
					Err: fmt.Errorf("also defines network %q and cannot be used; %s is", l.Name, l.File)})
			}
		}
	}
	return lists, problems
}

// again returns the warning that f defines a network that winner defines already.
func again(winner *List, f loaded) *FileError {
	why := "it comes first by name"
	if filepath.Ext(winner.File) == ".conflist" && filepath.Ext(f.file) != ".conflist" {
		why = "lists go before single configurations"
	}
	return &FileError{File: f.file, Err: fmt.Errorf("defines network %q once more and is not used; %s wins: %s",
		f.list.Name, winner.File, why)}
}

// Load reads the network with this name, with the same Warnings as LoadDir. Problems of other files are not reported.
// If a file with this network's name is bad, its error is returned. If no file defines the network, the error wraps
// ErrNotFound and lists the networks that exist.
func Load(dir, name string) (*List, error) {
	if err := ValidName(name); err != nil {
		return nil, fmt.Errorf("load network: %w", err)
	}
	all, ferr := loadAll(dir)
	if ferr != nil {
		return nil, fmt.Errorf("load network %q: %w", name, ferr)
	}
	lists, problems := firstOfName(all)
	var names []string
	for _, l := range lists {
		if l.Name == name {
			return l, nil
		}
		names = append(names, l.Name)
	}
	for _, f := range all {
		if f.problem != nil && f.name == name {
			return nil, fmt.Errorf("load network %q: %w", name, f.problem)
		}
	}
	var b strings.Builder
	if near, ok := spelling.Nearest(name, names); ok {
		fmt.Fprintf(&b, " (did you mean %q?)", near)
	}
	switch _, err := os.Stat(dir); {
	case len(names) > 0:
		fmt.Fprintf(&b, "; there is %s", strings.Join(names, ", "))
	case errors.Is(err, fs.ErrNotExist):
		b.WriteString("; the directory does not exist")
	case len(problems) == 0:
		b.WriteString("; no file there ends in .conflist, .conf or .json")
	}
	unusable(&b, name, all)
	return nil, fmt.Errorf("load network %q from %s: %w%s", name, dir, ErrNotFound, b.String())
}

// LoadFile reads the network in a file with any path and name: a list with the plugins of its drop-in directory (clause
// C8), or a single configuration. Errors are of type *FileError.
func LoadFile(file string) (*List, error) {
	f := load(file, (*document).single)
	if f.problem != nil {
		return nil, f.problem
	}
	return f.list, nil
}

// unusable lists the files that cannot be used. It adds the reason if there is only one such file, or if the file
// belongs to the network.
func unusable(b *strings.Builder, name string, all []loaded) {
	var files []string
	var last, why *FileError
	for _, f := range all {
		if f.problem == nil {
			continue
		}
		base := filepath.Base(f.file)
		files, last = append(files, base), f.problem
		if strings.TrimLeft(strings.TrimSuffix(base, filepath.Ext(base)), "0123456789-_") == name {
			why = f.problem
		}
	}
	if len(files) == 1 {
		why = last
	}
	switch {
	case why != nil:
		fmt.Fprintf(b, "; cannot be used: %v", why)
	case len(files) > 1:
		fmt.Fprintf(b, "; %d files cannot be used: %s", len(files), strings.Join(files, ", "))
	}
}

// A loaded is the result of loading one file: a list or a problem.
type loaded struct {
	file    string
	name    string // of the network, as far as it can be told
	list    *List
	problem *FileError
}

// loadAll loads the files of a directory in their order.
func loadAll(dir string) ([]loaded, *FileError) {
	var all []loaded
	for _, exts := range [][]string{{".conflist"}, {".conf", ".json"}} {
		files, err := files(dir, exts...)
		if err != nil {
			return nil, &FileError{File: dir, Err: err}
		}
		for _, file := range files {
			all = append(all, load(file, func(*document) bool { return filepath.Ext(file) != ".conflist" }))
		}
	}
	return all, nil
}

// files returns the files of a directory that have one of the extensions, in byte order; none if the directory does not
// exist. Symbolic links count as files, whatever they point to.
func files(dir string, exts ...string) (found []string, err error) {
	entries, err := os.ReadDir(dir) // sorted
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil, nil
	case err != nil:
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() && slices.Contains(exts, filepath.Ext(e.Name())) {
			found = append(found, filepath.Join(dir, e.Name()))
		}
	}
	return found, nil
}

// load reads a file. Single decides whether the file must contain a single configuration.
func load(file string, single func(*document) bool) loaded {
	out := loaded{file: file}
	fail := func(err *FileError) loaded {
		in(file, []error{err})
		out.list, out.problem = nil, err
		return out
	}
	b, err := plainfile.ReadLinked(file, plainfile.MaxSize)
	if err != nil {
		return fail(unread(file, err))
	}
	d, ferr := openObject(b, "the configuration")
	if ferr != nil {
		out.name = tornName(b)
		return fail(ferr)
	}
	if m, ok := d.root.fold("name"); ok && m.node.kind == '"' {
		out.name = text(d.raw(m.node))
	}
	if out.list, ferr = d.ofFile(file, single(d)); ferr != nil {
		return fail(ferr)
	}
	if !single(d) {
		if ferr := out.list.dropIns(d); ferr != nil {
			return fail(ferr)
		}
	}
	return out
}

// ofFile returns the list in a file, or a list made from the single configuration in it.
func (d *document) ofFile(file string, single bool) (l *List, err *FileError) {
	read := d.list
	if single {
		read = d.listOfOne
	}
	if m, ok := d.root.exact("plugins"); ok && single {
		return nil, d.bad(CodeConfig, m.at, "plugins", "this is a list: a file with a list is named *.conflist")
	}
	if m, ok := d.root.fold("type"); ok && !single && d.single() {
		return nil, d.bad(CodeConfig, m.at, "type",
			"this is a single configuration: its file is named *.conf, or it goes into plugins: […]")
	}
	if l, err = read(); err != nil {
		return nil, err
	}
	l.File = file
	in(file, l.Warnings)
	return l, nil
}

// ParseFile reads the text of a file in the same way as LoadDir, without the plugins of a drop-in directory. A file
// whose name has none of the extensions of configurations may contain a list or a single configuration.
func ParseFile(file string, b []byte) (*List, error) {
	d, err := openObject(b, "the configuration")
	if err != nil {
		return nil, err
	}
	single := d.single()
	switch filepath.Ext(file) {
	case ".conflist":
		single = false
	case ".conf", ".json":
		single = true
	}
	l, err := d.ofFile(file, single)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// DropIns returns the files in the drop-in directory of l that contain plugins for it (clause C8).
func (l *List) DropIns() []string {
	if l.LoadOnlyInlinedPlugins {
		return nil
	}
	names, _ := files(filepath.Join(filepath.Dir(l.File), l.Name), ".conf")
	return names
}

// tornName returns the name of the network in a text that is not valid JSON, if the name precedes the mistake.
func tornName(b []byte) string {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return ""
	}
	for {
		key, err := d.Token()
		var value any
		if err != nil || d.Decode(&value) != nil {
			return ""
		}
		if name, ok := value.(string); ok && key == "name" {
			return name
		}
	}
}

func unread(file string, err error) *FileError {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = fmt.Errorf("%s: %w", p.Op, p.Err) // FileError says the file
	}
	return &FileError{File: file, Err: err}
}

// dropIns appends the plugins in the directory beside the file that has the name of the network (clause C8). One bad
// file there fails the network, because a network without one of its plugins would behave differently.
func (l *List) dropIns(d *document) *FileError {
	folder := filepath.Join(filepath.Dir(l.File), l.Name)
	if l.LoadOnlyInlinedPlugins {
		return nil
	}
	names, err := files(folder, ".conf")
	if err != nil {
		return &FileError{File: folder, Err: err}
	}
	for _, file := range names {
		b, err := plainfile.ReadLinked(file, plainfile.MaxSize)
		if err != nil {
			return unread(file, err)
		}
		known := len(l.Warnings)
		p, ferr := openObject(b, "the configuration")
		if ferr == nil {
			ferr = l.add(p, p.root, "")
		}
		if ferr != nil {
			ferr.File = file
			return ferr
		}
		in(file, l.Warnings[known:])
	}
	if len(l.Plugins) == 0 {
		ferr := d.missing(d.root, "", "plugins", "none stand here, and "+folder+" has none")
		ferr.File = l.File
		return ferr
	}
	return nil
}
