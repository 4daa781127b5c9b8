package nft

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fairlead-cni/fairlead/internal/kernel/machine"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"golang.org/x/sys/unix"
)

// Deleting an element has the kernel wait for a grace period. From Linux 6.12 on, the time that is left to one that
// stands can be changed, in sets that were made for it. An element that is given a millisecond has ended a tick of the
// clock later without a wait, and the kernel collects it within a second.

const (
	endsIn      = 1    // ms, which an element is given; the kernel rounds it up to a tick
	endsWithin  = 1000 // ms: an element that has been given no more is as good as gone
	endingBound = 100 * time.Millisecond

	tableOwner     = 2 // NFT_TABLE_F_OWNER: the table goes with the socket that made it
	anHour, aSpell = 3_600_000, 60_000
)

// ending reports whether e has been made to end. No element of ours is given a time otherwise.
func (e *Elem) ending() bool { return e != nil && e.timeout > 0 && e.timeout <= endsWithin }

// Ending returns a transaction that makes the elements time out that b deletes. It returns nil if b contains any
// other change, because an element that times out is in the way until it is gone. It also returns nil if a set allows
// no timeouts.
func (n *Conn) Ending(b *Batch) (*Batch, error) {
	ending, can := &Batch{}, true
	asked := map[*Set]bool{}
	var qs []*question
	for _, o := range b.ops {
		e := o.elem
		if o.typ != unix.NFT_MSG_DELSETELEM || e.Set == nil || len(e.Set.Data) > 0 && e.Data == nil {
			return nil, nil
		}
		if !asked[e.Set] {
			asked[e.Set] = true
			qs = append(qs, e.Set.question(func(set []byte) { can = can && timesOut(set) }))
		}
		e.Comment, e.timeout = "", endsIn
		ending.ops = append(ending.ops, operation{verb: "end", typ: unix.NFT_MSG_NEWSETELEM, flags: unix.NLM_F_CREATE,
			elem: e})
	}
	if err := n.ask(qs...); err != nil || !can {
		return nil, err
	}
	return ending, nil
}

// ended waits until elements with a timeout are gone, and returns an error that names those that remain. It is called
// at the end of DEL: removing other objects makes the kernel wait longer than that.
func (n *Conn) ended() error {
	n.c.Mu.Lock()
	all := n.keeps().ending
	n.keeps().ending = nil
	n.c.Mu.Unlock()

	found, err := n.Get(all...)
	for _, e := range found {
		if e.ending() {
			err = errors.Join(err, fmt.Errorf("nft element %v has not timed out", e))
		}
	}
	return err
}

// awaitEnd asks again for those elements that are ending, until they have. There is no event for it: the kernel looks
// at its clock. It takes a tick, of 10 ms at most.
func (n *Conn) awaitEnd(qs []*question, found []*Elem) error {
	for end := time.Now().Add(endingBound); ; {
		var open []*question
		for i, e := range found {
			if e.ending() {
				found[i] = nil
				open = append(open, qs[i])
			}
		}
		if len(open) == 0 {
			return nil
		}
		late := time.Now().After(end)
		if !late {
			<-time.After(time.Millisecond)
		}
		if err := n.ask(open...); err != nil || late {
			return err
		}
	}
}

// EndsElements reports whether the kernel is known to support timeouts of existing elements.
func EndsElements() bool {
	return machine.ReadLine(endingRecord()) == "1"
}

// endingRecord is the file that has what is known of it until the next boot.
func endingRecord() string { return filepath.Join(record.RunDir, "nft-ending") }

// CanEnd is EndsElements for a caller that creates tables. If the support is not known, CanEnd tries it in a
// temporary table, which disappears even if the process is killed.
func (n *Conn) CanEnd() bool {
	if answer := machine.ReadLine(endingRecord()); len(answer) == 1 {
		return answer == "1"
	}
	ends, err := n.tryEnding()
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) { // which say that it is too old
		return false
	}
	answer := "0"
	if ends {
		answer = "1"
	}
	if os.MkdirAll(record.RunDir, 0o700) == nil {
		_ = record.Replace(endingRecord(), []byte(answer), false) // else it is tried again
	}
	return ends
}

func (n *Conn) tryEnding() (ends bool, err error) {
	name := fmt.Sprintf("fairlead_try_%d", os.Getpid()) // another process may try, too
	t := &Table{Family: unix.NFPROTO_INET, Name: name, Ends: true}
	s := &Set{Table: t, Name: "try", Key: []Type{Mark}}
	var b Batch
	b.table("add", unix.NLM_F_CREATE, t, tableOwner)
	b.AddSet(s)
	for _, ms := range []uint64{anHour, aSpell} {
		e := Elem{Set: s, Key: Key(uint32(1)), timeout: ms}
		b.ops = append(b.ops, operation{verb: "try", typ: unix.NFT_MSG_NEWSETELEM, flags: unix.NLM_F_CREATE, elem: e})
	}
	if err := n.Commit(&b); err != nil {
		return false, err
	}
	found, err := n.Get(Elem{Set: s, Key: Key(uint32(1))})
	if err == nil {
		ends = found[0] != nil && found[0].timeout <= aSpell
	}
	b = Batch{}
	b.DeleteTable(t)
	return ends, errors.Join(err, n.Commit(&b))
}
