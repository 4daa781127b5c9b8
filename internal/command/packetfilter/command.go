package packetfilter

import (
	"cmp"
	"fmt"

	"golang.org/x/sys/unix"
)

// Iptables is the program of iptables that changes the table of the verdict, with the table.
func (v Verdict) Iptables() string {
	tool := "iptables"
	if v.Packet.is6() || v.Chain.Family == unix.NFPROTO_IPV6 {
		tool = "ip6tables"
	}
	if v.Legacy {
		tool += "-legacy"
	}
	if v.Chain.Table != "filter" {
		tool += " -t " + v.Chain.Table
	}
	return tool
}

// Delete is the command that deletes the rule of the verdict. It is empty if a policy decided.
func (v Verdict) Delete() string {
	chain := cmp.Or(v.Jumped, v.Chain.Name)
	switch {
	case v.Number == 0:
		return ""
	case v.Legacy:
		return fmt.Sprintf("%s -D %s %d", v.Iptables(), chain, v.Number)
	}
	return fmt.Sprintf("nft delete rule %s %s handle %d", v.Chain.TableName(), chain, v.Number)
}
