package nft

import (
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A Batch collects the changes of one transaction.
type Batch struct{ ops []operation }

type operation struct {
	verb  string
	typ   uint16
	flags uint16
	elem  Elem // or else:
	table *Table
	kind  string
	name  string // empty: the table itself
	fill  func(*netlink.Requests)
}

// Empty reports whether the batch contains no change.
func (b *Batch) Empty() bool { return b == nil || len(b.ops) == 0 }

// Add adds an element. If the element exists, the transaction fails with EEXIST.
func (b *Batch) Add(e Elem) {
	e.timeout = e.Left
	b.ops = append(b.ops, operation{verb: "add", typ: unix.NFT_MSG_NEWSETELEM,
		flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, elem: e})
}

// Delete deletes an element. If the element does not exist, the transaction fails with ENOENT.
func (b *Batch) Delete(e Elem) {
	b.ops = append(b.ops, operation{verb: "delete", typ: unix.NFT_MSG_DELSETELEM, elem: e})
}

// Append adds the changes of another batch after those of b.
func (b *Batch) Append(other *Batch) { b.ops = append(b.ops, other.ops...) }

// Each calls fn for the elements that the batch adds and deletes, in order.
func (b *Batch) Each(fn func(e Elem, added bool)) {
	for _, o := range b.ops {
		if o.elem.Set != nil {
			fn(o.elem, o.verb == "add")
		}
	}
}

func (b *Batch) op(verb string, typ, flags uint16, t *Table, kind, name string, fill func(*netlink.Requests)) {
	b.ops = append(b.ops, operation{verb: verb, typ: typ, flags: flags, table: t, kind: kind, name: name, fill: fill})
}

// element is what of an element the kernel is told: one that is deleted goes by its key.
func (o operation) element() Elem {
	if o.typ == unix.NFT_MSG_DELSETELEM {
		return Elem{Set: o.elem.Set, Key: o.elem.Key, KeyEnd: o.elem.KeyEnd, End: o.elem.End}
	}
	return o.elem
}

func (o operation) String() string {
	if o.elem.Set != nil {
		return o.verb + " element " + o.element().String()
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %v %s", o.verb, o.kind, o.table, o.name))
}

func sameSet(a, b *Set) bool {
	return a == b || a != nil && b != nil && a.Name == b.Name && a.Table.Family == b.Table.Family &&
		a.Table.Name == b.Table.Name
}
