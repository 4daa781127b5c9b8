package support

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/calls"
	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/command/support"
	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/spec"
)

// Limits for each kind of part.
const (
	mostContainers = 30  // the namespace and the output of inspect
	mostFiles      = 400 // of a directory
)

const (
	cacheDir = attach.DefaultCacheDir + "/results"
	leaseDir = attach.DefaultCacheDir + "/networks"
)

// all collects all parts. It starts with the files: their secrets are then removed from the output of commands too.
func (c *collector) all() {
	problems := c.Unread
	if c.bundle.Mask {
		lines, err := c.calls()
		c.bundle.Names = hiddenNames(c.All, lines)
		if err != nil {
			problems = append(problems, fmt.Errorf("read the log for the names of containers that are gone: %w", err))
		}
	}
	c.dir("net.d", netconf.ConfDir(), "a network's file", true)
	c.dir("cache", cacheDir, "an attachment in the cache", false)
	c.dir("leases", leaseDir, "a lease of host-local, or its other state", false)
	c.dir("records", record.RunDir, "Fairlead's records until the next boot", false)
	c.dir("dhcp", dhcp.StateDir, "a lease of the DHCP daemon", false)
	c.file("settings.json", calls.Settings, "the settings of the log")
	for _, err := range problems {
		c.bundle.Add(support.Part{Name: "cache/unread", About: "errors in the cache", Err: err})
	}
	doctor := c.command("doctor.json", "faults of the host, the networks and the containers", "doctor", "-o", "json")
	c.part("environment.txt", "variables with paths",
		func() ([]byte, error) { return environment(), nil })
	for _, run := range []struct{ name, about, args string }{
		{"version.json", "the version of Fairlead", "version -o json"},
		{"status.json", "which networks can serve a new container", "status -o json"},
		{"networks.json", "the networks, and the errors in their files", "net ls -o json"},
		{"ls.json", "the attachments", "ls -o json --all"},
		{"repair.json", "what fairlead repair would restore", "repair --dry-run -o json"},
		{"addresses.json", "the addresses of host-local", "ipam ls -o json"},
		{"ranges.json", "the ranges of host-local", "ipam stats -o json"},
		{"dhcp.json", "the leases of the DHCP daemon", "dhcp ls -o json"},
		{"graph.txt", "the host and its containers", "graph --all"},
		{"metrics.txt", "numbers of attachments, addresses, calls and repairs", "metrics"},
		{"log.txt", "the last calls of plugins within a day", "log --since 24h"},
	} {
		if _, err := os.Stat(rpc.DefaultSocket); err == nil || run.name != "dhcp.json" {
			c.command(run.name, run.about, strings.Fields(run.args)...)
		}
	}
	if !c.bundle.Mask { // pictures shorten long names
		c.command("graph.svg", "the same as a picture", "graph", "-o", "svg")
	}
	c.system()
	c.host()
	c.containers(doctor)
}

// command adds the output of a command of this program, run as a process of its own, so that its failure does not
// affect the bundle. It returns that output.
func (c *collector) command(name, about string, args ...string) (out []byte) {
	return c.part(name, about, func() ([]byte, error) {
		ctx, cancel := context.WithTimeout(c.ctx, partTime)
		defer cancel()
		var out, errs tail
		cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		cmd.WaitDelay = partTime / 10 // for processes that it left
		err := cmd.Run()
		said := strings.TrimSpace(string(errs.b))
		var r advice.Failure
		if json.Unmarshal(errs.b, &r) == nil {
			said = r.Error
		}
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit) && exit.ExitCode() == app.ExitFault:
			err = nil // this is an answer too
		case err != nil:
			const most = 400 // the bundle has the whole text
			if len(said) > most {
				said = said[:most] + "…"
			}
			err = fmt.Errorf("fairlead %s: %w%s", strings.Join(args, " "), err, app.Prefixed(": ", said))
		case said != "" && !strings.HasSuffix(name, ".json"):
			out.Write([]byte("\n" + said + "\n"))
		}
		return out.b, err
	})
}

// tail keeps the last part of what is written to it.
type tail struct{ b []byte }

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.b = append(t.b, b...)
	if over := len(t.b) - support.MostPart; over > support.MostPart/2 {
		over += bytes.IndexByte(t.b[over:], '\n') + 1 // the rest of an address could not be recognised
		t.b = slices.Clone(t.b[over:])
	}
	return len(b), nil
}

