package kernel

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A BaseChain is a chain that the kernel itself calls, whoever made it.
type BaseChain struct {
	Family   byte // unix.NFPROTO_INET, …
	Table    string
	Name     string
	Type     string // filter, nat, route
	Hook     uint32 // unix.NF_INET_FORWARD, …
	Priority int32
	Drops    bool // what no rule decides about is dropped
	Rules    int
	Device   string // of a chain at a device: the links, with spaces between
}

// String is "inet firewalld filter_FORWARD", as nft(8) names it.
func (c BaseChain) String() string {
	return familyName(c.Family) + " " + c.Table + " " + c.Name
}

// Tables are all tables of all families, by family and name alone. A kernel without nf_tables has none.
func (n *NFT) Tables() (all []*NFTTable, err error) {
	err = n.dumpAll(unix.NFT_MSG_GETTABLE, func(family byte, body []byte) {
		all = append(all, &NFTTable{Family: family, Name: text(Attr(body, unix.NFTA_TABLE_NAME))})
	})
	if unsupported(err) {
		return nil, nil
	}
	return all, err
}

// BaseChains reads the base chains of all tables of all families. A kernel without nf_tables has none.
func (n *NFT) BaseChains() (all []BaseChain, err error) {
	err = n.dumpAll(unix.NFT_MSG_GETCHAIN, func(family byte, body []byte) {
		hook := Attr(body, unix.NFTA_CHAIN_HOOK)
		if hook == nil {
			return
		}
		all = append(all, BaseChain{
			Family:   family,
			Table:    text(Attr(body, unix.NFTA_CHAIN_TABLE)),
			Name:     text(Attr(body, unix.NFTA_CHAIN_NAME)),
			Type:     text(Attr(body, unix.NFTA_CHAIN_TYPE)),
			Device:   hookDevices(hook),
			Hook:     Attr32(body, unix.NFTA_CHAIN_HOOK, unix.NFTA_HOOK_HOOKNUM),
			Priority: int32(Attr32(body, unix.NFTA_CHAIN_HOOK, unix.NFTA_HOOK_PRIORITY)),
			Drops:    dropPolicy(body),
			Rules:    int(Attr32(body, unix.NFTA_CHAIN_USE)), // nothing else can refer to a base chain
		})
	})
	if unsupported(err) {
		return nil, nil
	}
	return all, err
}

// fingerprint writes what ForeignFingerprint sees of nf_tables.
func (n *NFT) fingerprint(h io.Writer, skip []string) error {
	err := n.dumpAll(unix.NFT_MSG_GETTABLE, func(family byte, body []byte) {
		t := (&NFTTable{Family: family, Name: text(Attr(body, unix.NFTA_TABLE_NAME))}).String()
		if slices.Contains(skip, t) {
			return
		}
		fmt.Fprintln(h, t, Attr(body, nftaTableHandle), Attr32(body, unix.NFTA_TABLE_USE),
			Attr32(body, unix.NFTA_TABLE_FLAGS))
	})
	if err != nil && !unsupported(err) {
		return err
	}
	var qs []*question
	for _, family := range []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		qs = append(qs, &question{op: unix.NFT_MSG_GETCHAIN, family: family,
			fill: named(unix.NFTA_CHAIN_TABLE, &NFTTable{Name: "filter"}, unix.NFTA_CHAIN_NAME, "FORWARD"),
			answer: func(body []byte) {
				fmt.Fprintln(h, family, Attr32(body[4:], unix.NFTA_CHAIN_POLICY), Attr32(body[4:], unix.NFTA_CHAIN_USE))
			}})
	}
	if err := n.ask(qs); err != nil && !unsupported(err) {
		return err
	}
	return nil
}

// DropPolicy reports whether a chain has the policy drop, and whether it exists.
func (n *NFT) DropPolicy(t *NFTTable, chain string) (drops, there bool, err error) {
	q := t.chainQuestion(chain)
	q.answer = func(body []byte) { drops = dropPolicy(body[4:]) }
	err = n.ask([]*question{q})
	return drops, q.found, err
}

// Elements counts the elements of every set and map there is, whoever made them, but for those with a comment that
// says that they are no attachment's.
func (n *NFT) Elements() (count int, err error) {
	var sets []*NFTSet
	err = n.dumpAll(unix.NFT_MSG_GETSET, func(family byte, body []byte) {
		t := &NFTTable{Family: family, Name: text(Attr(body, unix.NFTA_SET_TABLE))}
		sets = append(sets, &NFTSet{Table: t, Name: text(Attr(body, unix.NFTA_SET_NAME))})
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

// hookDevices are the links that a chain is at.
func hookDevices(hook []byte) string {
	const devices = 4 // NFTA_HOOK_DEVS
	names := []string{}
	if one := text(Attr(hook, unix.NFTA_HOOK_DEV)); one != "" {
		names = append(names, one)
	} else {
		EachAttr(Attr(hook, devices), func(_ uint16, name []byte) { names = append(names, text(name)) })
	}
	return strings.Join(names, " ")
}

// ofNetwork reports whether a comment has the tag of an owner without a container: a network itself.
func ofNetwork(comment string) bool {
	for rest := comment; rest != ""; _, rest, _ = strings.Cut(rest, " ") {
		if _, _, text, ok := ParseTag(rest); ok {
			_, text, _ = strings.Cut(text, "/")
			return strings.HasPrefix(text, "/")
		}
	}
	return false
}

// dumpAll dumps the objects of one kind in all families.
func (n *NFT) dumpAll(op uint16, each func(family byte, body []byte)) error {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	r := n.c.requests()
	r.begin(nftMsg(op), unix.NLM_F_DUMP, nfgenmsg(unix.NFPROTO_UNSPEC)...)
	err := n.c.dump(r, func(body []byte) {
		if len(body) >= 4 {
			each(body[0], body[4:])
		}
	})
	if err != nil {
		return fmt.Errorf("list nf_tables: %w", err)
	}
	return nil
}
