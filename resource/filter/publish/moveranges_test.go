package publish_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/nft"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
)

// asBefore turns the claims of ranges into those of the version before: among the claims of ports, by the smallest
// block of 16, 256, 4096 or all ports that has them, with a mark for the 64 ports where each begins.
func asBefore(t *testing.T, w *kernel.World) {
	t.Helper()
	err := filter.Transact(t.Context(), w, filter.Inet(), func(f filter.Tx) error {
		names, err := f.SetNames(f.Table)
		if err != nil {
			return err
		}
		var b nft.Batch
		for _, name := range names {
			base, where, _ := strings.Cut(name, "_where_")
			family, ok := strings.CutPrefix(base, "ranges_")
			if !ok {
				continue
			}
			p := filter.PortMapsOf(f.Table, family == "ip6", where)
			n := map[string]uint32{}
			put := func(proto byte, port uint16, level uint32, e nft.Elem) {
				key := nft.Key(proto, port, level<<24)
				e.Set, e.Key = p.Claims, nft.Key(proto, port, level<<24|n[string(key)])
				if n[string(key)]++; level < 0xff || n[string(key)] == 1 {
					b.Add(e)
				}
			}
			ranges, err := f.Conn.List(p.Ranges)
			if err != nil {
				return err
			}
			ports, err := f.Conn.List(p.Claims)
			if err != nil {
				return err
			}
			for _, e := range ranges {
				proto := e.Key[0]
				ports := nft.Fields(e.Set.Data, e.Data)[2].(uint32)
				first, last := uint16(ports>>16), uint16(ports)
				level := uint32(0)
				for first>>(4*level) != last>>(4*level) {
					level++
				}
				put(proto, first>>(4*level)<<(4*level), level, e)
				put(proto, first/64*64, 0xff, e)
			}
			for _, e := range ports {
				put(e.Key[0], nft.Fields(e.Set.Key, e.Key)[1].(uint16)/64*64, 0xff, e)
			}
			b.DeleteSet(p.Ranges)
		}
		return f.Write(&b)
	})
	if err != nil {
		t.Fatal(err)
	}
	if s := filtertest.State(t, w); strings.Contains(s, "ranges_ip") || !strings.Contains(s, "0xff000000") {
		t.Fatalf("not as before:\n%s", s)
	}
}

