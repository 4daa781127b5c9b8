package nft

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A Rule collects the expressions of a rule. They use the order and the registers that nft(8) itself would use,
// because nft(8) recognizes only those when it prints a rule.
type Rule struct {
	comment string
	plain   bool // the comment is no more than what it was made with
	jumps   string
	code    netlink.Buffer // the expressions
}

// NewRule returns an empty rule with a comment that says what the rule is for.
func NewRule(comment string) *Rule {
	return &Rule{comment: comment, code: make(netlink.Buffer, 0, 240)} // which most rules have room in
}

// Comment returns the comment that the kernel stores: the text, and a hash of the expressions. The hash distinguishes
// the rule from one that was changed or that another version of this program made.
func (r *Rule) Comment() string {
	if r.plain {
		return r.comment
	}
	h := sha256.Sum256(r.code)
	return r.comment + " " + hex.EncodeToString(h[:4])
}

// Clone returns a copy of the rule that can be changed.
func (r *Rule) Clone() *Rule {
	c := *r
	c.code = slices.Clone(r.code)
	return &c
}

// Code returns a hash of the expressions. Rules with different expressions have different codes.
func (r *Rule) Code() string {
	h := sha256.Sum256(r.code)
	return hex.EncodeToString(h[:6])
}

// Family appends "meta nfproto ipv4" or "meta nfproto ipv6".
func (r *Rule) Family(v6 bool) *Rule { return r.Is(meta(unix.NFT_META_NFPROTO, 1), []byte{Family(v6)}) }

// Prefix appends "ip saddr p", "ip6 daddr != p" and so on, without the family.
func (r *Rule) Prefix(dst, not bool, p netip.Prefix) *Rule {
	return r.compare(not, AddressOf(p.Addr().Is6(), dst).prefix(p.Bits()), p.Masked().Addr().AsSlice())
}

// FromPrefix appends "ip saddr p" or "ip6 saddr p".
func (r *Rule) FromPrefix(p netip.Prefix) *Rule { return r.inPrefix(false, p) }

// TowardPrefix appends "ip daddr p" or "ip6 daddr p".
func (r *Rule) TowardPrefix(p netip.Prefix) *Rule { return r.inPrefix(true, p) }

func (r *Rule) inPrefix(dst bool, p netip.Prefix) *Rule {
	return r.Family(p.Addr().Is6()).Prefix(dst, false, p)
}

// A Side is the source of a packet with its incoming link, or its destination with its outgoing link.
type Side bool

// The sides of a packet.
const (
	Src Side = false
	Dst Side = true
)

// subnet is the address of a side without host bits, as the keys of set have it.
func (s Side) subnet(set *Set) Field { return AddressOf(set.v6(), bool(s)).prefix(set.Bits) }

// SubnetBy appends "ip saddr & mask . iifname @set", of either side of the packet for each, without the family.
func (r *Rule) SubnetBy(side, link Side, not bool, set *Set) *Rule {
	name := iifname()
	if link == Dst {
		name = oifname()
	}
	return r.FieldsIn(not, set, side.subnet(set), name)
}

// Subnets appends "ip saddr & mask . ip daddr & mask @set", of either side of the packet for each, without the family.
func (r *Rule) Subnets(a, b Side, set *Set) *Rule {
	return r.FieldsIn(false, set, a.subnet(set), b.subnet(set))
}

// Iifname appends `iifname "name"`; a name that ends in * stands for all that begin so.
func (r *Rule) Iifname(not bool, name string) *Rule {
	if begin, all := strings.CutSuffix(name, "*"); all {
		return r.compare(not, iifname(), []byte(begin))
	}
	return r.compare(not, iifname(), Key(name))
}

// Iifkind appends `iifkind "kind"`.
func (r *Rule) Iifkind(kind string) *Rule { return r.Is(meta(metaIifkind, 16), Key(kind)) }

// NotLo appends `iif != "lo"`: lo has the index 1 in every namespace.
func (r *Rule) NotLo() *Rule { return r.compare(true, meta(unix.NFT_META_IIF, 4), number(1)) }

