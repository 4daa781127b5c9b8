package filter_test

import (
	"fmt"
	"net/netip"
	"strconv"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"github.com/fairlead-cni/fairlead/spec"
)

// crowd puts what n other attachments with a port each have into the table.
func crowd(b *testing.B, w *kernel.World, n int) {
	b.Helper()
	filtertest.MakeTables(b, w)
	ctx := filter.Together(b.Context())
	for i := 0; i < n; {
		from, end := i, min(n, i+200)
		err := filter.AtOnce(ctx, w, func() {
			for i = from; i < end; i++ {
				o := spec.Owner{Network: "crowd", ContainerID: strconv.Itoa(i), IfName: "eth0"}
				p := publish.Ports{Owner: o, SNAT: true,
					Mappings: []publish.Mapping{{Protocol: "tcp", HostPort: uint16(10000 + i),
						ContainerPort: 80}},
					To4: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}), 16)}
				for _, r := range []plan.Resource{p, masquerade.Sources{Owner: o, From: []netip.Prefix{p.To4}}} {
					if _, err := r.Ensure(ctx, w); err != nil {
						b.Error(err)
					}
				}
			}
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// What an attachment costs does not depend on how many there are.
func BenchmarkFilter(b *testing.B) {
	for _, n := range []int{0, 1000, 10000} {
		b.Run(fmt.Sprintf("present=%d", n), func(b *testing.B) {
			w := contract.NewHost(b)
			crowd(b, w, n)
			p := plan.Plan{
				masquerade.Sources{Owner: contract.Owner, From: []netip.Prefix{contract.Prefix("10.1.2.5/24")}},
				filtertest.PortsOf("c1", "net", "10.1.2.5/24", filtertest.TCP("", 80),
					publish.Mapping{Protocol: "udp", HostPort: 81, ContainerPort: 53}),
			}
			remove := func(b *testing.B) {
				if err := engine.Undo(b.Context(), w, p); err != nil {
					b.Fatal(err)
				}
			}
			for _, r := range p {
				b.Run(fmt.Sprintf("%T/ensure", r), func(b *testing.B) {
					for b.Loop() {
						contract.Ensure(b, w, r)
						b.StopTimer()
						remove(b)
						b.StartTimer()
					}
				})
			}
			b.Run("verify", func(b *testing.B) {
				for _, r := range p {
					contract.Ensure(b, w, r)
				}
				for b.Loop() {
					if err := engine.Verify(b.Context(), w, p); err != nil {
						b.Fatal(err)
					}
				}
				remove(b)
			})
			b.Run("remove", func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					for _, r := range p {
						contract.Ensure(b, w, r)
					}
					b.StartTimer()
					remove(b)
				}
			})
			b.Run("remove nothing", func(b *testing.B) {
				for b.Loop() {
					remove(b)
				}
			})
		})
	}
}

// A range of 2,000 equal ports costs about what one port does, and as little beside others, with ports or ranges of
// their own, as alone. The same ports one by one, and a range that is shifted, are there to compare.
func BenchmarkRange(b *testing.B) {
	var each []publish.Mapping
	for i := range 2000 {
		each = append(each, publish.Mapping{Protocol: "tcp", HostPort: uint16(40000 + i),
			ContainerPort: uint16(40000 + i)})
	}
	shapes := []struct {
		name  string
		ports []publish.Mapping
	}{
		{"port", each[:1]},
		{"range", []publish.Mapping{filtertest.Range("", 40000, 41999)}},
		{"all", []publish.Mapping{{Protocol: "udp", HostPort: 1, HostPortEnd: 65535, ContainerPort: 1}}},
		{"shifted", []publish.Mapping{{Protocol: "tcp", HostPort: 40000, HostPortEnd: 41999, ContainerPort: 1000}}},
		{"one by one", each},
	}
	for _, others := range []string{"nobody", "1000 ports", "1000 ranges"} {
		b.Run("beside="+others, func(b *testing.B) {
			w := contract.NewHost(b)
			filtertest.MakeTables(b, w)
			switch others {
			case "1000 ports":
				crowd(b, w, 1000)
			case "1000 ranges":
				for i := range 1000 {
					contract.Ensure(b, w, filtertest.PortsOf(strconv.Itoa(i), "crowd",
						fmt.Sprintf("10.200.%d.%d/16", i/200, i%200+1),
						filtertest.Range("", uint16(10000+i*20), uint16(10019+i*20))))
				}
			}
			for _, s := range shapes {
				p := filtertest.PortsOf("c1", "net", "10.1.2.5/24", s.ports...)
				b.Run(s.name+"/ensure", func(b *testing.B) {
					for b.Loop() {
						contract.Ensure(b, w, p)
						b.StopTimer()
						contract.Remove(b, w, p)
						b.StartTimer()
					}
				})
				b.Run(s.name+"/verify", func(b *testing.B) {
					contract.Ensure(b, w, p)
					for b.Loop() {
						if err := p.Verify(b.Context(), w); err != nil {
							b.Fatal(err)
						}
					}
					contract.Remove(b, w, p)
				})
				b.Run(s.name+"/remove", func(b *testing.B) {
					for b.Loop() {
						b.StopTimer()
						contract.Ensure(b, w, p)
						b.StartTimer()
						contract.Remove(b, w, p)
					}
				})
			}
		})
	}
}
