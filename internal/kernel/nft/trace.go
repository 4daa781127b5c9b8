package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A Tracer follows packets through nf_tables in one namespace. It adds tables that mark the packets. The kernel
// deletes these tables when the Tracer's socket is closed for any reason (Linux 5.12). On an older kernel, the next
// Tracer deletes tables that remain.
type Tracer struct {
	nft    *Conn
	f      *os.File
	buf    []byte
	tables []*Table
}

// A Traced selects the packets that a Tracer follows: of TCP, the first packet of a connection; of ICMP, echo
// requests.
type Traced struct {
	Src, Dst         netip.Addr // Src may be invalid
	Proto            byte
	SrcPort, DstPort uint16 // 0 is any
}

// A Step is one thing that nf_tables did with a packet.
type Step struct {
	Family       byte
	Table, Chain string
	Handle       uint64 // of the rule; zero where it is the policy
	Verdict      int32  // NF_DROP, NF_ACCEPT, unix.NFT_CONTINUE, …

	// Of the first step in each base chain:
	Src, Dst netip.Addr
	Number   uint32 // what the packet is known by: sequence number of TCP and ICMP, length of UDP
}

const (
	tracePrefix = "fairlead_trace_"
	traceFirst  = -450 // before raw
	traceLast   = 450  // behind helpers of conntrack
	msgTrace    = 17   // NFT_MSG_TRACE
	tracePolicy = 1    // NFT_TRACETYPE_POLICY
)

// Trace starts to follow packets.
func Trace(ns *kernel.NS, packets []Traced) (*Tracer, error) {
	nft, err := Open(ns)
	if err != nil {
		return nil, err
	}
	t := &Tracer{nft: nft, buf: make([]byte, 1<<16)}
	if t.f, err = ns.Events(unix.NETLINK_NETFILTER, 4<<20, unix.NFNLGRP_NFTRACE); err != nil {
		return nil, err
	}
	if err := t.install(packets); err != nil {
		t.Close()
		return nil, fmt.Errorf("trace packets: %w", err)
	}
	return t, nil
}

// install makes the tables. Those of an earlier trace that has ended go.
func (t *Tracer) install(packets []Traced) error {
	var b Batch
	err := t.nft.dumpAll(unix.NFT_MSG_GETTABLE, func(family byte, body []byte) {
		table := tableOf(family, body)
		isOurs := strings.HasPrefix(table.Name, tracePrefix)
		if isOurs && netlink.Attr32(body, unix.NFTA_TABLE_FLAGS)&tableOwner == 0 {
			b.DeleteTable(table)
		}
	})
	if err == nil {
		err = t.nft.Commit(&b)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	for _, family := range []byte{unix.NFPROTO_INET, unix.NFPROTO_BRIDGE} {
		table := &Table{Family: family, Name: fmt.Sprint(tracePrefix, os.Getpid())}
		err := t.nft.Commit(table.tracing(packets, tableOwner))
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
			err = t.nft.Commit(table.tracing(packets))
		}
		if family == unix.NFPROTO_BRIDGE && Unsupported(err) || errors.Is(err, unix.ENOENT) {
			continue // a kernel without filters of bridges
		}
		if err != nil {
			return err
		}
		t.tables = append(t.tables, table)
	}
	return nil
}

// tracing makes a table whose first chains mark packets, and whose last ones show that they came so far.
func (t *Table) tracing(packets []Traced, flags ...uint32) *Batch {
	var b Batch
	b.table("add", unix.NLM_F_CREATE, t, flags...)
	for name, hook := range map[string]uint32{"prerouting": unix.NF_INET_PRE_ROUTING,
		"output": unix.NF_INET_LOCAL_OUT} {
		b.AddChain(t, &Chain{Name: name, Type: "filter", Hook: hook, Priority: traceFirst})
		for _, p := range packets {
			b.AddRule(t, name, p.rule())
		}
	}
	for name, hook := range map[string]uint32{"input": unix.NF_INET_LOCAL_IN,
		"postrouting": unix.NF_INET_POST_ROUTING} {
		b.AddChain(t, &Chain{Name: name, Type: "filter", Hook: hook, Priority: traceLast})
	}
	return &b
}

