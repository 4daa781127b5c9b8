package nft

import (
	"errors"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// Commit applies all changes of b, or none.
func (n *Conn) Commit(b *Batch) error { return n.CommitAt(b, 0) }

// CommitAt is Commit for changes that depend on what was read in one generation. If any other transaction came since,
// CommitAt changes nothing and the error is ERESTART. That costs no grace period. A generation of 0 means any.
func (n *Conn) CommitAt(b *Batch, generation uint32) error {
	if b.Empty() {
		return nil
	}
	n.c.Mu.Lock()
	defer n.c.Mu.Unlock()
	var first map[uint32]operation
	r, err := n.sendBatch(generation, func(r *netlink.Requests) { first = b.put(r) })
	if err != nil {
		return err
	}
	last := r.Next - 2 // before the end of the batch
	var failed error
	err = n.c.Receive(r.First, func(m netlink.Message) bool {
		if m.Type != unix.NLMSG_ERROR {
			return true
		}
		if err := m.Err(); err != nil && failed == nil {
			if o, ok := first[m.Seq]; ok {
				err = fmt.Errorf("nft %v: %w", o, err)
			}
			failed = err
		}
		// What is wrong with the batch as a whole is an answer to its first message.
		return m.Seq != last && m.Seq != r.First
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	n.committed(b, generation)
	return nil
}

// sendBatch sends a transaction of what put writes, for one generation, or for any if that is 0.
func (n *Conn) sendBatch(generation uint32, put func(*netlink.Requests)) (*netlink.Requests, error) {
	subsystem := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}
	r := n.c.Requests()
	r.Begin(unix.NFNL_MSG_BATCH_BEGIN, 0, subsystem...)
	if generation != 0 {
		r.U32(nfnlBatchGenID, generation)
	}
	put(r)
	r.Begin(unix.NFNL_MSG_BATCH_END, 0, subsystem...)
	return r, netlink.About(n.c.Send(r), "nft")
}

// AwaitCommit waits until the transaction that made a generation has ended, and changes nothing. The kernel counts
// the new generation when it begins to carry a transaction out, and a new chain has the policy accept until its turn
// comes in that. So what was read in one generation is what stays only if it is the same after AwaitCommit.
func (n *Conn) AwaitCommit(generation uint32) error {
	n.c.Mu.Lock()
	defer n.c.Mu.Unlock()
	// The kernel waits for the transaction before it compares, and refuses: an empty batch of a generation far away.
	farAway := max(generation+1<<31, 1) // 0 would be any
	r, err := n.sendBatch(farAway, func(*netlink.Requests) {})
	if err != nil {
		return err
	}
	var said error
	err = n.c.Receive(r.First, func(m netlink.Message) bool {
		said = m.Err()
		return false
	})
	if err = errors.Join(err, said); !errors.Is(err, unix.ERESTART) {
		return fmt.Errorf("nft: wait for a transaction: %w", err)
	}
	return nil
}

// put writes what b does, and returns which operation each message begins with, by sequence number. The last one asks
// for an answer.
func (b *Batch) put(r *netlink.Requests) map[uint32]operation {
	first := map[uint32]operation{}
	for i := 0; i < len(b.ops); {
		// Elements of one set go in one message, of at most half of what an attribute can hold.
		o, j := b.ops[i], i+1
		for o.elem.Set != nil && j < len(b.ops) && j-i < 100 && sameSet(b.ops[j].elem.Set, o.elem.Set) &&
			b.ops[j].verb == o.verb && b.ops[j].flags == o.flags {
			j++
		}
		flags := o.flags
		if j == len(b.ops) {
			flags |= unix.NLM_F_ACK
		}
		first[r.Next] = o
		if o.elem.Set != nil {
			r.Begin(msgType(o.typ), flags, netlink.NetfilterHeader(o.elem.Set.Table.Family)...)
			all := make([]Elem, 0, j-i)
			for _, o := range b.ops[i:j] {
				all = append(all, o.element())
			}
			putElements(r, o.elem.Set, all)
		} else {
			r.Begin(msgType(o.typ), flags, netlink.NetfilterHeader(o.table.Family)...)
			o.fill(r)
		}
		i = j
	}
	return first
}

// committed has the namespace remember what follows from b; the caller holds n.c.Mu.
func (n *Conn) committed(b *Batch, generation uint32) {
	k := n.keeps()
	if k.intactIn == generation && !slices.ContainsFunc(b.ops, func(o operation) bool { return o.elem.Set == nil }) {
		k.intactIn = max(generation+1, 1) // elements have changed, and no chain
	} else {
		k.intactIn, k.intact = 0, nil
	}
	b.Each(func(e Elem, _ bool) {
		if !e.ending() {
			return
		}
		if len(k.ending) == 0 {
			n.ns.Later(n.ended)
		}
		k.ending = append(k.ending, e)
	})
}
