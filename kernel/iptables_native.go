package kernel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// legacyTables are the tables that ip_tables has in the namespace. Asking the kernel for one in any other
// way would make it.
func (ns *NS) legacyTables(v6 bool) (names []string, err error) {
	file := "/proc/thread-self/net/ip_tables_names"
	if v6 {
		file = "/proc/thread-self/net/ip6_tables_names"
	}
	err = ns.Do(func() error {
		fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		// ip_tables is not loaded, or this kernel does not have it. In a user namespace the file is the
		// first root's alone, although tables can be made there: they are taken for none.
		if is(err, unix.ENOENT, unix.EACCES, unix.EPERM) {
			return nil
		}
		if err != nil {
			return &os.PathError{Op: "open", Path: file, Err: err}
		}
		defer unix.Close(fd)
		var buf [1024]byte // there are five tables
		n, err := unix.Read(fd, buf[:])
		names = strings.Fields(string(buf[:max(n, 0)]))
		return err
	})
	return names, err
}

// Numbers of ip_tables. The first user chain's entry is found by its target, whose name is ERROR.
const (
	iptGetInfo    = 64
	iptGetEntries = 65
)

// A LegacyInfo says where the chains of a table of ip_tables begin among its entries, as struct ipt_getinfo. Hooks and
// Underflow are the offsets of the first entry and of the policy of a chain that the kernel itself calls, by the number
// of its hook (unix.NF_INET_FORWARD); only those of ValidHooks count.
type LegacyInfo struct {
	name             [32]byte
	ValidHooks       uint32
	Hooks, Underflow [5]uint32
	entries, size    uint32
}

type iptEntries struct {
	name  [32]byte
	size  uint32
	table [0]uint64
}

// legacyChains are the chains that somebody made in a table of ip_tables. Reading them executes nothing.
func (ns *NS) legacyChains(v6 bool, table string) (chains []string, exists bool, err error) {
	_, b, err := ns.LegacyEntries(v6, table)
	if b == nil || err != nil {
		return nil, false, err
	}
	return legacyChainNames(b, entryOffsets(v6)), true, nil
}

// entryOffsets is where an entry has the offsets of its target and of the next entry.
func entryOffsets(v6 bool) int {
	if v6 {
		return 140
	}
	return 88
}

// LegacyEntries reads a table of ip_tables, one struct ipt_entry or ip6t_entry after another: nil if it does not exist.
func (ns *NS) LegacyEntries(v6 bool, table string) (info LegacyInfo, b []byte, err error) {
	names, err := ns.legacyTables(v6)
	if err != nil || !slices.Contains(names, table) {
		return info, nil, err
	}
	family, level := unix.AF_INET, unix.SOL_IP
	if v6 {
		family, level = unix.AF_INET6, unix.SOL_IPV6
	}
	var fd int
	if err := ns.Do(func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return os.NewSyscallError("socket", err)
	}); err != nil {
		return info, nil, err
	}
	defer unix.Close(fd)
	get := func(opt int, p unsafe.Pointer, size uint32) error {
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(opt), uintptr(p),
			uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			return errno
		}
		return nil
	}
	for range 8 { // the table may change between the two questions
		info = LegacyInfo{}
		copy(info.name[:31], table)
		if err := get(iptGetInfo, unsafe.Pointer(&info), uint32(unsafe.Sizeof(info))); err != nil {
			return info, nil, fmt.Errorf("read table %s of ip_tables: %w", table, err)
		}
		head := int(unsafe.Offsetof(iptEntries{}.table))
		buf := make([]uint64, (head+int(info.size)+7)/8)
		h := (*iptEntries)(unsafe.Pointer(&buf[0]))
		h.name, h.size = info.name, info.size
		err := get(iptGetEntries, unsafe.Pointer(&buf[0]), uint32(head)+info.size)
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return info, nil, fmt.Errorf("read table %s of ip_tables: %w", table, err)
		}
		return info, unsafe.Slice((*byte)(unsafe.Pointer(&buf[0])), head+int(info.size))[head:], nil
	}
	return info, nil, fmt.Errorf("read table %s of ip_tables: %w", table, unix.EAGAIN)
}

// HasChain reports whether the table has a chain whose name begins so. In nf_tables, whose chains are not looked
// through for it, a table that exists counts.
func (t *IPTables) HasChain(prefix string) (bool, error) {
	if t.Variant == IPTNFT {
		return t.exists()
	}
	chains, _, err := t.ns.legacyChains(t.V6, t.Table)
	return slices.ContainsFunc(chains, func(c string) bool { return strings.HasPrefix(c, prefix) }), err
}

