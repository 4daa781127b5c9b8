package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// DeleteRule deletes a rule by its handle.
func (b *Batch) DeleteRule(t *Table, chain string, handle uint64) {
	b.op("delete", unix.NFT_MSG_DELRULE, 0, t, "rule", fmt.Sprintf("%s handle %d", chain, handle),
		func(r *netlink.Requests) {
			t.named(unix.NFTA_RULE_CHAIN, chain)(r)
			r.Attr(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle)...)
		})
}

// RemoveChain empties a chain and deletes it.
func (b *Batch) RemoveChain(t *Table, chain string) {
	b.flush(t, chain)
	b.DeleteChain(t, chain)
}

func (b *Batch) flush(t *Table, chain string) {
	b.op("flush", unix.NFT_MSG_DELRULE, 0, t, "chain", chain, t.named(unix.NFTA_RULE_CHAIN, chain))
}

// AddTable creates a table, or leaves an existing one as it is.
func (b *Batch) AddTable(t *Table) { b.table("add", unix.NLM_F_CREATE, t) }

// table creates a table, or changes the flags of one.
func (b *Batch) table(verb string, create uint16, t *Table, flags ...uint32) {
	b.op(verb, unix.NFT_MSG_NEWTABLE, create, t, "table", "", func(r *netlink.Requests) {
		t.put(r)
		for _, f := range flags {
			r.U32(unix.NFTA_TABLE_FLAGS, f)
		}
	})
}

// DeleteTable deletes a table with all that is in it.
func (b *Batch) DeleteTable(t *Table) {
	b.op("delete", unix.NFT_MSG_DELTABLE, 0, t, "table", "", t.put)
}

// DeleteChain deletes a chain with its rules. If rules still jump to the chain, the transaction fails with EBUSY.
func (b *Batch) DeleteChain(t *Table, chain string) {
	b.op("delete", unix.NFT_MSG_DELCHAIN, 0, t, "chain", chain, t.named(unix.NFTA_CHAIN_NAME, chain))
}

// DeleteSet deletes a set with its elements. If rules still use the set, the transaction fails with EBUSY.
func (b *Batch) DeleteSet(s *Set) {
	b.op("delete", unix.NFT_MSG_DELSET, 0, s.Table, "set", s.Name, s.Table.named(unix.NFTA_SET_NAME, s.Name))
}

func (s *Set) flags() (flags uint32) {
	if len(s.Data) > 0 {
		flags |= unix.NFT_SET_MAP
	}
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	if s.Interval && !s.bounded() {
		flags |= setConcat
	}
	if s.Times || s.Table.Ends && !s.bounded() {
		flags |= unix.NFT_SET_TIMEOUT
	}
	return flags
}

// bounded reports whether the elements are the bounds of intervals. Such elements never end: each is deleted with the
// other bound.
func (s *Set) bounded() bool { return s.Interval && len(s.Key) == 1 }

// AddSet creates a set, or leaves an existing set of the same kind as it is.
func (b *Batch) AddSet(s *Set) {
	id := uint32(len(b.ops) + 1)
	b.op("add", unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, s.Table, "set", s.Name,
		func(r *netlink.Requests) {
			s.Table.named(unix.NFTA_SET_NAME, s.Name)(r)
			r.U32(unix.NFTA_SET_ID, id)
			typ, size := s.keyType()
			r.U32(unix.NFTA_SET_KEY_TYPE, typ)
			r.U32(unix.NFTA_SET_KEY_LEN, uint32(size))
			if len(s.Key) == 1 && s.Key[0] == Ifname {
				// nft(8) prints names the wrong way round unless it is told their byte order: type 0, 4 bytes,
				// and 1 for the host's.
				r.Attr(unix.NFTA_SET_USERDATA, append([]byte{0, 4}, binary.NativeEndian.AppendUint32(nil, 1)...)...)
			}
			if len(s.Of) > 0 {
				r.Attr(unix.NFTA_SET_USERDATA, typeOfFields(s.Of)...)
			}
			if s.flags() != 0 {
				r.U32(unix.NFTA_SET_FLAGS, s.flags())
			}
			if s.Interval && !s.bounded() {
				r.Nest(unix.NFTA_SET_DESC, func() {
					r.Nest(setDescConcat, func() {
						for _, t := range s.Key {
							r.Nest(unix.NFTA_LIST_ELEM, func() { r.U32(setFieldLen, uint32(t.Size())) })
						}
					})
				})
			}
			if len(s.Data) == 0 {
				return
			}
			typ, size = typeOf(s.Data)
			r.U32(unix.NFTA_SET_DATA_TYPE, typ)
			r.U32(unix.NFTA_SET_DATA_LEN, uint32(size))
		})
}

// AddChain creates a chain without its rules, or leaves an existing one as it is.
func (b *Batch) AddChain(t *Table, c *Chain) {
	b.op("add", unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, t, "chain", c.Name, func(r *netlink.Requests) {
		t.named(unix.NFTA_CHAIN_NAME, c.Name)(r)
		if c.Type == "" {
			return
		}
		r.Nest(unix.NFTA_CHAIN_HOOK, func() {
			r.U32(unix.NFTA_HOOK_HOOKNUM, c.Hook)
			r.U32(unix.NFTA_HOOK_PRIORITY, uint32(c.Priority))
		})
		r.Str(unix.NFTA_CHAIN_TYPE, c.Type)
	})
}

// AddRule adds a rule at the end of a chain.
func (b *Batch) AddRule(t *Table, chain string, rule *Rule) {
	b.rule(t, chain, rule, unix.NLM_F_APPEND)
}

// InsertRule adds a rule at the beginning of a chain.
func (b *Batch) InsertRule(t *Table, chain string, rule *Rule) { b.rule(t, chain, rule, 0) }

func (b *Batch) rule(t *Table, chain string, rule *Rule, flags uint16) {
	b.op("add", unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|flags, t, "rule", chain+" "+rule.comment,
		func(r *netlink.Requests) {
			t.named(unix.NFTA_RULE_CHAIN, chain)(r)
			r.Nest(unix.NFTA_RULE_EXPRESSIONS, func() { r.Buffer = append(r.Buffer, rule.code...) })
			putComment(&r.Buffer, unix.NFTA_RULE_USERDATA, rule.Comment())
		})
}
