package rtnl

import (
	"cmp"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// OurProtocol is the protocol number that marks rules and routes of this program. No routing daemon uses this number.
// ip(8) shows it as "proto 250".
const OurProtocol = 250

// A Rule is a policy routing rule, ip-rule(8). It selects packets and says how to route them.
type Rule struct {
	Family   uint8        // IPv4 or IPv6; zero: that of From or To
	Priority int          // a lower one is asked first; zero in AddRule: before all but the rule of the local table
	From, To netip.Prefix // invalid: from or to anywhere
	IIF      string       // came in by that link; lo: from this host itself
	OIF      string       // is sent by a socket that is bound to that link
	Mark     uint32       // a packet's mark, in the bits of Mask
	Mask     uint32       // zero, and Mark too: any mark
	Table    int          // of Lookup
	Action   uint8        // zero: Lookup
	Protocol uint8        // who made it
	Tag      uint32       // whose it is, see RuleTag; zero: no owner's

	// Other says that a listed rule has conditions that this type has no field for.
	Other bool
}

// The actions of a Rule.
const (
	Lookup      = unix.FR_ACT_TO_TBL
	Unreachable = unix.FR_ACT_UNREACHABLE
	Prohibit    = unix.FR_ACT_PROHIBIT
)

// MainPriority is the priority of the kernel's rule for the main table.
const MainPriority = 32766

// RuleTag returns the owner's mark for a rule, from a hash of the owner. A rule has no comment, so the kernel keeps
// the mark as suppress_ifgroup. With that, the rule never leads to a link of that group. No link is in such a group,
// because the group numbers that people and programs assign are small.
func RuleTag(hash uint32) uint32 { return tagged | hash&(tagged-1) }

const tagged = 1 << 30 // ip(8) takes groups below 1<<31

const ruleInvert = 0x2 // FIB_RULE_INVERT: all but those

// Rules returns the rules of one family, in the order in which the kernel applies them.
func Rules(ns *kernel.NS, family uint8) ([]Rule, error) {
	msgs, err := rules(ns, family)
	var list []Rule
	for _, m := range msgs {
		if r, ok := parseRule(m); ok && r.Family == family {
			list = append(list, r)
		}
	}
	return list, err
}

// rules are the kernel's words for them.
func rules(ns *kernel.NS, family uint8) ([][]byte, error) {
	// The kernel filters rules by nothing else, and with strict checking refuses to be asked.
	req := newRequest(unix.RTM_GETRULE, unix.NLM_F_DUMP, unix.RtMsg{Family: family})
	msgs, err := Dump(ns, req, unix.RTM_NEWRULE)
	// a kernel without the family, or without rules
	err = netlink.Except(err, unix.EAFNOSUPPORT, unix.EOPNOTSUPP)
	return msgs, netlink.About(err, "list rules")
}

func parseRule(b []byte) (r Rule, ok bool) {
	if len(b) < unix.SizeofRtMsg {
		return r, false
	}
	r = Rule{Family: b[0], Table: int(b[4]), Action: b[7], Other: b[3] != 0 || netlink.U32(b[8:])&ruleInvert != 0}
	prefix := func(v []byte, bits byte) netip.Prefix {
		a, _ := netip.AddrFromSlice(v)
		return netip.PrefixFrom(a, int(bits))
	}
	netlink.EachAttr(b[unix.SizeofRtMsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.FRA_PRIORITY:
			r.Priority = int(netlink.U32(v))
		case unix.FRA_SRC:
			r.From = prefix(v, b[2])
		case unix.FRA_DST:
			r.To = prefix(v, b[1])
		case unix.FRA_IIFNAME:
			r.IIF = netlink.Text(v)
		case unix.FRA_OIFNAME:
			r.OIF = netlink.Text(v)
		case unix.FRA_FWMARK:
			r.Mark = netlink.U32(v)
		case unix.FRA_FWMASK:
			r.Mask = netlink.U32(v)
		case unix.FRA_TABLE:
			r.Table = int(netlink.U32(v))
		case unix.FRA_PROTOCOL:
			if len(v) > 0 {
				r.Protocol = v[0]
			}
		case unix.FRA_SUPPRESS_IFGROUP: // -1 says nothing
			if g := netlink.U32(v); g != ^uint32(0) {
				r.Tag, r.Other = g, r.Other || g&^(tagged-1) != tagged
			}
		case unix.FRA_SUPPRESS_PREFIXLEN: // always there; -1 says nothing
			r.Other = r.Other || int32(netlink.U32(v)) != -1
		case unix.FRA_PAD:
		default:
			r.Other = true
		}
	})
	return r, true
}

// AddRule adds a rule. The error is EEXIST for an equal rule with the same priority.
func AddRule(ns *kernel.NS, r Rule) error {
	return netlink.About(Tell(ns, ruleRequest(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, r)), "add rule")
}

// DelRule deletes the first rule that r matches. A zero field of r matches any value, so pass a rule from Rules. It
// is no error if no rule matches.
func DelRule(ns *kernel.NS, r Rule) error {
	err := Tell(ns, ruleRequest(unix.RTM_DELRULE, 0, r))
	return netlink.About(netlink.Except(err, unix.ENOENT, unix.ESRCH, unix.EAFNOSUPPORT), "delete rule")
}

func ruleRequest(typ, flags int, r Rule) *netlink.Request {
	// A struct fib_rule_hdr is laid out as a struct rtmsg; the type stands where the action does.
	msg := unix.RtMsg{Family: r.family(), Type: cmp.Or(r.Action, Lookup)}
	if r.From.IsValid() {
		msg.Src_len = uint8(r.From.Bits())
	}
	if r.To.IsValid() {
		msg.Dst_len = uint8(r.To.Bits())
	}
	req := newRequest(typ, flags|unix.NLM_F_ACK, msg)
	req.Opt32(unix.FRA_PRIORITY, uint32(r.Priority))
	req.OptAttr(unix.FRA_SRC, r.From.Masked().Addr().AsSlice()...)
	req.OptAttr(unix.FRA_DST, r.To.Masked().Addr().AsSlice()...)
	req.OptStr(unix.FRA_IIFNAME, r.IIF)
	req.OptStr(unix.FRA_OIFNAME, r.OIF)
	if r.Mark != 0 || r.Mask != 0 {
		req.Host32(unix.FRA_FWMARK, r.Mark)
	}
	req.Opt32(unix.FRA_FWMASK, r.Mask)
	req.Opt32(unix.FRA_TABLE, uint32(r.Table))
	req.Opt32(unix.FRA_SUPPRESS_IFGROUP, r.Tag)
	if r.Protocol != 0 {
		req.Attr(unix.FRA_PROTOCOL, r.Protocol)
	}
	return req
}

func (r Rule) family() uint8 {
	for _, p := range []netip.Prefix{r.From, r.To} {
		if r.Family == 0 && p.IsValid() {
			return Family(p.Addr())
		}
	}
	return r.Family
}