// environment returns the variables of this program that have paths.
func environment() []byte {
	var b bytes.Buffer
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if slices.ContainsFunc([]string{"CNI_", "FAIRLEAD_", "CAP_ARGS", "NETCONFPATH"}, func(p string) bool {
			return strings.HasPrefix(name, p)
		}) {
			fmt.Fprintln(&b, v)
		}
	}
	dirs, _ := netconf.Search(&netconf.Network{List: &spec.List{}})
	fmt.Fprintf(&b, "plugins are searched in %s\n", strings.Join(dirs, ":"))
	for _, dir := range dirs {
		listFiles(&b, dir)
	}
	return b.Bytes()
}

// filesIn returns at most a number of files of a directory, in the directory's own order.
func filesIn(dir string) (all []fs.DirEntry, more bool, err error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|oNonblock, 0)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	all, err = f.ReadDir(mostFiles + 1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if more = len(all) > mostFiles; more {
		all = all[:mostFiles]
	}
	slices.SortFunc(all, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return all, more, err
}

// listFiles writes a listing of a directory.
func listFiles(w io.Writer, dir string) {
	all, more, err := filesIn(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	fmt.Fprintf(w, "%s:\n", dir)
	if err != nil {
		fmt.Fprintf(w, "  %v\n", err)
	}
	for _, e := range all {
		line := e.Name()
		if st, err := e.Info(); err == nil {
			line = fmt.Sprintf("%v %9d %s %s", st.Mode(), st.Size(), st.ModTime().UTC().Format("2006-01-02T15:04:05Z"),
				line)
		}
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			line += " -> " + to
		}
		fmt.Fprintln(w, "  "+term.Printable(line))
	}
	if more {
		fmt.Fprintf(w, "  and more than these %d\n", mostFiles)
	}
}

// dir adds the regular files of a directory and of those below it, and a listing. With links, the target of a
// symbolic link is added if it is a network's file; it might be any file of the host otherwise.
func (c *collector) dir(top, dir, about string, links bool) {
	const deepest = 4
	all, more, err := filesIn(dir)
	if errors.Is(err, fs.ErrNotExist) || strings.Count(top, "/") > deepest {
		return
	}
	if more {
		err = fmt.Errorf("%s has more than %d files", dir, mostFiles)
	}
	var list bytes.Buffer
	listFiles(&list, dir)
	c.bundle.Add(support.Part{Name: top + "/LISTING", About: "listing of " + dir, Content: list.Bytes(), Err: err})
	for _, e := range all {
		name, path := top+"/"+e.Name(), filepath.Join(dir, e.Name())
		switch {
		case e.IsDir():
			c.dir(name, path, about, links)
		case e.Type().IsRegular() && hasSize(e): // a lock file is empty
			c.part(name, about, func() ([]byte, error) { return c.plain(path) })
		case e.Type() == fs.ModeSymlink && links && leadsToFile(path):
			c.part(name, about, func() ([]byte, error) { return linkedNetwork(path) })
		}
	}
}

func hasSize(e fs.DirEntry) bool {
	st, err := e.Info()
	return err != nil || st.Size() > 0
}

// plain reads a file. With --mask it accepts only JSON, whose nested texts it can examine.
func (c *collector) plain(path string) ([]byte, error) {
	b, err := plainfile.Read(path, support.MostPart)
	if err == nil && c.bundle.Mask && filepath.Dir(path) == cacheDir && !json.Valid(b) {
		return nil, fmt.Errorf("read %s: not JSON, so --mask cannot find addresses in it", path)
	}
	return b, err
}

func leadsToFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

func linkedNetwork(path string) ([]byte, error) {
	b, err := plainfile.ReadLinked(path, support.MostPart)
	if err != nil {
		return nil, err
	}
	if _, err := spec.ParseFile(path, b); err != nil {
		return nil, fmt.Errorf("%s is a symbolic link, and its target is not a network's file", path)
	}
	return b, nil
}

// texts returns all strings in a document.
func texts(doc any) (all []string) {
	switch v := doc.(type) {
	case string:
		return []string{v}
	case []any:
		for _, v := range v {
			all = append(all, texts(v)...)
		}
	case map[string]any:
		for _, v := range v {
			all = append(all, texts(v)...)
		}
	}
	return all
}
