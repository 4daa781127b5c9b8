package nft

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A Watcher receives the changes of a namespace's nf_tables, whichever program makes them.
type Watcher struct {
	f   *os.File
	buf []byte
	own uint32
}

// A Change is a change that a Watcher received. The zero Change means that some changes were lost.
type Change struct {
	Op     uint16 // unix.NFT_MSG_NEWTABLE, NFT_MSG_DELRULE, …
	Family byte
	Table  string
	Chain  string // of a chain or a rule
}

// Watch starts to listen. It leaves out changes by the namespace's own Conn.
func Watch(ns *kernel.NS) (*Watcher, error) {
	n, err := Open(ns)
	if err != nil {
		return nil, err
	}
	// A socket has its number from the first message on.
	if err := n.Supported(&Table{Family: unix.NFPROTO_INET, Name: "filter"}); err != nil {
		return nil, err
	}
	w := &Watcher{buf: make([]byte, 1<<16)}
	if addr, err := unix.Getsockname(n.c.FD); err == nil {
		if nl, ok := addr.(*unix.SockaddrNetlink); ok {
			w.own = nl.Pid
		}
	}
	w.f, err = ns.Events(unix.NETLINK_NETFILTER, 4<<20, unix.NFNLGRP_NFTABLES)
	return w, err
}

// Close closes the socket.
func (w *Watcher) Close() { w.f.Close() }

// Next waits for changes, at most for limit; 0 means for ever. It returns none if the limit has passed.
func (w *Watcher) Next(ctx context.Context, limit time.Duration) (changes []Change, err error) {
	deadline := time.Time{}
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	if err := w.f.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { w.f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		n, err := w.f.Read(w.buf)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, nil
		case errors.Is(err, unix.ENOBUFS):
			return []Change{{}}, nil
		case err != nil:
			return nil, err
		}
		for m := range netlink.Messages(w.buf[:n]) {
			if m.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || m.Port == w.own && w.own != 0 || len(m.Body) < 4 {
				continue
			}
			if c, ok := changeOf(m.Type&0xff, m.Body); ok {
				changes = append(changes, c)
			}
		}
		if len(changes) > 0 {
			return changes, nil
		}
	}
}

func changeOf(op uint16, body []byte) (c Change, ok bool) {
	b := body[4:]
	c = Change{Op: op, Family: body[0], Table: netlink.AttrText(b, attrTable)}
	switch op {
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		c.Chain = netlink.AttrText(b, unix.NFTA_CHAIN_NAME)
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		c.Chain = netlink.AttrText(b, unix.NFTA_RULE_CHAIN)
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE, unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET:
	default: // elements, counters: attachments come and go
		return c, false
	}
	return c, true
}
