package nft

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// Tables returns the family and name of all tables. On a kernel without nf_tables there are none.
func (n *Conn) Tables() (all []*Table, err error) {
	err = n.dumpAll(unix.NFT_MSG_GETTABLE, func(family byte, body []byte) {
		all = append(all, tableOf(family, body))
	})
	if Unsupported(err) {
		return nil, nil
	}
	return all, err
}

// Fingerprint writes the part of foreign.Fingerprint that concerns nf_tables to h.
func (n *Conn) Fingerprint(h io.Writer, skip []string) error {
	err := n.dumpAll(unix.NFT_MSG_GETTABLE, func(family byte, body []byte) {
		t := tableOf(family, body).String()
		if slices.Contains(skip, t) {
			return
		}
		fmt.Fprintln(h, t, netlink.Attr(body, tableHandle), netlink.Attr32(body, unix.NFTA_TABLE_USE),
			netlink.Attr32(body, unix.NFTA_TABLE_FLAGS))
	})
	if err != nil && !Unsupported(err) {
		return err
	}
	var qs []*question
	for _, family := range []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		filter := &Table{Family: family, Name: "filter"}
		qs = append(qs, filter.chainQuestion("FORWARD", func(chain []byte) {
			fmt.Fprintln(h, family, netlink.Attr32(chain, unix.NFTA_CHAIN_POLICY),
				netlink.Attr32(chain, unix.NFTA_CHAIN_USE))
		}))
	}
	if err := n.ask(qs...); err != nil && !Unsupported(err) {
		return err
	}
	return nil
}

// Elements counts the elements of all sets and maps of all programs. It leaves out elements whose comment says that
// they belong to a network instead of an attachment.
func (n *Conn) Elements() (count int, err error) {
	var sets []*Set
	err = n.dumpAll(unix.NFT_MSG_GETSET, func(family byte, body []byte) {
		sets = append(sets, &Set{Table: tableOf(family, body), Name: netlink.AttrText(body, unix.NFTA_SET_NAME)})
	})
	for _, s := range sets {
		all, lerr := n.List(s)
		err = errors.Join(err, lerr)
		for _, e := range all {
			if !ofNetwork(e.Comment) {
				count++
			}
		}
	}
	return count, err
}

// ofNetwork reports whether a comment has the tag of an owner without a container: a network itself.
func ofNetwork(comment string) bool {
	for rest := comment; rest != ""; _, rest, _ = strings.Cut(rest, " ") {
		if _, _, text, ok := identity.ParseTag(rest); ok {
			_, text, _ = strings.Cut(text, "/")
			return strings.HasPrefix(text, "/")
		}
	}
	return false
}