// legacyChainNames walks the entries: each has the offsets of its target and of the next entry.
func legacyChainNames(b []byte, offsets int) (chains []string) {
	for len(b) >= offsets+4 {
		target, next := int(binary.NativeEndian.Uint16(b[offsets:])), int(binary.NativeEndian.Uint16(b[offsets+2:]))
		if next <= 0 || next > len(b) || target > next {
			return chains
		}
		// xt_entry_target is size, name of 29 bytes, revision; an error target has the chain's name behind that.
		if t := b[target:next]; len(t) >= 62 && text(t[2:31]) == "ERROR" {
			if name := text(t[32:62]); name != "ERROR" { // which is the end
				chains = append(chains, name)
			}
		}
		b = b[next:]
	}
	return chains
}

// List reads the rules of chains, in order: of nf_tables by netlink, without words, else by iptables-save.
func (t *IPTables) List(ctx context.Context, chains ...string) (rules []IPTRule, err error) {
	if t.Variant == IPTLegacy {
		if there, err := t.Chains(chains...); err != nil || !slices.Contains(there, true) {
			return nil, err
		}
		all, err := t.Save(ctx)
		for _, c := range chains {
			rules = append(rules, all[c]...)
		}
		return rules, err
	}
	n, err := t.ns.NFT()
	if err != nil {
		return nil, ignoreNoNFT(err)
	}
	for _, c := range chains {
		more, err := n.ChainRules(t.nft(), c, t.V6)
		if ignoreNoNFT(err) != nil {
			return nil, err
		}
		rules = append(rules, more...)
	}
	return rules, nil
}

// ChainRules reads the rules of a chain of nf_tables, without words; v6 says what its addresses are. A chain that
// does not exist has none.
func (n *NFT) ChainRules(t *NFTTable, chain string, v6 bool) (rules []IPTRule, err error) {
	err = n.eachRule(t, chain, func(body []byte) { rules = append(rules, parseNFTRule(chain, body, v6)) })
	return rules, err
}

// HasChain reports whether a chain exists. One whose name is longer than the kernel allows cannot, and to ask for
// it is an error there.
func (n *NFT) HasChain(t *NFTTable, chain string) (bool, error) {
	if len(chain) >= 256 { // NFT_CHAIN_MAXNAMELEN
		return false, nil
	}
	there, err := n.haveChains(t, []string{chain})
	return there[0], err
}

// haveChains tells which of these chains exist, in their order.
func (n *NFT) haveChains(t *NFTTable, names []string) (there []bool, err error) {
	var qs []*question
	for _, name := range names {
		qs = append(qs, t.chainQuestion(name))
	}
	err = n.ask(qs)
	for _, q := range qs {
		there = append(there, q.found)
	}
	return there, err
}

func builtinChain(name string) bool {
	return slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, name)
}

// parseNFTRule reads what iptables-nft writes, and the reference by nft(8): addresses, protocol and port as native
// comparisons, a comment as user data or as a match of xtables, a jump as a verdict.
func parseNFTRule(chain string, body []byte, v6 bool) IPTRule {
	r := nativeReader{rule: IPTRule{Chain: chain, Comment: RuleComment(Attr(body, unix.NFTA_RULE_USERDATA))}, v6: v6,
		bits: -1, loaded: map[uint32][]byte{}}
	if h := Attr(body, unix.NFTA_RULE_HANDLE); len(h) == 8 {
		r.rule.handle = binary.BigEndian.Uint64(h)
	}
	EachAttr(Attr(body, unix.NFTA_RULE_EXPRESSIONS), func(_ uint16, expr []byte) {
		r.read(text(Attr(expr, unix.NFTA_EXPR_NAME)), Attr(expr, unix.NFTA_EXPR_DATA))
	})
	return r.rule
}

// A nativeReader reads the expressions of a rule, one after the other.
type nativeReader struct {
	rule IPTRule
	v6   bool

	compare func(v []byte)    // with what was loaded last; nil: nothing that counts
	bits    int               // of what was loaded
	port    bool              // was loaded
	loaded  map[uint32][]byte // constants, by register
}