// Mark appends "meta mark & mask value".
func (r *Rule) Mark(not bool, value, mask uint32) *Rule {
	mark := meta(unix.NFT_META_MARK, 4)
	if mask != 0xffffffff {
		mark = mark.masked(number(mask))
	}
	return r.compare(not, mark, number(value))
}

// Proto appends "meta l4proto proto".
func (r *Rule) Proto(not bool, proto byte) *Rule { return r.compare(not, l4proto(), []byte{proto}) }

// Port appends "th sport from-to", or dport, of whatever has ports.
func (r *Rule) Port(dst, not bool, from, to uint16) *Rule {
	port := Behind(0, 2)
	if dst {
		port = dport()
	}
	if from == to {
		return r.compare(not, port, Key(from))
	}
	return r.load(port).expr("range", func() {
		r.code.U32(unix.NFTA_RANGE_SREG, reg(0))
		r.code.U32(unix.NFTA_RANGE_OP, op(not)) // NFT_RANGE_EQ and _NEQ have the numbers of NFT_CMP_…
		putValue(&r.code, unix.NFTA_RANGE_FROM_DATA, Key(from))
		putValue(&r.code, unix.NFTA_RANGE_TO_DATA, Key(to))
	})
}

func dport() Field { return Behind(2, 2) }

// ToLocal appends "fib daddr type local".
func (r *Rule) ToLocal() *Rule {
	return r.fib(fibResultAddrType, fibDaddr).cmp(false, number(addrTypeLocal))
}

// NotToLocal appends "fib daddr type != local".
func (r *Rule) NotToLocal() *Rule {
	return r.fib(fibResultAddrType, fibDaddr).cmp(true, number(addrTypeLocal))
}

// Misrouted appends "fib saddr . iif oif missing": a packet to the source would leave by another link.
func (r *Rule) Misrouted() *Rule {
	return r.fib(unix.NFT_FIB_RESULT_OIF, fibSaddr|fibIif|fibPresent).cmp(false, make([]byte, 4))
}

// Translated appends "ct status dnat".
func (r *Rule) Translated() *Rule { return r.status(false, ctStatusDNAT) }

// Unconfirmed appends "ct status ! confirmed": of a connection that conntrack has no entry of yet.
func (r *Rule) Unconfirmed() *Rule { return r.status(true, ctStatusConfirmed) }

// Confirmed appends "ct status confirmed".
func (r *Rule) Confirmed() *Rule { return r.status(false, ctStatusConfirmed) }

// Expected appends "ct status expected": of a connection that a helper of another one has announced.
func (r *Rule) Expected() *Rule { return r.status(false, ctStatusExpected) }

func (r *Rule) status(not bool, bit uint32) *Rule {
	return r.has(not, conntrack(unix.NFT_CT_STATUS, 4), number(bit))
}

// Reply appends "ct state established ct direction reply".
func (r *Rule) Reply() *Rule { return r.inState(ctEstablished).direction(ctReply) }

// Related appends "ct state related".
func (r *Rule) Related() *Rule { return r.inState(ctRelated) }

// New appends "ct state new".
func (r *Rule) New() *Rule { return r.inState(ctNew) }

// NewOrRelated appends "ct state new,related".
func (r *Rule) NewOrRelated() *Rule { return r.inState(ctNew | ctRelated) }

func (r *Rule) inState(bits uint32) *Rule {
	return r.has(false, conntrack(unix.NFT_CT_STATE, 4), number(bits))
}

func (r *Rule) direction(d byte) *Rule {
	return r.Is(conntrack(unix.NFT_CT_DIRECTION, 1), []byte{d})
}

// In appends "iifname @set".
func (r *Rule) In(set *Set) *Rule { return r.FieldsIn(false, set, iifname()) }

// Out appends "oifname @set".
func (r *Rule) Out(set *Set) *Rule { return r.FieldsIn(false, set, oifname()) }

// Between appends "iifname . oifname @set".
func (r *Rule) Between(set *Set) *Rule { return r.FieldsIn(false, set, iifname(), oifname()) }

// SetMark appends "meta mark set meta mark | bits".
func (r *Rule) SetMark(bits uint32) *Rule { return r.changeMark(bits, bits) }

// ClearMark appends "meta mark set meta mark & ~bits".
func (r *Rule) ClearMark(bits uint32) *Rule { return r.changeMark(bits, 0) }

