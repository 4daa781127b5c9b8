package blocks

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestPool(t *testing.T) {
	v4 := Pool{Name: "a", Prefix: netip.MustParsePrefix("10.0.0.0/8"), Bits: 26, Parts: 4}
	v6 := Pool{Name: "b", Prefix: netip.MustParsePrefix("fd00::/48"), Bits: 122, Parts: 1}
	links := Pool{Name: "c", Prefix: netip.MustParsePrefix("fd00::/48"), Bits: 60, Parts: 1}
	if v4.count() != 1<<18 || v6.count() != 1<<62 {
		t.Errorf("%d and %d blocks", v4.count(), v6.count())
	}
	for _, tc := range []struct {
		pool Pool
		n    uint64
		want string
	}{
		{v4, 0, "10.0.0.0/26"}, {v4, 1, "10.0.0.64/26"}, {v4, 1<<18 - 1, "10.255.255.192/26"},
		{v6, 1, "fd00::40/122"}, {v6, 1 << 58, "fd00:0:0:1::/122"}, {v6, 1<<62 - 1, "fd00::f:ffff:ffff:ffff:ffc0/122"},
		{links, 1, "fd00:0:0:10::/60"}, {links, 1<<12 - 1, "fd00:0:0:fff0::/60"},
	} {
		if got := tc.pool.block(tc.n).String(); got != tc.want {
			t.Errorf("block %d of %v is %s, want %s", tc.n, tc.pool.Prefix, got, tc.want)
		}
	}
	h := Holding{Pool: "a", Block: netip.MustParsePrefix("10.0.0.64/26"), Parts: 0b1010}
	if got := v4.Ranges(h); len(got) != 2 || got[0].String() != "10.0.0.80/28" || got[1].String() != "10.0.0.112/28" {
		t.Error(got)
	}
	if h.Parts = v4.all(); v4.Ranges(h)[0] != h.Block {
		t.Error(v4.Ranges(h))
	}
}

// Nodes that begin to search at the same time do so at different blocks, go on at different ones, and reach each block.
func TestOrder(t *testing.T) {
	p := Pool{Name: "a", Prefix: netip.MustParsePrefix("10.0.0.0/8"), Bits: 26, Parts: 1}
	firsts, strides := map[uint64]bool{}, map[uint64]bool{}
	for n := range 1000 {
		order := p.order(strings.Repeat("x", n))
		firsts[order(0)] = true
		strides[(order(1)-order(0))%p.count()] = true
	}
	if len(firsts) < 990 || len(strides) < 990 {
		t.Errorf("1,000 nodes begin at %d blocks of %d, and go on by %d strides", len(firsts), p.count(), len(strides))
	}
	small := Pool{Name: "a", Prefix: netip.MustParsePrefix("10.0.0.0/24"), Bits: 28, Parts: 1}
	seen, order := map[uint64]bool{}, small.order("x")
	for n := range small.count() {
		seen[order(n)] = true
	}
	if len(seen) != 16 {
		t.Errorf("a node tries %d of 16 blocks", len(seen))
	}
}

func TestKeys(t *testing.T) {
	for _, block := range []string{"10.0.0.64/26", "fd00::40/122"} {
		k := Key{Kind: MineKey, Node: "u1", Pool: "a", Block: netip.MustParsePrefix(block)}
		if back, err := Parse(k.String()); err != nil || back != k {
			t.Errorf("%v: %v, %v", k, back, err)
		}
	}
	for _, kind := range []Key{{Kind: MineKey, Node: "u1"}, {Kind: BlockKey}, {Kind: GraveKey}} { // a former release took such names
		k := Key{Kind: kind.Kind, Node: kind.Node, Pool: "Mo/re", Block: netip.MustParsePrefix("10.66.0.0/26")}
		if back, err := Parse(k.String()); err != nil || back != k {
			t.Errorf("%v: %v, %v", k, back, err)
		}
	}
	node := Key{Kind: NodeKey, Node: "u1"}
	if back, err := Parse(node.String()); err != nil || back != node {
		t.Errorf("%v: %v, %v", node, back, err)
	}
	if got := (Key{Kind: BlockKey, Pool: "a", Block: netip.MustParsePrefix("10.0.0.64/26")}).String(); got !=
		"block/a/0a000040-26" {
		t.Error(got)
	}
	for _, text := range []string{"", "mine/u1/a", "mine/u1/a/xyz", "mine/u1/a/0a000040-26x", "mine/u1/a/0a00-26",
		"node/u1/a", "mine/u1/a/0a000040-33"} {
		if k, err := Parse(text); err == nil {
			t.Errorf("%q is %v", text, k)
		}
	}
}

