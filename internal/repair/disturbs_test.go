package repair

import (
	"testing"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"golang.org/x/sys/unix"
)

// A repair follows the removal of rules, and a reload of rules that decide beside them. It follows neither what a
// DEL removes nor what an administrator does with his own chain.
func TestDisturbs(t *testing.T) {
	change := func(op uint16, table, chain string) nft.Change { return nft.Change{Op: op, Table: table, Chain: chain} }
	for _, c := range []nft.Change{
		{},
		change(unix.NFT_MSG_DELTABLE, "fairlead", ""), change(unix.NFT_MSG_DELCHAIN, "fairlead", "guard"),
		change(unix.NFT_MSG_DELRULE, "fairlead", "guard"), change(unix.NFT_MSG_DELSET, "fairlead", ""),
		change(unix.NFT_MSG_NEWTABLE, "filter", ""), change(unix.NFT_MSG_NEWRULE, "filter", "FORWARD"),
		change(unix.NFT_MSG_DELRULE, "filter", "CNI-FORWARD"),
		change(unix.NFT_MSG_NEWTABLE, "other", ""), change(unix.NFT_MSG_DELTABLE, "other", ""),
		change(unix.NFT_MSG_DELCHAIN, "firewalld", "filter_FORWARD"),
	} {
		if !disturbs(c) {
			t.Errorf("%+v is not followed", c)
		}
	}
	for _, c := range []nft.Change{
		change(unix.NFT_MSG_DELSETELEM, "fairlead", ""), change(unix.NFT_MSG_NEWRULE, "fairlead", "guard"),
		change(unix.NFT_MSG_DELRULE, "fairlead", "user"),
		change(unix.NFT_MSG_NEWRULE, "filter", "INPUT"), change(unix.NFT_MSG_DELRULE, "filter", "INPUT"),
		change(unix.NFT_MSG_NEWRULE, "filter", "CNI-FORWARD"), change(unix.NFT_MSG_DELRULE, "filter", "CNI-"),
		change(unix.NFT_MSG_DELRULE, "firewalld", "filter_FORWARD"), change(unix.NFT_MSG_DELCHAIN, "other", "x"),
	} {
		if disturbs(c) {
			t.Errorf("%+v is followed", c)
		}
	}
}
