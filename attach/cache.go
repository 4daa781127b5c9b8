package attach

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Cached is an attachment in the cache. The cache is shared with containerd, podman and all other programs that use
// the reference library.
type Cached struct {
	ContainerID  string
	IfName       string
	Network      string
	Netns        string
	Config       []byte // the list's own file as it was at ADD, without what a drop-in folder added
	Args         [][2]string
	Capabilities map[string]any
	Result       *spec.Result
	File         string

	// Bare: the file is of the oldest format, a result and nothing else. Network, ContainerID and IfName
	// are then what its name suggests, and a dash in one of them misleads.
	Bare bool

	// Left are the plugins whose DEL has failed, where that of the first one, which made the interface, has not.
	Left []string

	// Stored is when ADD remembered it, as far as its file tells.
	Stored time.Time

	seen     string                 // which namespace ADD saw, see identity
	boot     func() (string, error) // bootID, read once for all entries of a List; nil: not read yet
	noResult error                  // the file is an attachment, and its result cannot be read
	stamp    stamp                  // of its file, from List
}

// Owner returns the owner of the attachment.
func (c *Cached) Owner() spec.Owner {
	return spec.Owner{Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName}
}

// An entry is the content of a file of the reference library, one compact JSON object, with members that we add. The
// library ignores unknown members.
type entry struct {
	Kind           string          `json:"kind"`
	ContainerID    string          `json:"containerId"`
	Config         []byte          `json:"config"`
	IfName         string          `json:"ifName"`
	NetworkName    string          `json:"networkName"`
	Netns          string          `json:"netns,omitempty"`
	CNIArgs        [][2]string     `json:"cniArgs,omitempty"`
	CapabilityArgs map[string]any  `json:"capabilityArgs,omitempty"`
	Result         json.RawMessage `json:"result,omitempty"`
	Seen           string          `json:"fairleadNetns,omitempty"`
	Left           []string        `json:"fairleadLeft,omitempty"`
}

const kind = "cniCacheV1"

// ErrUnseen is wrapped by the problem of List if the cache itself cannot be read, so that the attachments are unknown.
var ErrUnseen = errors.New("the attachments cannot be read")

// ErrCorrupt is wrapped by the error of Check and by a problem of List if a file of the cache contains neither an
// attachment nor a result.
var ErrCorrupt = errors.New("not a valid entry of the cache")

// Unread is the problem of List about a file that cannot be read. It may be an attachment, unless a DEL has set it
// aside.
type Unread struct {
	File  string
	Err   error
	Aside bool
}

func (u *Unread) Error() string { return u.Err.Error() }
func (u *Unread) Unwrap() error { return u.Err }

// Of reports whether the file may be an attachment of the network, or of any network if the name is empty: the names
// of a network's files begin with its name.
func (u *Unread) Of(network string) bool {
	return !u.Aside && (network == "" || strings.HasPrefix(filepath.Base(u.File), network+"-"))
}

func (r *Runtime) resultsDir() string { return filepath.Join(r.cacheDir(), "results") }

// paths returns the two possible paths of the attachment: the reference's name, and a second one. The reference joins
// three names with dashes, which the names themselves may contain, so a-b + c and a + b-c get the same file name. The
// content says to whom the file belongs; the later attachment uses the second name. A name that is too long is replaced
// in the same way.
func (r *Runtime) paths(o spec.Owner) []string {
	const longest = 255
	name := o.Network + "-" + o.ContainerID + "-" + o.IfName
	second := filepath.Join(r.resultsDir(), name[:min(len(name), 200)]+"-"+digest(o))
	if len(name) > longest {
		return []string{second}
	}
	return []string{filepath.Join(r.resultsDir(), name), second}
}

func digest(o spec.Owner) string {
	sum := sha256.Sum256([]byte(o.Network + "\x00" + o.ContainerID + "\x00" + o.IfName))
	return hex.EncodeToString(sum[:8])
}

// load returns the attachment of o, or nil without an error if there is none. It returns an error if the file that
// should contain it cannot be read or contains something else.
func (r *Runtime) load(o spec.Owner) (*Cached, error) {
	var unreadable error
	for _, path := range r.paths(o) {
		c, err := read(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			unreadable = err
		case c.Bare:
			c.Network, c.ContainerID, c.IfName = o.Network, o.ContainerID, o.IfName
			return c, nil
		case c.Owner() == o:
			return c, nil
		}
	}
	return nil, unreadable
}

// read reads one file of the cache.
func read(path string) (*Cached, error) {
	b, err := plainfile.Read(path, plainfile.MaxSize)
	if err != nil {
		return nil, err
	}
	var e entry
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber() // capabilities go back to plugins as they came
	err = d.Decode(&e)
	if _, end := d.Token(); err == nil && end != io.EOF {
		err = errors.New("something follows its JSON")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrCorrupt, err)
	}
	if e.Kind != kind {
		result, err := spec.DecodeResult(b, "")
		if err != nil || e.Kind != "" {
			return nil, fmt.Errorf("%s: %w (kind %q)", path, ErrCorrupt, e.Kind)
		}
		return &Cached{Result: result, File: path, Bare: true}, nil
	}
	c := &Cached{
		ContainerID: e.ContainerID, IfName: e.IfName, Network: e.NetworkName, Netns: e.Netns,
		Config: e.Config, Args: e.CNIArgs, Capabilities: e.CapabilityArgs, File: path, seen: e.Seen, Left: e.Left,
	}
	if c.Network == "" || c.ContainerID == "" || c.IfName == "" {
		return nil, fmt.Errorf("%s: %w: network, container or interface is not named", path, ErrCorrupt)
	}
	if len(e.Result) > 0 {
		if c.Result, err = spec.DecodeResult(e.Result, ""); err != nil {
			c.noResult = fmt.Errorf("%s: result: %w", path, err)
		}
	}
	c.Netns = cmp.Or(c.Netns, c.Result.Sandbox(c.IfName)) // libraries before 1.3 record it nowhere else
	return c, nil
}

