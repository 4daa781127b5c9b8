// Package grant reads and writes the file by which fairlead-agent tells the plugin cluster which addresses this node
// may allocate. It imports the standard library and spec alone, so that an agent of any other source of addresses can
// write the file too.
package grant

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
)

// Dir is the directory of the grants. It has a file for each network, and does not outlive a boot.
const Dir = "/run/fairlead/cluster"

// A Grant is what a cluster gave a node for one network.
type Grant struct {
	// Cluster and Node name the cluster and this node in it.
	Cluster string `json:"cluster"`
	Node    string `json:"node"`

	// Boot is the boot of the node that the grant is for, as [Boot] returns it. A grant of another boot counts for
	// nothing, because the cluster may have given the ranges to another node since.
	Boot string `json:"boot"`

	// Ranges are the subnets to allocate from. A container gets one address of each family.
	Ranges []netip.Prefix `json:"ranges"`

	// Pools are those that the node may have ranges of, where the nodes share some.
	Pools []Pool `json:"pools,omitempty"`

	// Pins are the addresses of pinned pools that the node has. A container gets one that asks for it by name.
	Pins []netip.Addr `json:"pins,omitempty"`

	// Until says of some Ranges and Pins from when on no container gets an address of them, because another node may
	// have them then: nanoseconds of CLOCK_BOOTTIME. The agent puts it off as long as the cluster hears of the node.
	Until map[netip.Prefix]int64 `json:"until,omitempty"`

	// Lost are addresses of containers that are in the Ranges or Pins no more, because another node may have them.
	Lost []netip.Addr `json:"lost,omitempty"`

	// Missing tells people why there are no more Ranges, or none, and Hint which command tells more. Both may be
	// empty.
	Missing string `json:"missing,omitempty"`
	Hint    string `json:"hint,omitempty"`

	// Reserve is how many addresses of each family should be free. The network says that it wants no more containers
	// while fewer are.
	Reserve int `json:"reserve,omitempty"`

	// MTU is the size in bytes of the largest packet that reaches the containers of every node. Zero is no opinion.
	MTU int `json:"mtu,omitempty"`

	// Prefixes are those of all nodes, to which packets of containers are sent without address translation.
	Prefixes []netip.Prefix `json:"prefixes,omitempty"`

	// Source is what an agent has to find again when it starts anew in the same boot. Only the agent reads it.
	Source json.RawMessage `json:"source,omitempty"`
}

// A Pool is a subnet that the nodes of a cluster share.
type Pool struct {
	Name   string       `json:"name"`
	Prefix netip.Prefix `json:"prefix"`
	Bits   int          `json:"blockBits"`        // prefix length of its blocks, of which a range is one or a part
	Pinned bool         `json:"pinned,omitempty"` // its addresses are given by name alone, and follow containers to other nodes
	Fenced bool         `json:"fenced,omitempty"` // from Until on, and when they are Lost, its addresses are cut off
}

// Of returns the pool that has an address.
func (g *Grant) Of(a netip.Addr) (Pool, bool) {
	i := slices.IndexFunc(g.Pools, func(p Pool) bool { return p.Prefix.Contains(a) })
	if i < 0 {
		return Pool{}, false
	}
	return g.Pools[i], true
}

// Has reports whether containers may have an address.
func (g *Grant) Has(a netip.Addr) bool {
	isOf := func(p netip.Prefix) bool { return p.Contains(a) }
	return slices.ContainsFunc(g.Ranges, isOf) || slices.Contains(g.Pins, a)
}

// An Error says why a network has no grant that can be used.
type Error struct {
	Path string // of the file
	Why  string
	Hint string // what to do
	Err  error  // the cause; nil: Why says all
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Path + ": " + e.Why
	}
	return fmt.Sprintf("%s: %s: %v", e.Path, e.Why, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// StartAgent says what to do where the agent did not answer.
const StartAgent = "Start fairlead-agent on this node; if it runs, its log says what it waits for " +
	"(`journalctl -u fairlead-agent`, or `kubectl logs` of its pod)."

// Boot returns the kernel's identifier of this boot.
func Boot() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// Path returns the file of a network's grant.
func Path(network string) string { return filepath.Join(Dir, network+".json") }

// Networks returns the names of the networks that have a grant on this node.
func Networks() (names []string) {
	files, _ := filepath.Glob(Path("*")) // the pattern is a good one
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	return names
}

// Read returns the grant of a network, with at least one range. The error is an [Error].
func Read(network string) (*Grant, error) {
	g, err := OfBoot(network)
	if err != nil {
		return nil, err
	}
	if len(g.Ranges) == 0 {
		why := "grants no range"
		if g.Missing != "" {
			why += ": " + g.Missing
		}
		return nil, &Error{Path: Path(network), Hint: cmp.Or(g.Hint, StartAgent), Why: why}
	}
	return g, nil
}

// OfBoot returns the grant of a network for this boot, which may have no range. The error is an [Error].
func OfBoot(network string) (*Grant, error) {
	path := Path(network)
	b, err := plainfile.Read(path, plainfile.MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{Path: path, Hint: StartAgent,
			Why: "is missing: no agent has granted addresses to this node since it booted"}
	}
	if err != nil {
		var of *fs.PathError // whose path is in the error already
		if errors.As(err, &of) {
			err = of.Err
		}
		return nil, &Error{Path: path, Hint: StartAgent, Why: "cannot be read", Err: err}
	}
	g := new(Grant)
	if err := json.Unmarshal(b, g); err != nil {
		return nil, &Error{Path: path, Hint: StartAgent, Why: "is no grant, or was cut short", Err: err}
	}
	boot, err := Boot()
	if err != nil {
		return nil, &Error{Path: path, Hint: StartAgent, Why: "cannot be compared with this boot", Err: err}
	}
	if g.Boot != boot {
		return nil, &Error{Path: path, Hint: StartAgent,
			Why: fmt.Sprintf("is of boot %q, and this is boot %s: the node booted since, and the agent has not run",
				g.Boot, boot)}
	}
	return g, nil
}

// A File is the grant of a network for those in one agent that write it. Its methods may be called by several
// goroutines.
type File struct {
	Network string

	mu sync.Mutex
}

// Change replaces the grant in one step with what change makes of it: of that of this boot, or of an empty one. A
// grant that says the same stays.
func (f *File) Change(change func(*Grant)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	boot, err := Boot()
	if err != nil {
		return err
	}
	g := Grant{}
	had, _ := plainfile.Read(Path(f.Network), plainfile.MaxSize) // one that cannot be read is replaced
	if json.Unmarshal(had, &g) != nil || g.Boot != boot {
		g = Grant{}
	}
	change(&g)
	g.Boot = boot
	return write(f.Network, g, had)
}

// Write replaces the grant of a network in one step. It does not wait for a disk, because the file ends with the boot.
func Write(network string, g Grant) error { return write(network, g, nil) }

// write does that if the file, which had a content, is to say something else.
func write(network string, g Grant, had []byte) error {
	b, err := json.MarshalIndent(g, "", "  ")
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if bytes.Equal(had, b) {
		return nil
	}
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		return err
	}
	f, err := Replace(Path(network) + ".new") // one agent writes it
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), Path(network))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Replace makes a file for writing, in the place of what a killed agent or another program left there.
func Replace(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
}
