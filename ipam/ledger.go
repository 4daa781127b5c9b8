package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/spec"
)

// A Ledger is an Allocator whose leases can be inspected and corrected.
type Ledger interface {
	Allocator

	// Judge has vanished say why a container has no namespace at a path any more, or nothing: who knows the kernel
	// knows more of that than whether the path is there.
	Judge(vanished func(o spec.Owner, netns string) error)

	// Networks are the networks that anything is kept of, by name.
	Networks(ctx context.Context) ([]string, error)

	// Look reads all that is kept of a network. A network of which nothing is kept is an empty book. With addresses it
	// reads only their leases, and does not count the others: the book has no Uses.
	Look(ctx context.Context, network string, only ...netip.Addr) (*Book, error)

	// Reserve keeps addresses back from now on, instead of a reservation of the same prefix. Leases stay.
	Reserve(ctx context.Context, network string, r Reservation) error

	// Unreserve ends the reservation of a prefix.
	Unreserve(ctx context.Context, network string, p netip.Prefix) error

	// Forget ends the hold of an address for its sticky key.
	Forget(ctx context.Context, network string, a netip.Addr) error

	// Drop removes a lease, if it is still its owner's.
	Drop(ctx context.Context, network string, l Lease) error

	// Reclaim removes the leases whose containers are gone by proof, and returns them. With dry it removes none.
	Reclaim(ctx context.Context, network string, dry bool) ([]Lease, error)

	// Import adds what b has and the network has not, or nothing: an error says each conflict. Added is what it
	// was, or with dry would be. With force what is of none of the ranges is added too.
	Import(ctx context.Context, network string, b *Book, force, dry bool) (added *Book, err error)

	// Read reads the leases in a directory that another program, or another host, keeps.
	Read(path string) (*Book, error)
}

// A Book has everything that is stored for a network: leases, sticky addresses and reservations.
type Book struct {
	Leases   []Lease       `json:"leases"`
	Sticky   []Binding     `json:"sticky"`
	Reserved []Reservation `json:"reserved"` // but for what the configuration reserves

	Uses       []Use          `json:"-"` // of the ranges, in the order of the configuration
	Sets       []Set          `json:"-"`
	Configured []netip.Prefix `json:"-"` // reserved by the configuration
	Keyed      bool           `json:"-"` // the configuration has sticky keys
	KeyParts   int            `json:"-"` // … of how many parts; 0 where that is not known
	Problems   []string       `json:"-"` // what could not be read
	From       string         `json:"-"` // the directory that it was read from; empty: a document
}

// Path returns the place of a lease, a sticky address or a reservation: in the document, or its file in the directory.
func (b *Book) Path(list string, i int, name string) string {
	if b.From == "" {
		return list + "[" + strconv.Itoa(i) + "]"
	}
	if list == "leases" {
		return b.From + "/" + name
	}
	return b.From + ": " + list + " " + name
}

// The states of a lease.
const (
	Alive   = "alive"   // the runtime's cache knows the container's namespace, and it is there
	Gone    = "gone"    // of an earlier boot, or the namespace that the runtime's cache names is no more
	Unknown = "unknown" // it is not known
)

// A Lease is an address and who has it.
type Lease struct {
	Address     netip.Addr `json:"address"`
	ContainerID string     `json:"containerID"`
	// empty: whatever the interface, as former versions of the reference wrote it
	IfName string `json:"ifname"`
	State  string `json:"-"`
	Why    string `json:"-"` // … it is gone
}

// A Binding is what a sticky key had last.
type Binding struct {
	Address netip.Addr `json:"address"`
	Key     string     `json:"key"`
	IfName  string     `json:"ifname"`
	Seconds int64      `json:"ttl"`
	Since   time.Time  `json:"since"` // when the key got it, or gave it back
	Until   time.Time  `json:"-"`     // when the hold ends; while there is a lease it has not begun
}

// PossibleKey is why no owner comes under a sticky key of so many parts: between them is a slash, and inside of one it
// is %2F, "%" being %25. A key of one part is that part as it is.
func PossibleKey(key string, parts int) error {
	if parts < 2 {
		return nil
	}
	list := strings.Split(key, "/")
	if len(list) != parts {
		return fmt.Errorf("a key has %d parts separated by / (a / inside a part is written %%2F), and this one has %d",
			parts, len(list))
	}
	for _, p := range list {
		if p == "" {
			return errors.New("a part of the key is empty, and no container has such a key")
		}
		if strings.Count(p, "%") != strings.Count(p, "%25")+strings.Count(p, "%2F") {
			return errors.New("the key is not written correctly: inside a part, % is written %25 and / is written %2F")
		}
	}
	return nil
}

// A Use is how much of a set is given out.
type Use struct {
	Path, Range              string
	Size, Reserved, Used     Count
	Held, Resting, Available Count // Available ones are held or rest, or neither
}
