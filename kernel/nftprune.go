package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// An NFTUse is a chain that there is, and how many rules it has and how many lead to it, together.
type NFTUse struct {
	Chain string
	Use   int
}

// Uses are all chains of a table.
func (n *NFT) Uses(t *NFTTable) (all []NFTUse, err error) {
	err = n.dumpAll(unix.NFT_MSG_GETCHAIN, func(family byte, body []byte) {
		if family == t.Family && text(attr(body, unix.NFTA_CHAIN_TABLE)) == t.Name {
			all = append(all, NFTUse{text(attr(body, unix.NFTA_CHAIN_NAME)), int(attr32(body, unix.NFTA_CHAIN_USE))})
		}
	})
	return all, err
}

// SetNames are the names of all sets and maps of a table.
func (n *NFT) SetNames(t *NFTTable) (names []string, err error) {
	err = n.dumpAll(unix.NFT_MSG_GETSET, func(family byte, body []byte) {
		if family == t.Family && text(attr(body, unix.NFTA_SET_TABLE)) == t.Name {
			names = append(names, text(attr(body, unix.NFTA_SET_NAME)))
		}
	})
	return names, err
}

// An NFTLine is a rule as it stands in a chain: its handle, and the chain that it jumps to, if any.
type NFTLine struct {
	Handle uint64
	Jump   string
}

// Lines are the rules of a chain, in order. A chain that does not exist has none.
func (n *NFT) Lines(t *NFTTable, chain string) (lines []NFTLine, err error) {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	r := n.c.requests()
	r.begin(nftMsg(unix.NFT_MSG_GETRULE), unix.NLM_F_DUMP, nfgenmsg(t.Family)...)
	named(unix.NFTA_RULE_TABLE, t, unix.NFTA_RULE_CHAIN, chain)(r)
	err = n.c.dump(r, func(body []byte) {
		if len(body) < 4 || text(attr(body[4:], unix.NFTA_RULE_CHAIN)) != chain {
			return
		}
		var l NFTLine
		if h := attr(body[4:], unix.NFTA_RULE_HANDLE); len(h) == 8 {
			l.Handle = binary.BigEndian.Uint64(h)
		}
		attrs(attr(body[4:], unix.NFTA_RULE_EXPRESSIONS), func(_ uint16, e []byte) {
			if text(attr(e, unix.NFTA_EXPR_NAME)) == "immediate" {
				l.Jump = text(attr(e, unix.NFTA_EXPR_DATA, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN))
			}
		})
		lines = append(lines, l)
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("list chain %v %s: %w", t, chain, err)
	}
	return lines, nil
}

// DeleteRule deletes a rule by its handle.
func (b *NFTBatch) DeleteRule(t *NFTTable, chain string, handle uint64) {
	b.op("delete", unix.NFT_MSG_DELRULE, 0, t, fmt.Sprintf("rule %v %s handle %d", t, chain, handle), func(r *requests) {
		named(unix.NFTA_RULE_TABLE, t, unix.NFTA_RULE_CHAIN, chain)(r)
		r.attr(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle)...)
	})
}

// DeleteChain deletes a chain with its rules. One that rules still lead to fails the transaction with EBUSY.
func (b *NFTBatch) DeleteChain(t *NFTTable, chain string) {
	b.op("delete", unix.NFT_MSG_DELCHAIN, 0, t, "chain "+t.String()+" "+chain, named(unix.NFTA_CHAIN_TABLE, t, unix.NFTA_CHAIN_NAME, chain))
}

// DeleteSet deletes a set with its elements. One that rules still look something up in fails the transaction with EBUSY.
func (b *NFTBatch) DeleteSet(s *NFTSet) {
	b.op("delete", unix.NFT_MSG_DELSET, 0, s.Table, "set "+s.Table.String()+" "+s.Name, named(unix.NFTA_SET_TABLE, s.Table, unix.NFTA_SET_NAME, s.Name))
}
