package blocks

// An Action is what an owner wants done: one of [Read], [Txn], [Save] and [Publish]. Nil: there is nothing to do
// until something happens.
type Action interface{ action() }

// Read reads entries of the store, all at one revision.
type Read struct {
	Keys []Key
	Mine string // a node, whose entries of kind MineKey are read too; empty: none
}

// A Txn is a transaction in the store: if all entries of If have these revisions, the entries of Put and Delete
// change.
type Txn struct {
	If     []Compare
	Put    []Pair
	Delete []Key

	// Lease is one of the store, with which entries of the kinds AliveKey and WantKey end.
	Lease int64

	// Read is what the transaction reads after the changes. Zero: nothing.
	Read Read
}

// A Compare has the revision at which an entry was last written. Zero: there is no such entry.
//
// A key of kind BlockKey or GraveKey without a block stands for all of its pool: with revision zero, there is none.
type Compare struct {
	Key      Key
	Revision int64
}

// A Pair is a key and its value.
type Pair struct {
	Key   Key
	Value Value
}

// Save replaces the journal on the disk, and returns when it will survive a loss of power.
type Save struct{ Journal Journal }

// Publish replaces the grant of this boot. Where it takes something away, this happens under the lock of the leases,
// and only if no address of Without has a lease.
type Publish struct {
	Holdings []Holding
	Without  *Holding
	Refusal  *Refusal // why there are no holdings

	Deadlines Deadlines // of pools of the holdings
}

func (Read) action()    {}
func (Txn) action()     {}
func (Save) action()    {}
func (Publish) action() {}

// An Entry is one of the store.
type Entry struct {
	Pair
	Revision int64 // at which it was last written
}

// A Snapshot is the answer to a Read.
type Snapshot struct {
	Store    string // which answered, by its own identifier
	Revision int64  // of the store
	Entries  []Entry
}

// Of returns the entry with a key. Its revision is zero if there is none.
func (s Snapshot) Of(k Key) Entry {
	for _, e := range s.Entries {
		if e.Key == k {
			return e
		}
	}
	return Entry{Pair: Pair{Key: k}}
}

// An Outcome is the answer to a Txn.
type Outcome struct {
	Store    string
	Revision int64    // of the store, after the transaction
	Done     bool     // the entries were changed
	Seen     []Entry  // those of Txn.If that exist, if Done is false
	Snapshot Snapshot // what Txn.Read reads, if Done is true
}

// A Journal is what a node keeps over boots.
type Journal struct {
	Node    string   `json:"node"`              // identifier, which the node chose when it joined
	Machine string   `json:"machine,omitempty"` // on which it joined
	Epoch   uint64   `json:"epoch"`             // number of the epoch; zero: the node has not joined
	Nonces  []string `json:"nonces"`            // of the agents of which one wrote the epoch
}

// A Reason says why a node gets no addresses.
type Reason int

// The reasons.
const (
	Unconfigured Reason = iota + 1 // the store has no cluster
	NameTaken                      // another node has the name: Node
	Forgotten                      // an administrator told the cluster that the node does not exist any more
	OtherMachine                   // the journal is of another machine: a disk that was copied or moved
	Superseded                     // another agent has the node's identity: a disk that was copied or restored
)

// A Refusal is a reason, and the node that it concerns.
type Refusal struct {
	Reason Reason
	Node   string
}
