package blocks

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A Kind is one of the sets of keys in the store.
type Kind string

// The kinds of keys.
const (
	ConfigKey  Kind = "config"  // one key: the store's identifier and the pools
	ReadoptKey Kind = "readopt" // one key, after the store was restored: no node claims while it exists
	AssertKey  Kind = "assert"  // of each node that has said in a readoption what it has: in which one
	EpochKey   Kind = "epoch"   // of each node: which agent may write in its name
	NameKey    Kind = "names"   // of each node's name: the node
	BlockKey   Kind = "block"   // of each block that is not free: its owners
	MineKey    Kind = "mine"    // of each node and block: the parts that it owns. An index, written with the block
	NodeKey    Kind = "node"    // of each node: how others reach it, and what it has left
	AliveKey   Kind = "alive"   // of each node whose agent runs. It ends some time after the agent, and gives no right
	DrainKey   Kind = "drain"   // of each node that is to claim nothing, and to give back what it does not need
	WantKey    Kind = "want"    // of each node and pool: a container found no address, and the pool has no free block
	GraveKey   Kind = "grave"   // of each block of a forgotten or silent node, for some minutes: it is not claimed
	BeatKey    Kind = "beat"    // of each node that loses blocks when it is silent: the last time that it was heard
)

// IsKnown reports whether this version has keys of a kind.
func (k Kind) IsKnown() bool {
	return slices.Contains([]Kind{ConfigKey, ReadoptKey, AssertKey, EpochKey, NameKey, BlockKey, MineKey, NodeKey, AliveKey, DrainKey,
		WantKey, GraveKey, BeatKey}, k)
}

// A Key is that of an entry in the store.
type Key struct {
	Kind  Kind
	Node  string       // identifier of a node, or the name where Kind is NameKey
	Pool  string       // name
	Block netip.Prefix // of the pool
}

// String returns the key's text in the store, without the prefix of the cluster. Blocks of a pool are in the order of
// their addresses.
func (k Key) String() string {
	text := make([]byte, 0, 128) // agents parse and write many keys when many nodes start
	text = append(text, k.Kind...)
	for _, part := range []string{k.Node, k.Pool} {
		if part != "" {
			text = append(append(text, '/'), part...)
		}
	}
	if k.Block.IsValid() {
		text = append(text, '/')
		text = hex.AppendEncode(text, k.Block.Addr().AsSlice())
		text = append(text, '-')
		text = strconv.AppendInt(text, int64(k.Block.Bits()), 10)
	}
	return string(text)
}

// Compare orders keys by their kinds, nodes, pools and blocks.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Kind, other.Kind), cmp.Compare(k.Node, other.Node), cmp.Compare(k.Pool, other.Pool),
		k.Block.Compare(other.Block))
}

// MinePrefix is what the texts of all keys of kind MineKey of a node begin with.
func MinePrefix(node string) string { return Key{Kind: MineKey, Node: node}.String() + "/" }

// Parse returns the key with a text. Its kind has a node or a pool, or both. Beside an error, the key has its kind alone.
func Parse(text string) (k Key, err error) {
	kind, rest, _ := strings.Cut(text, "/")
	k.Kind = Kind(kind)
	if k.Kind != BlockKey && k.Kind != GraveKey {
		k.Node, rest, _ = strings.Cut(rest, "/")
	}
	if k.Kind == WantKey {
		k.Pool = rest
	}
	if k.Kind == BlockKey || k.Kind == GraveKey || k.Kind == MineKey {
		last := max(0, strings.LastIndex(rest, "/")) // a pool that a former release made may have a slash in its name
		k.Pool = rest[:last]
		first, length, _ := strings.Cut(strings.TrimPrefix(rest[last:], "/"), "-")
		address, err := hex.DecodeString(first)
		if err != nil {
			return Key{Kind: k.Kind}, fmt.Errorf("%s: is not the key of a block: %w", text, err)
		}
		bits, err := strconv.Atoi(length)
		if err != nil {
			return Key{Kind: k.Kind}, fmt.Errorf("%s: is not the key of a block: %w", text, err)
		}
		a, _ := netip.AddrFromSlice(address)
		k.Block = netip.PrefixFrom(a, bits)
	}
	if text == "" || k.String() != text {
		return Key{Kind: k.Kind}, fmt.Errorf("%s: is not a key of this version", text)
	}
	return k, nil
}

