package route

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/routing"
)

func (r rule) change(key string, all *changes) error {
	do, err := verb(key, r.Action, AddRule, DelRule, FlushRules)
	if err != nil {
		return err
	}
	e := routing.RuleEntry{Priority: r.Priority, IIF: r.IIF, OIF: r.OIF, Table: r.Table, Action: addr.Action(r.Type)}
	if e.V4, e.V6, err = r.Family.families(key, do == routing.Flush); err != nil {
		return err
	}
	if do == routing.Flush {
		if r != (rule{Action: r.Action, Family: r.Family}) {
			return bad("%s: flush takes family; want \"action\": \"del\" for some rules", key)
		}
		all.add(key, do, e)
		return nil
	}
	for _, f := range []struct {
		key, text string
		into      *netip.Prefix
	}{{"from", r.From, &e.From}, {"to", r.To, &e.To}} {
		if f.text == "" {
			continue
		}
		if *f.into, err = prefix(key+"."+f.key, f.text); err != nil {
			return err
		}
		e.V4, e.V6 = f.into.Addr().Is4(), f.into.Addr().Is6()
	}
	if e.From.IsValid() && e.To.IsValid() && e.From.Addr().Is4() != e.To.Addr().Is4() {
		return bad("%s.to: %q: is not of the family of from, %v", key, r.To, e.From)
	}
	if e.Mark, e.Mask, err = mark(key, r.FwMark); err != nil {
		return err
	}
	if err := r.complete(key, do); err != nil {
		return err
	}
	all.add(key, do, e)
	return nil
}

// complete refuses a rule that does nothing, or that would take all.
func (r rule) complete(key string, do routing.Verb) error {
	types := []RouteType{Blackhole, Unreachable, Prohibit}
	switch {
	case r.Type != "" && !slices.Contains(types, r.Type):
		return oneOf(key+".type", r.Type, types)
	case r.Table != 0 && r.Type != "":
		return bad("%s: has table and type; want one of the two", key)
	case do == routing.Del && r == (rule{Action: r.Action, Family: r.Family}):
		return bad("%s: del does not select a rule: want priority, from, to, iif, oif, fwmark, table or type; "+
			"or \"action\": \"flush\"", key)
	case do == routing.Add && r.Priority == 0:
		return bad("%s.priority: is missing: want 1 to 32765; rules with a lower number are evaluated first", key)
	case do == routing.Add && r.Table == 0 && r.Type == "":
		return bad("%s: has neither table nor type: want one of them, such as \"type\": \"prohibit\"", key)
	}
	return nil
}

// mark reads "0x10/0xff"; without a mask all bits count.
func mark(key, text string) (value, mask uint32, err error) {
	if text == "" {
		return 0, 0, nil
	}
	v, m, masked := strings.Cut(text, "/")
	if !masked {
		m = "0xffffffff"
	}
	a, aerr := strconv.ParseUint(v, 0, 32)
	b, berr := strconv.ParseUint(m, 0, 32)
	if errors.Join(aerr, berr) != nil || b == 0 || a&^b != 0 {
		return 0, 0, bad("%s.fwmark: %q: want a mark, such as \"0x10\", or a mark and a mask that has its bits, "+
			"such as \"0x10/0xff\"", key, text)
	}
	return uint32(a), uint32(b), nil
}