// store writes the attachment. The file is renamed into place, so that readers never see half of it. It is not synced,
// because the attachment ends with the container's namespace. The temporary file is outside the directory that the
// reference library lists. Its name derives from the attachment, so a crash leaves at most one, which the next ADD or
// DEL of the same attachment removes.
func (r *Runtime) store(c *Cached) error {
	e := entry{
		Kind: kind, ContainerID: c.ContainerID, Config: c.Config, IfName: c.IfName, NetworkName: c.Network,
		Netns: c.Netns, CNIArgs: c.Args, CapabilityArgs: c.Capabilities, Seen: c.seen,
	}
	var err error
	if e.Result, err = c.Result.Encode(c.Result.CNIVersion); err != nil {
		return fmt.Errorf("cache %s: %w", c.Owner(), err)
	}
	b, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("cache %s: %w", c.Owner(), err)
	}
	if err := os.MkdirAll(r.resultsDir(), 0o700); err != nil {
		return fmt.Errorf("cache %s: %w", c.Owner(), err)
	}
	paths := r.paths(c.Owner())
	path := paths[0]
	if other, err := read(path); err == nil && !other.Bare && other.Owner() != c.Owner() {
		path = paths[len(paths)-1]
	}
	if err := r.write(c.Owner(), path, b); err != nil {
		return err
	}
	c.File = path
	return nil
}

// write puts the file of an attachment in its place.
func (r *Runtime) write(o spec.Owner, path string, b []byte) error {
	tmp := r.temporary(o)
	err := os.Remove(tmp)
	if err == nil || errors.Is(err, fs.ErrNotExist) { // to open a pipe that has its name would hang
		err = os.WriteFile(tmp, b, 0o600)
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("cache %s: %w", o, err)
	}
	return nil
}

func (r *Runtime) temporary(o spec.Owner) string {
	return filepath.Join(r.cacheDir(), ".fairlead-"+digest(o)+".tmp")
}

// unfinished records which plugins of a DEL have failed. The rest of the file stays unchanged.
func (r *Runtime) unfinished(c *Cached, left []string) error {
	if c == nil || c.Bare || slices.Equal(c.Left, left) {
		return nil
	}
	b, err := plainfile.Read(c.File, plainfile.MaxSize)
	var e map[string]json.RawMessage
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	if err == nil {
		e["fairleadLeft"], err = json.Marshal(left)
	}
	if err == nil {
		b, err = json.Marshal(e)
	}
	if err != nil {
		return fmt.Errorf("cache %s: %s: %w", c.Owner(), c.File, err)
	}
	return r.write(c.Owner(), c.File, b)
}

// forget removes the attachment from the cache, with temporary files that a crash may have left.
func (r *Runtime) forget(o spec.Owner, c *Cached) error {
	paths := []string{r.temporary(o)}
	if c != nil {
		paths = append(paths, c.File)
	}
	var errs []error
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("cache %s: %w", o, err))
		}
	}
	return errors.Join(errs...)
}

// setAside renames files that cannot be read, so that a person can look at them.
func (r *Runtime) setAside(o spec.Owner) (kept []string, err error) {
	var errs []error
	for _, path := range r.paths(o) {
		if _, err := read(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !unanswered(err) {
			if err := os.Rename(path, path+corruptSuffix); err != nil {
				errs = append(errs, err)
				continue
			}
			kept = append(kept, path+corruptSuffix)
		}
	}
	return kept, errors.Join(errs...)
}

const corruptSuffix = ".corrupt"

// List returns the attachments of a network in the cache, or of all networks if the name is empty, sorted by file. It
// also returns the problems with files that contain no attachment. A cache that does not exist is empty.
func (r *Runtime) List(network string) ([]Cached, []error) {
	list, problems, err := r.list(network)
	if err != nil {
		return nil, []error{err}
	}
	return list, problems
}

// list is like List, but returns separately the error of a cache that cannot be listed at all.
func (r *Runtime) list(network string) (list []Cached, problems []error, err error) {
	dir := r.resultsDir()
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%w: %w", ErrUnseen, err)
	}
	boot := sync.OnceValues(bootID)
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		info, gone := f.Info() // before it is read: what replaces it then has another stamp
		if gone != nil {
			continue
		}
		c, err := read(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // its DEL was faster
			continue
		case err != nil && strings.HasSuffix(path, corruptSuffix):
			err = fmt.Errorf("%w; an earlier DEL set the file aside; look at it, then remove it", err)
			problems = append(problems, &Unread{path, err, true})
			continue
		case err != nil:
			problems = append(problems, &Unread{path, err, false})
			continue
		case c.Bare:
			c.guess(f.Name(), network)
		}
		if c.noResult != nil {
			problems = append(problems, c.noResult)
		}
		c.Stored, c.stamp, c.boot = info.ModTime(), stampOf(info), boot
		if network == "" || c.Network == network {
			list = append(list, *c)
		}
	}
	return list, problems, nil
}

// guess derives the owner of an entry that is a bare result from its file name.
func (c *Cached) guess(name, network string) {
	rest, ok := strings.CutPrefix(name, network+"-")
	if network == "" || !ok {
		network, rest, _ = strings.Cut(name, "-")
	}
	c.Network, c.ContainerID = network, rest
	if i := strings.LastIndexByte(rest, '-'); i >= 0 {
		c.ContainerID, c.IfName = rest[:i], rest[i+1:]
	}
}
