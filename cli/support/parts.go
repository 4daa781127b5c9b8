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
	"github.com/fairlead-cni/fairlead/calls"
	"github.com/fairlead-cni/fairlead/cli/advice"
	"github.com/fairlead-cni/fairlead/cli/app"
	"github.com/fairlead-cni/fairlead/cli/attached"
	"github.com/fairlead-cni/fairlead/cli/netconf"
	"github.com/fairlead-cni/fairlead/cli/term"
	"github.com/fairlead-cni/fairlead/dhcp"
	"github.com/fairlead-cni/fairlead/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/fairlead-cni/fairlead/support"
)

// How many there are at most of each.
const (
	mostInspected  = 30
	mostNamespaces = 100
	mostFiles      = 400 // of a directory
)

const (
	cacheDir = attach.DefaultCacheDir + "/results"
	leaseDir = attach.DefaultCacheDir + "/networks"
)

// all collects all parts. The files come first: what is secret in them is removed from what others say of them.
func (c *collector) all() {
	list, problems := (&attach.Runtime{}).List("")
	if c.bundle.Mask {
		lines, err := c.calls()
		c.bundle.Names = hiddenNames(list, lines)
		if err != nil {
			problems = append(problems, fmt.Errorf("read the log for the names of containers that are gone: %w", err))
		}
	}
	c.dir("net.d", netconf.ConfDir(), "a network's file", true)
	c.dir("cache", cacheDir, "what an attachment is remembered by", false)
	c.dir("leases", leaseDir, "a lease of host-local, or what it keeps", false)
	c.dir("records", record.RunDir, "what Fairlead remembers until the next boot", false)
	c.dir("dhcp", dhcp.StateDir, "a lease of the DHCP daemon", false)
	c.file("settings.json", calls.Settings, "the settings of the log")
	for _, err := range problems {
		c.bundle.Add(support.Part{Name: "cache/unread", About: "what of the cache cannot be read", Err: err})
	}
	c.part("environment.txt", "variables that say where things are",
		func() ([]byte, error) { return environment(), nil })
	for _, run := range []struct{ name, about, args string }{
		{"version.json", "which Fairlead this is", "version -o json"},
		{"doctor.json", "what is wrong with the host, the networks and the containers", "doctor -o json"},
		{"status.json", "which networks would serve a new container", "status -o json"},
		{"networks.json", "the networks, and what is wrong with their files", "net ls -o json"},
		{"ls.json", "what is attached", "ls -o json --all"},
		{"repair.json", "what fairlead repair would make again", "repair --dry-run -o json"},
		{"addresses.json", "the addresses of host-local", "ipam ls -o json"},
		{"ranges.json", "the ranges of host-local", "ipam stats -o json"},
		{"dhcp.json", "the leases that the DHCP daemon tells of", "dhcp ls -o json"},
		{"graph.txt", "the host and its containers", "graph --all"},
		{"metrics.txt", "numbers of attachments, addresses, calls and repairs", "metrics"},
		{"log.txt", "the calls of plugins of the last day, the newest ones", "log --since 24h"},
	} {
		if _, err := os.Stat(rpc.DefaultSocket); err == nil || run.name != "dhcp.json" {
			c.command(run.name, run.about, strings.Fields(run.args)...)
		}
	}
	if !c.bundle.Mask { // in a picture long names are cut
		c.command("graph.svg", "the same as a picture", "graph", "-o", "svg")
	}
	c.system()
	c.namespaces(list)
	var seen []string
	for _, l := range list {
		if slices.Contains(seen, l.ContainerID) || l.Network == attached.LoopbackNetwork || len(seen) >= mostInspected {
			continue
		}
		seen = append(seen, l.ContainerID)
		c.command("containers/"+attached.ShortID(l.ContainerID)+"/inspect.json", "what inspect says of container "+
			attached.ShortID(l.ContainerID), "inspect", "-o", "json", "--", l.ContainerID)
	}
}

// command adds what a command of this program says, in a process of its own: whatever becomes of it, the bundle is
// made.
func (c *collector) command(name, about string, args ...string) {
	c.part(name, about, func() ([]byte, error) {
		ctx, cancel := context.WithTimeout(c.ctx, partTime)
		defer cancel()
		var out, errs tail
		cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		cmd.WaitDelay = partTime / 10 // for what it started and left
		err := cmd.Run()
		said := strings.TrimSpace(string(errs.b))
		var r advice.Failure
		if json.Unmarshal(errs.b, &r) == nil {
			said = r.Error
		}
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit) && exit.ExitCode() == app.ExitDrift:
			err = nil // that is an answer
		case err != nil:
			const most = 400 // the bundle has it all
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

// A tail is the last part of what is written to it.
type tail struct{ b []byte }

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.b = append(t.b, b...)
	if over := len(t.b) - support.MostPart; over > support.MostPart/2 {
		over += bytes.IndexByte(t.b[over:], '\n') + 1 // half an address could not be known for one
		t.b = slices.Clone(t.b[over:])
	}
	return len(b), nil
}

// environment is what variables of this program's say where things are.
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
	fmt.Fprintf(&b, "plugins are looked for in %s\n", strings.Join(dirs, ":"))
	for _, dir := range dirs {
		listFiles(&b, dir)
	}
	return b.Bytes()
}

// filesIn are those of a directory, at most so many, in the directory's own order.
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

// listFiles writes what lies in a directory.
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

// dir adds the plain files of a directory and of those below it, and a list of what lies there. What a symbolic link
// leads to is added where links are followed and it is a network's file: it might be any file of the host.
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
	c.bundle.Add(support.Part{Name: top + "/LISTING", About: "what lies in " + dir, Content: list.Bytes(), Err: err})
	for _, e := range all {
		name, path := top+"/"+e.Name(), filepath.Join(dir, e.Name())
		switch {
		case e.IsDir():
			c.dir(name, path, about, links)
		case e.Type().IsRegular() && hasSize(e): // a lock has nothing in it
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

// plain reads a file. Where names are masked only a document will do, whose packed parts can be looked into.
func (c *collector) plain(path string) ([]byte, error) {
	b, err := spec.ReadPlain(path, support.MostPart)
	if err == nil && c.bundle.Mask && filepath.Dir(path) == cacheDir && !json.Valid(b) {
		return nil, fmt.Errorf("read %s: it is no document, and may hide addresses from --mask", path)
	}
	return b, err
}

func leadsToFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

func linkedNetwork(path string) ([]byte, error) {
	b, err := spec.ReadLinked(path, support.MostPart)
	if err != nil {
		return nil, err
	}
	if _, err := spec.ParseFile(path, b); err != nil {
		return nil, fmt.Errorf("%s is a symbolic link, and leads to no file of a network", path)
	}
	return b, nil
}

// texts are all texts in a document.
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