// A Value is that of an entry. The kind of the key says which field it has.
type Value struct {
	Config *Config  `json:"config,omitempty"`
	Epoch  *Epoch   `json:"epoch,omitempty"`
	Node   string   `json:"node,omitempty"`   // NameKey, and GraveKey: the former owner
	Owners []string `json:"owners,omitempty"` // BlockKey: identifier of the node of each part; empty: it is free
	Parts  Parts    `json:"parts,omitempty"`  // MineKey
	Host   *Host    `json:"host,omitempty"`   // NodeKey

	Readoption *Readoption `json:"readoption,omitempty"` // AssertKey

	// Beat is that of a BeatKey: after which times of silence the node's blocks of pools, by their names, may go to others.
	Beat map[string]Delay `json:"beat,omitempty"`
}

// IsOf reports whether a value has what that of a kind of keys always has.
func (v Value) IsOf(kind Kind) bool {
	switch kind {
	case ConfigKey:
		return v.Config != nil
	case EpochKey:
		return v.Epoch != nil
	case NodeKey:
		return v.Host != nil
	case AssertKey:
		return v.Readoption != nil
	}
	return true
}

// A Config is what an administrator writes. Each change of it is one transaction.
type Config struct {
	// Store is the identifier that the store gave itself when the cluster was made. A store that was restored from a
	// copy has another one.
	Store string `json:"store"`
	Pools []Pool `json:"pools"`
}

// An Epoch says which agent may write in the name of a node. Every transaction of an agent compares the revision of
// this entry, so that none of another agent, or of an earlier one, changes anything.
type Epoch struct {
	N     uint64 `json:"n"`              // grows with each writing
	Name  string `json:"name"`           // of the node
	Nonce string `json:"nonce"`          // of the agent
	Gone  bool   `json:"gone,omitempty"` // the node was forgotten, for ever: if it returns, it joins as another

	// Reclaimed says that others took blocks of the node, because it was silent. The node ends that with its next epoch.
	Reclaimed bool `json:"reclaimed,omitempty"`
}

// A Readoption is the time in which nodes say again what they have, because the store was restored.
type Readoption struct {
	Store    string `json:"store"`    // identifier of the store that was restored
	Revision int64  `json:"revision"` // of the entry of kind ReadoptKey
}

// A Host is what a node says of itself.
type Host struct {
	Name      string         `json:"name"`
	Joined    int64          `json:"-"`                // revision of the store at which it joined: no clock of a node counts
	Endpoints []netip.Addr   `json:"endpoints"`        // by which other nodes reach it, the preferred one first
	MAC       string         `json:"mac"`              // of its VXLAN device
	Version   string         `json:"version"`          // of its agent
	Tunnel    *Tunnel        `json:"tunnel,omitempty"` // its end of WireGuard tunnels; nil: it has none
	Leased    map[string]int `json:"leased,omitempty"` // addresses, by the names of pools

	// LeasedAt is when they were counted, in seconds by the clock of the node: for people alone. Zero: an agent that does not say it.
	LeasedAt int64 `json:"leasedAt,omitempty"`
}

// A Tunnel is what a node says of its WireGuard device.
type Tunnel struct {
	Key  string `json:"key"`  // public key in base64
	Port uint16 `json:"port"` // UDP
}

// Parts is a set of parts of a block, which are numbered from 0.
type Parts uint8

// A Pool is a range of addresses that is cut into blocks of one size.
type Pool struct {
	Name   string       `json:"name"`
	Prefix netip.Prefix `json:"prefix"`
	Bits   int          `json:"blockBits"` // prefix length of a block
	Parts  int          `json:"parts"`     // into which a block can be divided between nodes: 1, 2, 4 or 8

	// Pinned says that containers get addresses of the pool by name alone. Each is a block of its own, which a node owns
	// as long as one of its containers has it.
	Pinned bool `json:"pinned,omitempty"`

	// Closed says that nodes claim only blocks of it in which their containers have addresses already, which another network
	// gave them.
	Closed bool `json:"closed,omitempty"`

	// Reclaim is after which silence a node loses its blocks of the pool.
	Reclaim Delay `json:"reclaim"`

	// Fence is what happens to the node's containers with addresses of the pool when it may not allocate any more.
	Fence Fence `json:"fence,omitempty"`
}

// all returns the parts of a whole block.
func (p Pool) all() Parts { return Parts(1<<p.Parts - 1) }

// A Holding is a block, or some parts of it, that a node owns.
type Holding struct {
	Pool  string
	Block netip.Prefix
	Parts Parts
}