// changeMark gives bits of the mark the values that they have in to.
func (r *Rule) changeMark(bits, to uint32) *Rule {
	return r.load(meta(unix.NFT_META_MARK, 4)).bitwise(reg(0), number(^bits), number(to)).set(unix.NFT_META_MARK)
}

// Label appends "ct label bit", or "ct label ! bit". There are 128.
func (r *Rule) Label(not bool, bit int) *Rule {
	return r.has(not, conntrack(unix.NFT_CT_LABELS, 16), label(bit))
}

// SetLabel appends "ct label set bit". Others stay.
func (r *Rule) SetLabel(bit int) *Rule {
	return r.constant(reg(0), label(bit)).expr("ct", func() {
		r.code.U32(unix.NFTA_CT_KEY, unix.NFT_CT_LABELS)
		r.code.U32(unix.NFTA_CT_SREG, reg(0))
	})
}

// label has one bit set: the one of that number where bytes are in little-endian order, else another one.
func label(bit int) []byte {
	b := make([]byte, 16)
	b[bit/8] = 1 << (bit % 8)
	return b
}

// Protocol appends "meta protocol type", of a frame without its first VLAN tag.
func (r *Rule) Protocol(etherType uint16) *Rule {
	return r.Is(meta(unix.NFT_META_PROTOCOL, 2), Key(etherType))
}

// VLAN0 appends "@ll,116,12 0": of a frame that has a VLAN tag, that this is VLAN 0; or "@nh,4,12 0", of its
// second tag. Nothing before it may ask for the protocol, because nft(8) then ends with a failed assertion when it
// prints the rule.
func (r *Rule) VLAN0(second bool) *Rule {
	tag := frame(14, 2)
	if second {
		tag = network(0, 2)
	}
	return r.has(true, tag, Key(uint16(0x0fff)))
}

// A Claim is an address that the sender of a frame claims to have.
type Claim int

// The claims.
const (
	ClaimIP  Claim = iota // source address of a packet
	ClaimIP6              // the same
	ClaimARP              // sender of an ARP message
)

// Claims appends "ip saddr @addresses iifname . ip saddr != @pairs", without the family, for a claimed address.
func (r *Rule) Claims(c Claim, addresses, pairs *Set) *Rule {
	address := AddressOf(c == ClaimIP6, false)
	if c == ClaimARP {
		address.offset = 14
	}
	return r.FieldsIn(false, addresses, address).FieldsIn(true, pairs, iifname(), address)
}

// SourceIsTarget appends "ip6 hoplimit 255 icmpv6 type nd-neighbor-advert ip6 saddr set @th,64,128": an advertisement
// gets the address that it is about as its source. Receivers ignore those with another hop limit (RFC 4861, 7.1.2).
// Without it, nft(8) would load "ether type" from its own listing, and so miss frames with a tag of VLAN 0.
func (r *Rule) SourceIsTarget() *Rule {
	const advertisement = 136
	hopLimit, icmpType, target := network(7, 1), Behind(0, 1), Behind(8, 16)
	saddr := AddressOf(true, false)
	return r.Is(hopLimit, []byte{255}).Proto(false, unix.IPPROTO_ICMPV6).Is(icmpType, []byte{advertisement}).
		load(target).expr("payload", func() {
		r.code.U32(unix.NFTA_PAYLOAD_SREG, reg(0))
		r.code.U32(unix.NFTA_PAYLOAD_BASE, saddr.base)
		r.code.U32(unix.NFTA_PAYLOAD_OFFSET, saddr.offset)
		r.code.U32(unix.NFTA_PAYLOAD_LEN, saddr.size)
		r.code.U32(unix.NFTA_PAYLOAD_CSUM_FLAGS, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR)
	})
}

