// Package directory holds the nodes of a cluster, between a source that tells them and the kernel that sends packets to
// them. It knows neither.
package directory

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
)

// A Node is what the others have to know of a node.
type Node struct {
	Name      string         `json:"name"`
	Joined    int64          `json:"joined"`    // the order of joining: of two nodes with one prefix, the older keeps it
	Endpoints []netip.Addr   `json:"endpoints"` // addresses that other nodes reach it by, the preferred one first
	Prefixes  []netip.Prefix `json:"prefixes"`  // of its containers
	MAC       string         `json:"mac"`       // of its VXLAN device

	// Tunnel is the node's end of WireGuard tunnels. Without a key, the node takes no packets that come so.
	Tunnel Tunnel `json:"tunnel,omitzero"`

	// Gateways are the node's own addresses among its containers. None: the second address of each prefix.
	Gateways []netip.Addr `json:"gateways,omitempty"`
}

// A Tunnel is what others have to know of a node's WireGuard device. The node itself publishes it.
type Tunnel struct {
	Key  string `json:"key"`  // public key in base64, as the node said it: it may be anything
	Port uint16 `json:"port"` // UDP
}

// Of returns the endpoints of the family of like.
func (n Node) Of(like netip.Addr) (list []netip.Addr) {
	for _, e := range n.Endpoints {
		if e.Is4() == like.Is4() {
			list = append(list, e)
		}
	}
	return list
}

// A Conflict is a prefix that two nodes have.
type Conflict struct {
	Prefix, Kept netip.Prefix // they are equal, or overlap
	Loser, Owner string       // names of nodes
}

func (c Conflict) Error() string {
	return fmt.Sprintf("node %s has %v, which overlaps %v of node %s, and joined later: its containers are not reachable "+
		"by that prefix; delete one of the two Node objects, and let the node join again", c.Loser, c.Prefix, c.Kept, c.Owner)
}

// ResolveConflicts returns the nodes in the order of their names, without the prefixes that an older node has.
func ResolveConflicts(nodes []Node) (settled []Node, conflicts []Conflict) {
	byAge := slices.Clone(nodes)
	slices.SortFunc(byAge, func(a, b Node) int { return cmp.Or(cmp.Compare(a.Joined, b.Joined), cmp.Compare(a.Name, b.Name)) })

	owned := owners{by: map[netip.Prefix]string{}}
	for _, n := range byAge {
		var kept []netip.Prefix
		for _, p := range n.Prefixes {
			if owner, of := owned.find(p); owner != "" {
				conflicts = append(conflicts, Conflict{Prefix: p, Kept: of, Loser: n.Name, Owner: owner})
				continue
			}
			kept = append(kept, p)
		}
		for _, p := range kept {
			owned.by[p] = n.Name
			owned.longest = max(owned.longest, p.Bits())
		}
		n.Prefixes = kept
		settled = append(settled, n)
	}
	slices.SortFunc(settled, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return settled, conflicts
}

// owners has the names of nodes by their prefixes.
type owners struct {
	by      map[netip.Prefix]string
	longest int // bits of the longest prefix
}

// find returns the node that has a prefix which overlaps p.
func (o owners) find(p netip.Prefix) (name string, of netip.Prefix) {
	for bits := p.Bits(); bits >= 0; bits-- { // p itself, or a shorter one
		wider, err := p.Addr().Prefix(bits)
		if name, found := o.by[wider]; err == nil && found {
			return name, wider
		}
	}
	if o.longest <= p.Bits() {
		return "", netip.Prefix{}
	}
	for of, name := range o.by {
		if p.Overlaps(of) {
			return name, of
		}
	}
	return "", netip.Prefix{}
}

// A File keeps the nodes of a cluster over restarts and boots.
type File struct{ Path string }

// content is what is in the file.
type content struct {
	Cluster string `json:"cluster"`
	Nodes   []Node `json:"nodes"`
}

// maxFile is the size of the longest file, in bytes: that of some 100,000 nodes.
const maxFile = 32 << 20

// Load returns the nodes of a cluster. There are none if nothing was saved.
func (f File) Load(cluster string) ([]Node, error) {
	b, err := plainfile.Read(f.Path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var c content
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, fmt.Errorf("%s: %w: remove the file, and the agent asks the cluster again", f.Path, err)
	}
	if c.Cluster != cluster {
		return nil, fmt.Errorf("%s: is of the cluster %q, and this node is of %q: remove the file if that is right",
			f.Path, c.Cluster, cluster)
	}
	for _, n := range c.Nodes {
		if err := n.valid(); err != nil {
			return nil, fmt.Errorf("%s: %w: remove the file, and the agent asks the cluster again", f.Path, err)
		}
	}
	return c.Nodes, nil
}

// valid reports what no source of nodes tells and only a damaged file has.
func (n Node) valid() error {
	for _, p := range n.Prefixes {
		if !p.IsValid() || p != p.Masked() {
			return fmt.Errorf("node %s: %v is not a prefix", n.Name, p)
		}
	}
	for _, e := range n.Endpoints {
		if !e.IsValid() {
			return fmt.Errorf("node %s: an endpoint is empty", n.Name)
		}
	}
	return nil
}

// Save replaces the file in one step.
func (f File) Save(cluster string, nodes []Node) error {
	b, err := json.Marshal(content{cluster, nodes})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return err
	}
	tmp, err := grant.Replace(f.Path + ".new") // one agent writes it
	if err != nil {
		return err
	}
	_, err = tmp.Write(append(b, '\n'))
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), f.Path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// OfThisHost reports whether an error is of a file of this host, such as one on a full disk, and not an answer of what tells the
// nodes.
func OfThisHost(err error) bool {
	var file *fs.PathError
	var link *os.LinkError
	return errors.As(err, &file) || errors.As(err, &link)
}
