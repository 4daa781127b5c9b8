package nft

import (
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// Uses returns, for each chain of a table, the number of its rules plus the number of rules that jump to it.
func (n *Conn) Uses(t *Table) (uses map[string]int, err error) {
	uses = map[string]int{}
	err = n.dumpAll(unix.NFT_MSG_GETCHAIN, func(family byte, body []byte) {
		if t.has(family, body) {
			name := netlink.AttrText(body, unix.NFTA_CHAIN_NAME)
			uses[name] = int(netlink.Attr32(body, unix.NFTA_CHAIN_USE))
		}
	})
	return uses, err
}

// SetNames returns the names of all sets and maps of a table.
func (n *Conn) SetNames(t *Table) (names []string, err error) {
	err = n.dumpAll(unix.NFT_MSG_GETSET, func(family byte, body []byte) {
		if t.has(family, body) {
			names = append(names, netlink.AttrText(body, unix.NFTA_SET_NAME))
		}
	})
	return names, err
}

// tableOf is the table that an object is of, or that is one itself.
func tableOf(family byte, b []byte) *Table {
	return &Table{Family: family, Name: netlink.AttrText(b, attrTable)}
}

func (t *Table) has(family byte, b []byte) bool {
	return family == t.Family && netlink.AttrText(b, attrTable) == t.Name
}