// Fragment appends "ip frag-off & 0x3fff != 0", or "exthdr frag exists", without the family.
func (r *Rule) Fragment(v6 bool) *Rule {
	if !v6 {
		return r.has(false, network(6, 2), Key(uint16(0x3fff)))
	}
	r.expr("exthdr", func() {
		r.code.U32(unix.NFTA_EXTHDR_DREG, reg(0))
		r.code.Attr(unix.NFTA_EXTHDR_TYPE, unix.IPPROTO_FRAGMENT)
		r.code.U32(unix.NFTA_EXTHDR_OFFSET, 0)
		r.code.U32(unix.NFTA_EXTHDR_LEN, 1)
		r.code.U32(unix.NFTA_EXTHDR_FLAGS, unix.NFT_EXTHDR_F_PRESENT)
	})
	return r.cmp(false, []byte{1})
}

// EndBehind appends "ct original ip saddr & mask . iifname @set", or "ct reply", of an end of the packet's connection,
// without the family.
func (r *Rule) EndBehind(reply bool, set *Set) *Rule {
	direction := byte(ctOriginal)
	if reply {
		direction = ctReply
	}
	saddr := conntrack(unix.NFT_CT_SRC_IP, 4, direction)
	if set.v6() {
		saddr = conntrack(unix.NFT_CT_SRC_IP6, 16, direction)
	}
	return r.FieldsIn(false, set, saddr.prefix(set.Bits), iifname())
}

// From appends "ip saddr @set".
func (r *Rule) From(set *Set) *Rule { return r.addressed(set, set.address(false)) }

// Toward appends "ip daddr @set".
func (r *Rule) Toward(set *Set) *Rule { return r.addressed(set, set.address(true)) }

// Pair appends "ip saddr . ip daddr @set".
func (r *Rule) Pair(set *Set) *Rule { return r.addressed(set, set.address(false), set.address(true)) }

// To appends "ip daddr . meta l4proto . th dport @set", without the daddr if the keys have none.
func (r *Rule) To(set *Set) *Rule {
	if len(set.Key) > 2 {
		return r.addressed(set, set.address(true), l4proto(), dport())
	}
	return r.addressed(set, l4proto(), dport())
}

// PublishedTo appends "ct direction original ip daddr . meta l4proto . ct original proto-dst @set": where a translated
// packet goes, and by which port it was asked for.
func (r *Rule) PublishedTo(set *Set) *Rule {
	asked := conntrack(unix.NFT_CT_PROTO_DST, 2, ctOriginal)
	return r.direction(ctOriginal).addressed(set, set.address(true), l4proto(), asked)
}

// DNAT appends "dnat ip to ip daddr . meta l4proto . th dport map @set", without the daddr if the keys have none.
// Where set has no ports, the packet keeps its own.
func (r *Rule) DNAT(set *Set) *Rule {
	port := uint32(0)
	if len(set.Data) > 1 {
		port = reg(int(set.address(true).size / 4))
	}
	return r.To(set).nat(unix.NFT_NAT_DNAT, set.v6(), port)
}

// addressed appends "field . field @set" for packets of the set's family.
func (r *Rule) addressed(set *Set, fields ...Field) *Rule {
	return r.Family(set.v6()).FieldsIn(false, set, fields...)
}

func (s *Set) address(dst bool) Field { return AddressOf(s.v6(), dst) }

// Masquerade appends "masquerade".
func (r *Rule) Masquerade() *Rule { return r.expr("masq", func() {}) }

// SNAT appends "snat ip to a", or "snat ip6 to a".
func (r *Rule) SNAT(a netip.Addr) *Rule {
	return r.constant(reg(0), a.AsSlice()).nat(unix.NFT_NAT_SNAT, a.Is6(), 0)
}

// FromGuarded appends "iifname @links iifname . ether saddr != @pairs".
func (r *Rule) FromGuarded(links, pairs *Set) *Rule {
	return r.In(links).FieldsIn(true, pairs, iifname(), frame(6, 6))
}

// Accept appends "accept", which ends this base chain for the packet. Later base chains still see the packet.
func (r *Rule) Accept() *Rule { return r.decide(Accept, "") }

// Jump appends "jump chain".
func (r *Rule) Jump(chain string) *Rule { return r.decide(unix.NFT_JUMP, chain) }

// Return appends "return", which goes back to the chain that jumped here.
func (r *Rule) Return() *Rule { return r.decide(unix.NFT_RETURN, "") }

// Drop appends "drop".
func (r *Rule) Drop() *Rule { return r.decide(0, "") } // NF_DROP
