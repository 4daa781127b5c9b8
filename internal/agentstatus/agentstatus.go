// Package agentstatus is what fairlead-agent says of a node's way to the other nodes of its cluster, and how to ask it.
// It has no part of Kubernetes in it.
package agentstatus

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
)

// Version is that of the document. A field that is new does not change it.
const Version = 1

// A Status is what an agent knows.
type Status struct {
	Version int    `json:"version"`
	Cluster string `json:"cluster"`
	Network string `json:"network"` // whose containers the agent connects
	Node    string `json:"node"`    // this node's name
	Agent   string `json:"agent"`   // version of the program

	// Source is what tells the agent the nodes, for people.
	Source string `json:"source,omitempty"`

	Started time.Time `json:"started,omitzero"`  // when the agent began
	Heard   time.Time `json:"heard,omitzero"`    // when the cluster last told the nodes; zero: not since the agent began
	Devices []Device  `json:"devices,omitempty"` // one for each family of the other nodes' addresses
	Nodes   []Node    `json:"nodes"`             // this node is one of them

	Compared time.Time `json:"compared,omitzero"` // when the agent last compared the kernel with what should be
	API      API       `json:"api"`

	// Policies is the number of NetworkPolicy objects of the cluster, which nothing enforces. Nil: it is unknown.
	Policies *int `json:"policies,omitempty"`

	// Pools are those that the nodes share, where they have no podCIDRs.
	Pools []Pool `json:"pools,omitempty"`

	// Problems are what is not as it should be, also of single nodes.
	Problems []Problem `json:"problems,omitempty"`
}

// A Pool is a range of addresses of which nodes own blocks.
type Pool struct {
	Name   string       `json:"name"`
	Prefix netip.Prefix `json:"prefix"`
	Blocks string       `json:"blocks"` // a number, which an IPv6 pool may have many digits of
	Owned  int          `json:"owned"`  // blocks that are not free
	Leased int          `json:"leased"` // addresses, some minutes ago
	Usable json.Number  `json:"usable"` // addresses of the blocks that are owned
}

// An API is what the agent receives from the API server.
type API struct {
	Bytes     int64     `json:"bytes"`         // since the agent began
	PerMinute int64     `json:"perMinute"`     // bytes in the last minute
	Last      time.Time `json:"last,omitzero"` // when the last ones came
}

// A Device is the node's end of the tunnels.
type Device struct {
	Name   string     `json:"name"`
	Kind   string     `json:"kind"`         // as ip(8) calls it: vxlan or wireguard
	ID     uint32     `json:"id,omitempty"` // VXLAN network identifier
	Port   uint16     `json:"port"`         // UDP; zero: unknown
	Local  netip.Addr `json:"local,omitzero"`
	Uplink string     `json:"uplink,omitempty"` // link that has Local
	MTU    int        `json:"mtu,omitempty"`    // of packets inside of the tunnel, in bytes

	PublicKey string `json:"publicKey,omitempty"` // of WireGuard
}

// A Way is how packets reach the containers of a node.
type Way string

// The ways.
const (
	Here      Way = "here"      // it is this node
	VXLAN     Way = "vxlan"     // in UDP
	WireGuard Way = "wireguard" // in UDP, encrypted
	Direct    Way = "direct"    // by a router's address on the link, which is that of the node
	None      Way = "none"      // there is none, see Problems
)

// A Node is one node of the cluster.
type Node struct {
	Name      string         `json:"name"`
	Endpoints []netip.Addr   `json:"endpoints,omitempty"` // by which other nodes reach it
	Prefixes  []netip.Prefix `json:"prefixes,omitempty"`  // of its containers
	MAC       string         `json:"mac,omitempty"`       // of its VXLAN device
	PublicKey string         `json:"publicKey,omitempty"` // of its WireGuard device

	Way      Way        `json:"way,omitempty"`
	Endpoint netip.Addr `json:"endpoint,omitzero"` // the one that is used
	MTU      int        `json:"mtu,omitempty"`     // of packets to its containers, in bytes
	Path     *Path      `json:"path,omitempty"`    // nil: it was not tested
}

// Socket returns where the agent of a network answers, by HTTP.
func Socket(network string) string { return grant.Socket(network) }

// Saved returns the file that keeps the nodes of a network over restarts and boots. It is a [Status] with names,
// endpoints, prefixes and MAC addresses of nodes.
func Saved(network string) string {
	return filepath.Join("/var/lib/cni/fairlead/cluster", network+".json")
}

// limit is the size of the longest answer, in bytes: that of some 10,000 nodes.
const limit = 16 << 20

// Ask asks the agent of a network.
func Ask(ctx context.Context, network string) (s *Status, err error) {
	err = request(ctx, network, "GET /status", func(answer io.Reader) (err error) {
		s, err = parse(answer)
		return err
	})
	return s, err
}

// request sends a request to the agent of a network, and gives the answer to take.
func request(ctx context.Context, network, line string, take func(answer io.Reader) error) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", Socket(network))
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := io.WriteString(c, line+" HTTP/1.0\r\nHost: agent\r\n\r\n"); err != nil {
		return fmt.Errorf("ask %s: %w", Socket(network), err)
	}
	if err := take(c); err != nil {
		return fmt.Errorf("answer of %s: %w", Socket(network), err)
	}
	return nil
}

// parse reads an answer with a status.
func parse(r io.Reader) (*Status, error) {
	s := new(Status)
	if err := decode(r, s); err != nil {
		return nil, err
	}
	if s.Version != Version {
		return nil, fmt.Errorf("is of version %d, and this program knows version %d: use the fairlead and the "+
			"fairlead-agent of one release", s.Version, Version)
	}
	return s, nil
}

// decode reads an answer of HTTP/1.0, which ends with the connection.
func decode(r io.Reader, into any) error {
	lines := bufio.NewReader(io.LimitReader(r, limit))
	line, err := lines.ReadString('\n')
	if err != nil {
		return err
	}
	if words := strings.Fields(line); len(words) < 2 || words[1] != "200" {
		return fmt.Errorf("want 200 OK, got %q", strings.TrimSpace(line))
	}
	for strings.TrimSpace(line) != "" {
		if line, err = lines.ReadString('\n'); err != nil {
			return err
		}
	}
	return json.NewDecoder(lines).Decode(into)
}

// Last returns the nodes that the agent saved, for when it does not answer.
func Last(network string) (*Status, error) {
	text, err := os.ReadFile(Saved(network))
	if err != nil {
		return nil, err
	}
	s := &Status{Version: Version, Network: network}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("%s: %w", Saved(network), err)
	}
	return s, nil
}
