package nft

import (
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A Table is a table with its static sets and chains.
type Table struct {
	Family byte // unix.NFPROTO_INET, …
	Name   string
	Ends   bool // its sets are made so that elements can end, see Ending and CanEnd
	Sets   []*Set
	Chains []*Chain
}

// String returns the family and name, such as "inet fairlead".
func (t *Table) String() string {
	return familyName(t.Family) + " " + t.Name
}

// Family returns the table family for IPv6 or IPv4.
func Family(v6 bool) byte {
	if v6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// familyName is what nft(8) calls a family.
func familyName(family byte) string {
	switch family {
	case unix.NFPROTO_IPV4:
		return "ip"
	case unix.NFPROTO_IPV6:
		return "ip6"
	case unix.NFPROTO_INET:
		return "inet"
	case unix.NFPROTO_BRIDGE:
		return "bridge"
	case unix.NFPROTO_ARP:
		return "arp"
	case unix.NFPROTO_NETDEV:
		return "netdev"
	}
	return fmt.Sprintf("family %d", family)
}

// A Chain is a chain with its rules, in order. With a Type, it is a base chain.
type Chain struct {
	Name     string
	Type     string // filter, nat
	Hook     uint32
	Priority int32
	Rules    []*Rule
	Open     bool // others write the rules; it is only made
}

// Accept is the verdict NF_ACCEPT.
const Accept = 1

// Numbers of linux/netfilter/nf_tables.h that x/sys lacks: of tables, and of ranges in concatenations.
const (
	tableHandle   = 4
	setDescConcat = 2
	setFieldLen   = 1
	setElemKeyEnd = 10
	setConcat     = 0x80
)

// Supported returns nil if the kernel has nf_tables, and the kernel's error otherwise.
func (n *Conn) Supported(t *Table) error {
	return n.ask(t.question(nil))
}

func (t *Table) question(answer func(table []byte)) *question {
	return &question{op: unix.NFT_MSG_GETTABLE, family: t.Family, answer: answer, fill: t.put}
}

// Handle returns the handle of a table. A table that was deleted and made again under the same name has another
// handle.
func (n *Conn) Handle(t *Table) (handle uint64, there bool, err error) {
	q := t.question(func(table []byte) { handle = netlink.Attr64(table, tableHandle) })
	err = n.ask(q)
	return handle, q.found, err
}

// ID returns a text that identifies a table, from its name and those of its chains and sets. Shared chains and sets
// are named after their contents.
func (t *Table) ID() string {
	names := []string{t.String()}
	for _, c := range t.Chains {
		names = append(names, c.Name)
	}
	for _, s := range t.Sets {
		names = append(names, s.Name)
	}
	return strings.Join(names, " ")
}

// A NoTableError means that a table does not exist.
type NoTableError struct{ Table string }

func (e *NoTableError) Error() string { return "nft table " + e.Table + " is missing" }
