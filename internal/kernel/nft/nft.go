// Package nft speaks nf_tables by netlink: the tables, chains, rules, sets and elements of this program, and those of
// others. Package xtables handles iptables in nf_tables. The packages above decide what a table contains.
package nft

import (
	"errors"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// Unsupported reports whether err means that the kernel has no nf_tables. Then there are no rules at all.
func Unsupported(err error) bool {
	return netlink.Is(err, unix.EINVAL, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT)
}

// A Conn speaks nf_tables in one namespace. It uses netlink only and runs no program. Its work does not grow with the
// number of attachments, and all changes of one call are one transaction.
//
// Some operations make the kernel wait for a grace period (5 to 20 ms): a batch that fails, adding a chain that
// exists, and closing the socket after a deletion. The common path avoids them, so the socket stays open until
// NS.Close.
type Conn struct {
	c  *netlink.Conn
	ns *kernel.NS
}

// kept is what is known of a namespace as long as it is open.
type kept struct {
	ending []Elem // see ended

	intactIn uint32 // the generation that these chains were seen in, and how often each is used, see Intact
	intact   map[string]uint32

	diffsOf uint32 // the generation that these were found in, see DiffOnce
	diffs   map[string][]error
}

// keeps is that of the namespace; the caller holds n.c.Mu.
func (n *Conn) keeps() *kept {
	k, ok := n.c.Kept.(*kept)
	if !ok {
		k = &kept{}
		n.c.Kept = k
	}
	return k
}

// Open opens nf_tables in the namespace.
func Open(ns *kernel.NS) (*Conn, error) {
	c, err := ns.Conn(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open nf_tables: %w", err)
	}
	return &Conn{c, ns}, nil
}

const nfnlBatchGenID = 1 // NFNL_BATCH_GENID, since Linux 4.12

func msgType(op uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | op }

// A question is a request that the kernel answers with exactly one message.
type question struct {
	op     uint16
	family byte
	fill   func(*netlink.Requests)
	answer func(attributes []byte) // not called for what does not exist; nil: it is enough to know whether it does
	found  bool
}

// Generation returns the generation ID of nf_tables, which every transaction increases.
func (n *Conn) Generation() (id uint32, err error) {
	err = n.ask(&question{op: unix.NFT_MSG_GETGEN, fill: func(*netlink.Requests) {},
		answer: func(b []byte) { id = netlink.Attr32(b, unix.NFTA_GEN_ID) }})
	return id, err
}

// ask asks many questions in few system calls. That something does not exist is no error.
func (n *Conn) ask(qs ...*question) error {
	n.c.Mu.Lock()
	defer n.c.Mu.Unlock()
	for chunk := range slices.Chunk(qs, 16) { // as many answers as the socket has room for, with ease
		r := n.c.Requests()
		for _, q := range chunk {
			r.Begin(msgType(q.op), 0, netlink.NetfilterHeader(q.family)...)
			q.fill(r)
		}
		if err := n.c.Send(r); err != nil {
			return err
		}
		var failed error
		left := len(chunk)
		err := n.c.Receive(r.First, func(m netlink.Message) bool {
			q := chunk[m.Seq-r.First]
			if m.Type != unix.NLMSG_ERROR {
				q.found = true
				if q.answer != nil && len(m.Body) >= 4 {
					q.answer(m.Body[4:])
				}
			} else if err := m.Err(); !errors.Is(err, unix.ENOENT) {
				failed = errors.Join(failed, err)
				if errors.Is(err, unix.EPERM) { // nfnetlink_rcv refuses all that were sent together by one answer
					return false
				}
			}
			left--
			return left > 0
		})
		if err := errors.Join(err, failed); err != nil {
			return fmt.Errorf("ask nf_tables: %w", err)
		}
	}
	return nil
}

// dump calls each with the attributes of all objects of one kind and family, or of those that fill asks for.
func (n *Conn) dump(op uint16, family byte, fill func(*netlink.Requests), each func(family byte, b []byte)) error {
	n.c.Mu.Lock()
	defer n.c.Mu.Unlock()
	r := n.c.Requests()
	r.Begin(msgType(op), unix.NLM_F_DUMP, netlink.NetfilterHeader(family)...)
	fill(r)
	return n.c.Dump(r, func(body []byte) {
		if len(body) >= 4 {
			each(body[0], body[4:])
		}
	})
}

// dumpAll dumps the objects of one kind in all families.
func (n *Conn) dumpAll(op uint16, each func(family byte, b []byte)) error {
	err := n.dump(op, unix.NFPROTO_UNSPEC, func(*netlink.Requests) {}, each)
	return netlink.About(err, "list nf_tables")
}

// attrTable is the name of the table in each message: NFTA_TABLE_NAME, NFTA_CHAIN_TABLE and so on.
const attrTable = 1

// put is the body of a request for the table.
func (t *Table) put(r *netlink.Requests) { r.Str(attrTable, t.Name) }

// named is the body of a request for one object of the table, whose name is an attribute of that kind.
func (t *Table) named(kind uint16, name string) func(*netlink.Requests) {
	return func(r *netlink.Requests) {
		t.put(r)
		r.Str(kind, name)
	}
}
