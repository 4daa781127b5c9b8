package kernel

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// flagsText are states of conntrack, in nft(8)'s words or iptables(8)'s.
func flagsText(mask uint32, upper bool) string {
	var words []string
	for i, name := range []string{"invalid", "established", "related", "new", "", "", "snat", "dnat", "untracked"} {
		if mask>>i&1 != 0 && name != "" {
			words = append(words, name)
		}
	}
	s := strings.Join(words, ",")
	if upper {
		return strings.ToUpper(s)
	}
	return s
}

// xtMatchText is a match in the words of iptables(8), of those that decide most rules; of others, the name.
func xtMatchText(name string, rev uint32, info []byte) string {
	order := binary.NativeEndian
	not := func(inv bool) string {
		if inv {
			return "! "
		}
		return ""
	}
	ports := func(option string, b []byte, inv bool) string {
		from, to := order.Uint16(b), order.Uint16(b[2:])
		switch {
		case from == 0 && to == 0xffff && !inv:
			return ""
		case from == to:
			return fmt.Sprintf(" %s%s %d", not(inv), option, from)
		}
		return fmt.Sprintf(" %s%s %d:%d", not(inv), option, from, to)
	}
	types := func(option string, mask uint16, inv bool) string {
		var words []string
		for i, name := range []string{"UNSPEC", "UNICAST", "LOCAL", "BROADCAST", "ANYCAST", "MULTICAST", "BLACKHOLE", "UNREACHABLE", "PROHIBIT"} {
			if mask>>i&1 != 0 {
				words = append(words, name)
			}
		}
		if words == nil {
			return ""
		}
		return " " + not(inv) + option + " " + strings.Join(words, ",")
	}
	s := "-m " + name
	switch {
	case name == "comment":
		return s + " --comment " + strconv.Quote(text(info))
	case name == "state" && len(info) >= 4:
		return s + " --state " + flagsText(order.Uint32(info), true)
	case name == "conntrack" && rev >= 2 && rev <= 3 && len(info) >= 154:
		flags, invert := order.Uint16(info[146:]), order.Uint16(info[148:])
		if flags&1 != 0 {
			s += " " + not(invert&1 != 0) + "--ctstate " + flagsText(uint32(order.Uint16(info[150:])), true)
		}
		if flags&^(1|1<<13) != 0 {
			s += " ..."
		}
		return s
	case name == "mark" && rev == 1 && len(info) >= 9:
		return fmt.Sprintf("%s %s--mark 0x%x/0x%x", s, not(info[8] != 0), order.Uint32(info), order.Uint32(info[4:]))
	case name == "addrtype" && rev == 1 && len(info) >= 8:
		flags := order.Uint32(info[4:])
		return s + types("--src-type", order.Uint16(info), flags&1 != 0) + types("--dst-type", order.Uint16(info[2:]), flags&2 != 0)
	case name == "tcp" && len(info) >= 12:
		s += ports("--sport", info, info[11]&1 != 0) + ports("--dport", info[4:], info[11]&2 != 0)
		if info[9] != 0 {
			s += fmt.Sprintf(" %s--tcp-flags 0x%x 0x%x", not(info[11]&4 != 0), info[9], info[10])
		}
		return s
	case name == "udp" && len(info) >= 9:
		return s + ports("--sport", info, info[8]&1 != 0) + ports("--dport", info[4:], info[8]&2 != 0)
	case name == "multiport" && rev == 1 && len(info) >= 48:
		s += " " + not(info[47] != 0) + map[byte]string{0: "--sports ", 1: "--dports "}[info[0]]
		for i := range min(int(info[1]), 15) {
			sep := ","
			if i > 0 && info[32+i-1] != 0 {
				sep = ":"
			}
			if i > 0 {
				s += sep
			}
			s += strconv.Itoa(int(order.Uint16(info[2+2*i:])))
		}
		return s
	}
	return s
}
