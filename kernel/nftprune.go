package kernel

import "golang.org/x/sys/unix"

// Uses are all chains of a table: how many rules each has and how many lead to it, together.
func (n *NFT) Uses(t *NFTTable) (uses map[string]int, err error) {
	uses = map[string]int{}
	err = n.dumpAll(unix.NFT_MSG_GETCHAIN, func(family byte, body []byte) {
		if family == t.Family && text(Attr(body, unix.NFTA_CHAIN_TABLE)) == t.Name {
			uses[text(Attr(body, unix.NFTA_CHAIN_NAME))] = int(Attr32(body, unix.NFTA_CHAIN_USE))
		}
	})
	return uses, err
}

// SetNames are the names of all sets and maps of a table.
func (n *NFT) SetNames(t *NFTTable) (names []string, err error) {
	err = n.dumpAll(unix.NFT_MSG_GETSET, func(family byte, body []byte) {
		if family == t.Family && text(Attr(body, unix.NFTA_SET_TABLE)) == t.Name {
			names = append(names, text(Attr(body, unix.NFTA_SET_NAME)))
		}
	})
	return names, err
}

// DeleteChain deletes a chain with its rules. One that rules still lead to fails the transaction with EBUSY.
func (b *NFTBatch) DeleteChain(t *NFTTable, chain string) {
	b.op("delete", unix.NFT_MSG_DELCHAIN, 0, t, "chain "+t.String()+" "+chain,
		named(unix.NFTA_CHAIN_TABLE, t, unix.NFTA_CHAIN_NAME, chain))
}

// DeleteSet deletes a set with its elements. One that rules still look something up in fails the transaction with
// EBUSY.
func (b *NFTBatch) DeleteSet(s *NFTSet) {
	b.op("delete", unix.NFT_MSG_DELSET, 0, s.Table, "set "+s.Table.String()+" "+s.Name,
		named(unix.NFTA_SET_TABLE, s.Table, unix.NFTA_SET_NAME, s.Name))
}