func (r *nativeReader) read(name string, data []byte) {
	switch name {
	case "meta":
		r.compare = nil
		if Attr32(data, unix.NFTA_META_KEY) == unix.NFT_META_L4PROTO {
			r.compare = func(v []byte) { r.rule.Proto = ProtoName(v[0]) }
		}
	case "payload":
		r.payload(data)
	case "bitwise":
		r.bits = 0
		for _, b := range Attr(data, unix.NFTA_BITWISE_MASK, unix.NFTA_DATA_VALUE) {
			for ; b&0x80 != 0; b <<= 1 {
				r.bits++
			}
		}
	case "cmp":
		v := Attr(data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)
		if _, size := address(r.v6, false); r.compare != nil && len(v) > 0 && len(v) <= int(size) &&
			Attr32(data, unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ {
			r.compare(v)
		}
		r.compare = nil
	case "range":
		from := Attr(data, unix.NFTA_RANGE_FROM_DATA, unix.NFTA_DATA_VALUE)
		to := Attr(data, unix.NFTA_RANGE_TO_DATA, unix.NFTA_DATA_VALUE)
		if r.port && len(from) == 2 && len(to) == 2 && Attr32(data, unix.NFTA_RANGE_OP) == unix.NFT_CMP_EQ {
			r.rule.Ports = [][2]uint16{{binary.BigEndian.Uint16(from), binary.BigEndian.Uint16(to)}}
		}
	case "match":
		r.rule.parseMatch(text(Attr(data, unix.NFTA_MATCH_NAME)), Attr(data, unix.NFTA_MATCH_INFO))
	case "target":
		r.rule.Jump = text(Attr(data, unix.NFTA_TARGET_NAME))
		if r.rule.Jump == "DNAT" {
			r.rule.To = parseDNAT(Attr(data, unix.NFTA_TARGET_INFO), Attr32(data, unix.NFTA_TARGET_REV), r.v6)
		}
	case "nat":
		if r.rule.Jump = "SNAT"; Attr32(data, unix.NFTA_NAT_TYPE) == unix.NFT_NAT_DNAT {
			r.rule.Jump = "DNAT"
			a, _ := netip.AddrFromSlice(r.loaded[Attr32(data, unix.NFTA_NAT_REG_ADDR_MIN)])
			var n uint16
			if p := r.loaded[Attr32(data, unix.NFTA_NAT_REG_PROTO_MIN)]; len(p) >= 2 {
				n = binary.BigEndian.Uint16(p)
			}
			r.rule.To = netip.AddrPortFrom(a, n)
		}
	case "masq":
		r.rule.Jump = "MASQUERADE"
	case "immediate":
		r.immediate(data)
	}
}

// payload loads a part of the packet.
func (r *nativeReader) payload(data []byte) {
	src, size := address(r.v6, false)
	dst, _ := address(r.v6, true)
	prefix := func(p *netip.Prefix) func([]byte) {
		return func(v []byte) {
			if a, ok := netip.AddrFromSlice(append(v[:len(v):len(v)], make([]byte, int(size)-len(v))...)); ok {
				*p = netip.PrefixFrom(a, r.bits)
			}
		}
	}
	n, offset := Attr32(data, unix.NFTA_PAYLOAD_LEN), Attr32(data, unix.NFTA_PAYLOAD_OFFSET)
	r.compare, r.bits, r.port = nil, int(8*n), false
	switch base := Attr32(data, unix.NFTA_PAYLOAD_BASE); {
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && n <= size && offset == src:
		r.compare = prefix(&r.rule.Src)
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && n <= size && offset == dst:
		r.compare = prefix(&r.rule.Dst)
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && n == 2 && offset == 2:
		r.port = true
		r.compare = func(v []byte) {
			if len(v) == 2 {
				n := binary.BigEndian.Uint16(v)
				r.rule.Ports = [][2]uint16{{n, n}}
			}
		}
	}
}

// immediate loads a constant, or is a verdict.
func (r *nativeReader) immediate(data []byte) {
	if v := Attr(data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VALUE); v != nil {
		r.loaded[Attr32(data, unix.NFTA_IMMEDIATE_DREG)] = v
		return
	}
	verdict := Attr(data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT)
	switch code := int32(Attr32(verdict, unix.NFTA_VERDICT_CODE)); code {
	case unix.NFT_JUMP, unix.NFT_GOTO:
		r.rule.Jump = text(Attr(verdict, unix.NFTA_VERDICT_CHAIN))
	case nfAccept:
		r.rule.Jump = "ACCEPT"
	case 0:
		r.rule.Jump = "DROP"
	case unix.NFT_RETURN:
		r.rule.Jump = "RETURN"
	}
}

// parseMatch reads what is wanted of a match of xtables: its structures are the kernel's.
func (r *IPTRule) parseMatch(name string, info []byte) {
	switch {
	case name == "comment":
		r.Comment = text(info)
	case name == "multiport" && len(info) >= 47 && info[0] == 1:
		r.Ports = Multiports(info)
	case (name == "tcp" || name == "udp") && len(info) >= 8:
		r.Ports = portsAsked(info[4:])
	case name == "sctp" && len(info) >= 4 && binary.NativeEndian.Uint16(info[2:]) != 0:
		// struct xt_sctp_info has the destination's ports first, and 0 where none were asked for
		r.Ports = portsAsked(info)
	}
}

// portsAsked are the first and the last port that info begins with, none where all match.
func portsAsked(info []byte) [][2]uint16 {
	first, last := binary.NativeEndian.Uint16(info), binary.NativeEndian.Uint16(info[2:])
	if first == 0 && last == 0xffff {
		return nil
	}
	return [][2]uint16{{first, last}}
}

// Multiports are the first and last ports of a match multiport: its flags, how many, 15 ports, 15 marks.
func Multiports(info []byte) (ports [][2]uint16) {
	count := min(int(info[1]), 15)
	for i := 0; i < count; i++ {
		first := binary.NativeEndian.Uint16(info[2+2*i:])
		last := first
		if info[32+i] != 0 && i+1 < count { // the next one is the end of a range
			i++
			last = binary.NativeEndian.Uint16(info[2+2*i:])
		}
		ports = append(ports, [2]uint16{first, last})
	}
	return ports
}

// parseDNAT reads where a DNAT target of xtables leads, of each of its revisions.
func parseDNAT(info []byte, revision uint32, v6 bool) netip.AddrPort {
	at, size, port := 4, 16, 36
	if revision == 0 && !v6 {
		at, size, port = 8, 4, 16
	} else if !v6 {
		size = 4
	}
	if len(info) < port+2 {
		return netip.AddrPort{}
	}
	a, _ := netip.AddrFromSlice(info[at : at+size])
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(info[port:]))
}

