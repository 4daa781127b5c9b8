package nft

import (
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// Uses are all chains of a table: how many rules each has and how many lead to it, together.
func (n *Conn) Uses(t *Table) (uses map[string]int, err error) {
	uses = map[string]int{}
	err = n.dumpAll(unix.NFT_MSG_GETCHAIN, func(family byte, body []byte) {
		if family == t.Family && netlink.Text(netlink.Attr(body, unix.NFTA_CHAIN_TABLE)) == t.Name {
			uses[netlink.Text(netlink.Attr(body, unix.NFTA_CHAIN_NAME))] = int(netlink.Attr32(body, unix.NFTA_CHAIN_USE))
		}
	})
	return uses, err
}

// SetNames are the names of all sets and maps of a table.
func (n *Conn) SetNames(t *Table) (names []string, err error) {
	err = n.dumpAll(unix.NFT_MSG_GETSET, func(family byte, body []byte) {
		if family == t.Family && netlink.Text(netlink.Attr(body, unix.NFTA_SET_TABLE)) == t.Name {
			names = append(names, netlink.Text(netlink.Attr(body, unix.NFTA_SET_NAME)))
		}
	})
	return names, err
}