func TestValidate(t *testing.T) {
	pool := func(name, prefix string, bits, parts int) Pool {
		p, _ := netip.ParsePrefix(prefix)
		return Pool{Name: name, Prefix: p, Bits: bits, Parts: parts}
	}
	pinned := func(name, prefix string, bits int) Pool {
		p := pool(name, prefix, bits, 1)
		p.Pinned = true
		return p
	}
	usual := pool("a", "10.0.0.0/8", 26, 1)
	for want, pools := range map[string][]Pool{
		"pool b (11.0.0.0/31) with blocks of /32": {usual, pinned("b", "11.0.0.0/31", 32)},
		"pool b (11.0.0.0/24) with blocks of /26": {usual, pinned("b", "11.0.0.0/24", 26)},
		"one at least that is not pinned":         {pinned("b", "11.0.0.0/24", 32)},
		"":                                        {pool("a", "10.0.0.0/8", 26, 4), pool("b", "fd00::/48", 122, 1)},
		"--pool: want at least one":               nil,
		"has no name":                             {pool("", "10.0.0.0/8", 26, 1)},
		"want 10.0.0.0/8":                         {pool("a", "10.0.0.1/8", 26, 1)},
		"blocks of /7: a block is larger than the pool: want /8":        {pool("a", "10.0.0.0/8", 7, 1)},
		"in 2 parts: a part has fewer than 4 addresses: want /8 to /29": {pool("a", "10.0.0.0/8", 30, 2)},
		"blocks of 3 parts":                         {pool("a", "10.0.0.0/8", 26, 3)},
		"(10.1.0.0/16) overlaps pool a":             {pool("a", "10.0.0.0/8", 26, 1), pool("b", "10.1.0.0/16", 26, 1)},
		"has the name of the pool with 10.0.0.0/16": {pool("a", "10.0.0.0/16", 26, 1), pool("a", "10.1.0.0/16", 26, 1)},
	} {
		err := Config{Pools: pools}.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A name that has to be written in keys, and a range that no container can have, is refused, and the error says what is wrong.
func TestNewPool(t *testing.T) {
	for _, c := range []struct{ name, prefix, want string }{
		{"main", "10.64.0.0/12", ""},
		{strings.Repeat("a", 63), "fd00:9::/64", ""},
		{"Mo/re", "10.66.0.0/20", `name "Mo/re" has the character '/': letters, digits, _ . and - are allowed`},
		{"-x", "10.66.0.0/20", `name "-x" begins with '-'`},
		{strings.Repeat("a", 64), "10.66.0.0/20", "has 64 characters: want at most 63"},
		{"x", "224.0.0.0/8", "pool x (224.0.0.0/8): 224.0.0.0/4 is for multicast"},
		{"x", "0.0.0.0/0", "0.0.0.0/8 is"},
		{"x", "127.0.0.0/16", "127.0.0.0/8 is"},
		{"x", "240.0.0.0/8", "240.0.0.0/4 is reserved"},
		{"x", "169.254.0.0/16", "169.254.0.0/16 is"},
		{"x", "fe80::/64", "fe80::/10 is"},
		{"x", "ff02::/64", "ff00::/8 is for multicast"},
		{"x", "::/64", "::/96 is"},
	} {
		p := Pool{Name: c.name, Prefix: netip.MustParsePrefix(c.prefix)}
		err := p.ValidateNew()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s=%s: %v, want %q", c.name, c.prefix, err, c.want)
		}
	}
}

// The node with the first part of a block has the gateway of the block, and another one the second address of each part.
func TestAddresses(t *testing.T) {
	p := Pool{Name: "p", Prefix: netip.MustParsePrefix("10.0.0.0/8"), Bits: 28, Parts: 4}
	for _, c := range []struct {
		ranges   []string
		want     int
		gateways string
	}{
		{[]string{"10.0.0.0/28"}, 13, "[10.0.0.1]"},
		{[]string{"10.0.0.0/28", "10.0.0.32/28"}, 26, "[10.0.0.1 10.0.0.33]"},
		{[]string{"10.0.0.0/30", "10.0.0.8/30", "10.0.0.12/30"}, 9, "[10.0.0.1]"},
		{[]string{"10.0.0.4/30"}, 3, "[10.0.0.5]"},
		{[]string{"10.0.0.8/30", "10.0.0.12/30"}, 5, "[10.0.0.9 10.0.0.13]"},
	} {
		var ranges []netip.Prefix
		for _, text := range c.ranges {
			ranges = append(ranges, netip.MustParsePrefix(text))
		}
		gateways := []netip.Addr{}
		for _, r := range ranges {
			if a := p.Gateway(r, ranges); a.IsValid() {
				gateways = append(gateways, a)
			}
		}
		if got := p.Addresses(ranges); got.String() != fmt.Sprint(c.want) || p.Count(ranges) != c.want || fmt.Sprint(gateways) != c.gateways {
			t.Errorf("%v: %v addresses and %v, want %d and %s", ranges, got, gateways, c.want, c.gateways)
		}
	}
	p.Pinned = true
	if got := p.Addresses([]netip.Prefix{netip.MustParsePrefix("10.0.0.7/32")}); got.String() != "1" {
		t.Errorf("a pinned address is %v", got)
	}
	large := Pool{Name: "large", Prefix: netip.MustParsePrefix("fd00::/8"), Bits: 9, Parts: 1}
	both := []netip.Prefix{large.block(0), large.block(1)}
	if got := large.Addresses(both); got.String() != "1329227995784915872903807060280344570" || large.Count(both) != 2*large.Usable() {
		t.Errorf("%v and %d, want as many as twice %d", got, large.Count(both), large.Usable())
	}
}