// eachRule dumps a chain's rules. A chain that does not exist has none.
func (n *NFT) eachRule(t *NFTTable, chain string, each func(body []byte)) error {
	if err := n.RawRules(t, chain, each); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// RawRules calls each with the attributes (NFTA_RULE_…) of each rule of a chain. Its error is unix.ENOENT if there is
// none.
func (n *NFT) RawRules(t *NFTTable, chain string, each func(body []byte)) error {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	r := n.c.requests()
	r.begin(nftMsg(unix.NFT_MSG_GETRULE), unix.NLM_F_DUMP, nfgenmsg(t.Family)...)
	named(unix.NFTA_RULE_TABLE, t, unix.NFTA_RULE_CHAIN, chain)(r)
	err := n.c.dump(r, func(body []byte) {
		// A kernel that does not know the filter tells of other chains, too.
		if len(body) > 4 && text(Attr(body[4:], unix.NFTA_RULE_CHAIN)) == chain &&
			text(Attr(body[4:], unix.NFTA_RULE_TABLE)) == t.Name {
			each(bytes.Clone(body[4:]))
		}
	})
	if err != nil {
		return fmt.Errorf("list chain %v %s: %w", t, chain, err)
	}
	return nil
}

// Remove deletes rules that List read, empties and deletes chains, all or nothing: by netlink from nf_tables, else by
// iptables-restore. The chains exist, and nothing but the rules jumps to them.
func (t *IPTables) Remove(ctx context.Context, rules []IPTRule, chains []string) error {
	if len(rules)+len(chains) == 0 {
		return nil
	}
	if t.Variant == IPTLegacy {
		var lines []string
		for _, c := range chains {
			lines = append(lines, ":"+quoteIPT(c)+" -") // which empties it
		}
		for _, r := range rules {
			if !slices.Contains(chains, r.Chain) {
				lines = append(lines, r.Delete())
			}
		}
		for _, c := range chains {
			lines = append(lines, "-X "+quoteIPT(c))
		}
		return t.Apply(ctx, lines...)
	}
	n, err := t.ns.NFT()
	if err != nil {
		return err
	}
	var b NFTBatch
	b.RemoveRules(t.nft(), rules)
	for _, c := range chains {
		b.RemoveChain(t.nft(), c)
	}
	return n.Commit(&b)
}

// RemoveRules deletes rules by their handles.
func (b *NFTBatch) RemoveRules(t *NFTTable, rules []IPTRule) {
	for _, rule := range rules {
		b.DeleteRule(t, rule.Chain, rule.handle)
	}
}

// DeleteRule deletes a rule by its handle.
func (b *NFTBatch) DeleteRule(t *NFTTable, chain string, handle uint64) {
	b.op("delete", unix.NFT_MSG_DELRULE, 0, t, fmt.Sprintf("rule %v %s handle %d", t, chain, handle),
		func(r *requests) {
			named(unix.NFTA_RULE_TABLE, t, unix.NFTA_RULE_CHAIN, chain)(r)
			r.attr(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle)...)
		})
}

// RemoveChain empties a chain and deletes it.
func (b *NFTBatch) RemoveChain(t *NFTTable, chain string) {
	b.op("flush", unix.NFT_MSG_DELRULE, 0, t, "chain "+t.String()+" "+chain,
		named(unix.NFTA_RULE_TABLE, t, unix.NFTA_RULE_CHAIN, chain))
	b.DeleteChain(t, chain)
}
