package packetfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// DumpNFT writes all tables of nf_tables in the words of nft(8), as far as this package knows them, for a person to
// read. Most is how many elements of each set are written.
func DumpNFT(ns *kernel.NS, w io.Writer, most int) error {
	conn, err := nft.Open(ns)
	if err != nil {
		return err
	}
	base := map[string]nft.BaseChain{}
	chains, err := conn.BaseChains()
	if err != nil {
		return err
	}
	for _, c := range chains {
		base[c.String()] = c
	}
	tables, err := conn.Tables()
	for _, t := range tables {
		fmt.Fprintf(w, "table %v {\n", t)
		err = errors.Join(err, dumpSets(conn, t, w, most))
		uses, uerr := conn.Uses(t)
		err = errors.Join(err, uerr)
		own := newTable(conn, t)
		for _, name := range slices.Sorted(maps.Keys(uses)) {
			head := name + " {"
			if c, ok := base[t.String()+" "+name]; ok {
				head += fmt.Sprintf("\n\t\thook %d priority %d policy %s", c.Hook, c.Priority, policyText(c.Drops)) +
					" # of " + c.Owner()
			}
			rules, rerr := own.chain(name)
			err = errors.Join(err, rerr)
			dumpChain(w, head, rules)
		}
		fmt.Fprint(w, "}\n")
	}
	return err
}

func policyText(drops bool) string {
	if drops {
		return "drop"
	}
	return "accept"
}

// dumpChain writes a chain, whose first line or lines are head.
func dumpChain(w io.Writer, head string, rules []rule) {
	fmt.Fprintf(w, "\tchain %s\n", head)
	for _, r := range rules {
		fmt.Fprintf(w, "\t\t%s # %d\n", r.text(), r.number())
	}
	fmt.Fprint(w, "\t}\n")
}

// dumpSets writes the sets and maps of a table that have names of their own.
func dumpSets(conn *nft.Conn, t *nft.Table, w io.Writer, most int) error {
	names, err := conn.SetNames(t)
	slices.Sort(names)
	for _, name := range names {
		set, serr := conn.RawSet(t, name)
		if err = errors.Join(err, serr); serr != nil {
			continue
		}
		fmt.Fprintf(w, "\tset %s {\n", name)
		n := 0
		err = errors.Join(err, conn.RawElements(t, name, func(e []byte) {
			if n++; n <= most {
				fmt.Fprintf(w, "\t\t%s\n", elementText(set, e))
			}
		}))
		if n > most {
			fmt.Fprintf(w, "\t\tand %d more elements\n", n-most)
		}
		fmt.Fprint(w, "\t}\n")
	}
	return err
}

// elementText is an element of a set.
func elementText(set, e []byte) string {
	order := binary.ByteOrder(binary.NativeEndian)
	if hasIntervals(set) { // the kernel compares their bytes
		order = binary.BigEndian
	}
	key := fieldsText(attr32(set, unix.NFTA_SET_KEY_TYPE), value(e, unix.NFTA_SET_ELEM_KEY), order)
	if end := value(e, setElemKeyEnd); end != nil {
		key += "-" + fieldsText(attr32(set, unix.NFTA_SET_KEY_TYPE), end, order)
	}
	if flags := attr32(e, unix.NFTA_SET_ELEM_FLAGS); flags&unix.NFT_SET_ELEM_INTERVAL_END != 0 {
		key = "up to " + key
	}
	if verdict := attr(e, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT); verdict != nil {
		key += " : " + nftVerdictText(verdict)
	} else if data := value(e, unix.NFTA_SET_ELEM_DATA); data != nil {
		key += " : " + fieldsText(attr32(set, unix.NFTA_SET_DATA_TYPE), data, binary.NativeEndian)
	}
	if c := nft.RuleComment(attr(e, unix.NFTA_SET_ELEM_USERDATA)); c != "" {
		key += " comment " + strconv.Quote(c)
	}
	return key
}

// fieldsText is a key or data. Nft(8) numbers the types of fields by six bits each, the last one lowest; in a
// concatenation each begins at a multiple of four bytes.
func fieldsText(types uint32, b []byte, order binary.ByteOrder) string {
	var fields []nft.Type
	for ; types != 0; types >>= 6 {
		fields = append([]nft.Type{nft.Type(types & 0x3f)}, fields...)
	}
	var words []string
	for i, t := range fields {
		size := len(b)
		if known := t.Size(); known != 0 && known <= size {
			size = known
		}
		words = append(words, fieldText(t, b[:size], order))
		b = b[min(len(b), size+-size&3):]
		if i+1 < len(fields) && len(b) == 0 {
			break
		}
	}
	if len(words) == 0 || len(b) > 0 {
		words = append(words, fmt.Sprintf("0x%x", b))
	}
	return strings.Join(words, " . ")
}

// ofHost reports whether nft(8) keeps numbers of a type in the host's byte order: time, mark, interface, user and the
// others between these and the status of a connection (datatype.h).
func ofHost(t nft.Type) bool {
	const typeTime, typeCTStatus = 18, 28
	return t >= typeTime && t <= typeCTStatus
}

func fieldText(t nft.Type, b []byte, order binary.ByteOrder) string {
	switch a, ok := netip.AddrFromSlice(b); {
	case ok && (t == nft.Addr || t == nft.Addr6):
		return a.String()
	case t == nft.Ether && len(b) == 6:
		return net.HardwareAddr(b).String()
	case t == nft.Proto && len(b) == 1:
		return kernel.ProtoName(b[0])
	case t == nft.Service && len(b) == 2:
		return valueText("port", b, nil, nil)
	case t == nft.Ifname:
		return strconv.Quote(text(b))
	case ofHost(t) && len(b) == 4:
		return fmt.Sprintf("0x%x", order.Uint32(b))
	}
	return fmt.Sprintf("0x%x", b)
}

// DumpLegacy writes the tables of ip_tables and ip6_tables, in nft(8)'s words.
func DumpLegacy(ns *kernel.NS, w io.Writer) (err error) {
	for _, v6 := range []bool{false, true} {
		program := map[bool]string{false: "iptables-legacy", true: "ip6tables-legacy"}[v6]
		for _, table := range []string{"raw", "mangle", "nat", "filter", "security"} {
			info, b, lerr := xtables.LegacyEntries(ns, v6, table)
			if err = errors.Join(err, lerr); lerr != nil || b == nil {
				continue
			}
			t, perr := parseLegacy(info, b, v6)
			if err = errors.Join(err, perr); perr != nil {
				continue
			}
			fmt.Fprintf(w, "%s -t %s {\n", program, table)
			for hook := range info.Hooks {
				name := builtIn(hook)
				if rules, ok := t.chains[name]; ok {
					dumpChain(w, name+" policy "+policyText(t.drops[hook])+" {", rules)
					delete(t.chains, name)
				}
			}
			for _, name := range slices.Sorted(maps.Keys(t.chains)) {
				dumpChain(w, name+" {", t.chains[name])
			}
			fmt.Fprint(w, "}\n")
		}
	}
	return err
}