// rule is "ether type ip ip saddr … meta nftrace set 1".
func (p Traced) rule() *Rule {
	const syn, ack = 0x02, 0x10
	etherType := uint16(unix.ETH_P_IP)
	if p.Dst.Is6() {
		etherType = unix.ETH_P_IPV6
	}
	r := NewRule("fairlead trace").Protocol(etherType)
	if p.Src.IsValid() {
		r.Prefix(false, false, netip.PrefixFrom(p.Src, p.Src.BitLen()))
	}
	r.Prefix(true, false, netip.PrefixFrom(p.Dst, p.Dst.BitLen())).Proto(false, p.Proto)
	if p.SrcPort != 0 {
		r.Port(false, false, p.SrcPort, p.SrcPort)
	}
	if p.DstPort != 0 {
		r.Port(true, false, p.DstPort, p.DstPort)
	}
	icmpType := Behind(0, 1)
	switch p.Proto {
	case kernel.TCP:
		r.Is(Behind(13, 1).masked([]byte{syn | ack}), []byte{syn})
	case kernel.ICMP:
		r.Is(icmpType, []byte{8})
	case kernel.ICMPv6:
		r.Is(icmpType, []byte{128})
	}
	return r.constant(reg(0), []byte{1}).set(unix.NFT_META_NFTRACE)
}

// Own reports whether a step was in one of the Tracer's own tables, at the first or the last hook.
func (t *Tracer) Own(s Step) bool { return strings.HasPrefix(s.Table, tracePrefix) }

// Close deletes the Tracer's tables.
func (t *Tracer) Close() error {
	var b Batch
	for _, table := range t.tables {
		b.DeleteTable(table)
	}
	t.tables = nil
	return errors.Join(t.nft.Commit(&b), t.f.Close())
}

// Steps returns the steps that arrive, until no step arrives for the duration quiet.
func (t *Tracer) Steps(quiet time.Duration) (all []Step, err error) {
	for {
		if err := t.f.SetReadDeadline(time.Now().Add(quiet)); err != nil {
			return all, err
		}
		n, err := t.f.Read(t.buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return all, nil
		case err != nil:
			return all, fmt.Errorf("listen to nf_tables' trace: %w", err)
		}
		for m := range netlink.Messages(t.buf[:n]) {
			if m.Type == msgType(msgTrace) && len(m.Body) >= 4 {
				all = append(all, stepOf(m.Body))
			}
		}
	}
}

func stepOf(body []byte) Step {
	b := body[4:]
	s := Step{Family: body[0], Table: netlink.AttrText(b, unix.NFTA_TRACE_TABLE),
		Chain: netlink.AttrText(b, unix.NFTA_TRACE_CHAIN), Handle: netlink.Attr64(b, unix.NFTA_TRACE_RULE_HANDLE)}
	if netlink.Attr32(b, unix.NFTA_TRACE_TYPE) == tracePolicy {
		s.Verdict = int32(netlink.Attr32(b, unix.NFTA_TRACE_POLICY))
	} else {
		s.Verdict = int32(netlink.Attr32(b, unix.NFTA_TRACE_VERDICT, unix.NFTA_VERDICT_CODE))
	}
	if s.Verdict > 0xff { // with the error that a drop answers
		s.Verdict &= 0xff
	}
	ip, th := netlink.Attr(b, unix.NFTA_TRACE_NETWORK_HEADER), netlink.Attr(b, unix.NFTA_TRACE_TRANSPORT_HEADER)
	v6 := len(ip) > 0 && ip[0]>>4 == 6
	protoAt := 9
	if v6 {
		protoAt = 6
	}
	src, size := AddressField(v6, false)
	dst := src + size
	if len(ip) < int(dst+size) {
		return s
	}
	s.Src, _ = netip.AddrFromSlice(ip[src:dst])
	s.Dst, _ = netip.AddrFromSlice(ip[dst : dst+size])
	switch {
	case len(th) < 8:
	case ip[protoAt] == kernel.TCP:
		s.Number = binary.BigEndian.Uint32(th[4:])
	case ip[protoAt] == kernel.UDP:
		s.Number = uint32(netlink.Net16(th[4:]))
	default:
		s.Number = uint32(netlink.Net16(th[6:]))
	}
	return s
}