// What an earlier version published stands through an upgrade: nothing that packets are led by changes, whoever comes
// meets the ranges, who stands by takes over, and nothing is left of those who go.
func TestRangesOfEarlierVersion(t *testing.T) {
	odd := func(p publish.Ports) publish.Ports {
		p.Conditions4, p.To6 = []string{"iifname eth0"}, netip.Prefix{}
		return p
	}
	old := []publish.Ports{
		filtertest.PortsOf("c1", "one", "10.1.0.5/24", filtertest.Range("", 8000, 8010), filtertest.TCP("", 80)),
		filtertest.PortsOf("c1", "two", "10.2.0.5/24", filtertest.Range("", 8000, 8010)), // stands by
		filtertest.PortsOf("c2", "one", "10.1.0.6/24", filtertest.Range("192.0.2.1", 1, 79),
			filtertest.Range("", 8011, 8012),
			filtertest.Range("2001:db8::1", 10000, 65535)),
		odd(filtertest.PortsOf("c3", "one", "10.1.0.7/24", filtertest.Range("", 8000, 65535))),
	}
	before := func(t *testing.T) (w *kernel.World, empty string) {
		w = contract.NewHost(t)
		filtertest.MakeTables(t, w)
		empty = filtertest.Elements(t, w)
		for _, p := range old {
			contract.Ensure(t, w, p)
		}
		asBefore(t, w)
		return w, empty
	}
	leads := func(w *kernel.World) string { // what packets are led by
		var lines []string
		inside := false
		for _, line := range strings.SplitAfter(filtertest.State(t, w), "\n") {
			if strings.HasPrefix(line, "\tmap ") || strings.HasPrefix(line, "\tset ") {
				inside = strings.Contains(line, " claims_") || strings.Contains(line, " ranges_")
			} else if strings.HasPrefix(line, "\tchain") {
				inside = false
			}
			if !inside {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "")
	}
	for name, use := range map[string]func(t *testing.T, w *kernel.World){
		"CHECK": func(t *testing.T, w *kernel.World) {
			for _, p := range old {
				contract.Verify(t, w, p)
			}
		},
		"ADD of a port in a range": func(t *testing.T, w *kernel.World) {
			p := filtertest.PortsOf("c9", "one", "10.1.0.9/24", filtertest.TCP("", 8012))
			if _, err := p.Ensure(t.Context(), w); err == nil ||
				!strings.Contains(err.Error(), "in the range 8011-8012 by one/c2/eth0") {
				t.Errorf("got %v", err)
			}
		},
		"ADD of a range over all": func(t *testing.T, w *kernel.World) {
			_, err := filtertest.PortsOf("c9", "one", "10.1.0.9/24", filtertest.Range("", 1, 65535)).Ensure(t.Context(),
				w)
			for _, want := range []string{"8000-8010", "8011-8012", "tcp port 80 is", "ports 1-79"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %s", err, want)
				}
			}
		},
		"ADD by iptables": func(t *testing.T, w *kernel.World) {
			p := publish.PortsIPTables{Ports: filtertest.PortsOf("c9", "one", "10.1.0.9/24", filtertest.TCP("", 8012))}
			if err := p.ConflictsWithNFT(t.Context(), w); err == nil ||
				!strings.Contains(err.Error(), "in the range 8011-8012") {
				t.Errorf("got %v", err)
			}
		},
		"repair": func(t *testing.T, w *kernel.World) {
			ctx := filter.Together(t.Context())
			if err := filter.AtOnce(ctx, w, func() {
				for _, p := range old {
					if _, err := p.Ensure(ctx, w); err != nil {
						t.Error(err)
					}
				}
			}); err != nil {
				t.Error(err)
			}
		},
		"ADD and DEL beside": func(t *testing.T, w *kernel.World) {
			p := filtertest.PortsOf("c9", "one", "10.1.0.9/24", filtertest.TCP("", 443), filtertest.Range("", 500, 501))
			contract.Ensure(t, w, p)
			contract.Verify(t, w, p)
			contract.Remove(t, w, p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, empty := before(t)
			state := leads(w)
			use(t, w)
			if got := leads(w); got != state {
				t.Errorf("what leads changed:%s", contract.Difference(state, got))
			}
			for _, p := range old {
				contract.Verify(t, w, p)
			}
			contract.Remove(t, w, old[0])
			contract.Verify(t, w, old[1])
			if s := filtertest.State(t, w); !strings.Contains(s, `tcp . 8000-8010 comment "`+identity.Tag(old[1].Owner)+`" : 10.2.0.5`) {
				t.Errorf("nobody took over:\n%s", s)
			}
			for _, p := range old[1:] {
				contract.Remove(t, w, p)
			}
			if got := filtertest.Elements(t, w); got != empty {
				t.Errorf("left:%s", contract.Difference(empty, got))
			}
		})
	}
	for name, remove := range map[string]func(t *testing.T, w *kernel.World, p publish.Ports){
		"DEL": func(t *testing.T, w *kernel.World, p publish.Ports) { contract.Remove(t, w, p) },
		"GC": func(t *testing.T, w *kernel.World, p publish.Ports) {
			keep := func(owner [8]byte) bool { return owner != identity.OwnerHash(p.Owner) }
			if err := filtertest.SweepNFT(t.Context(), w, p.Owner.Network, keep); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, empty := before(t)
			for i, p := range old {
				remove(t, w, p)
				for _, rest := range old[i+1:] {
					contract.Verify(t, w, rest)
				}
			}
			if got := filtertest.Elements(t, w); got != empty {
				t.Errorf("left:%s", contract.Difference(empty, got))
			}
		})
	}
}
