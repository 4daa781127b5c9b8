package filter

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/nft"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// crowd puts what n other attachments with a port each have into the table.
func crowd(b *testing.B, w *kernel.World, n int) {
	b.Helper()
	skeleton(b, w)
	err := withFilter(b.Context(), w, inetTable(), func(f filter) error {
		for i := 0; i < n; {
			var batch nft.Batch
			for end := min(n, i+200); i < end; i++ {
				o := spec.Owner{Network: "crowd", ContainerID: strconv.Itoa(i), IfName: "eth0"}
				p := Publish{Owner: o, SNAT: true, Ports: []PortMapping{{Protocol: "tcp", HostPort: uint16(10000 + i),
					ContainerPort: 80}},
					To4: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}), 16)}
				m := Masquerade{Owner: o, From: []netip.Prefix{p.To4}}
				pub, err := p.want(f.t)
				if err != nil {
					return err
				}
				part, elems := m.want(f.t)
				if i == 0 {
					if err := errors.Join(f.ensureBase(part), f.ensureBase(pub.chainSet)); err != nil {
						return err
					}
				}
				if _, _, err := f.publish(w, &batch, o, pub); err != nil {
					return err
				}
				f.replace(&batch, identity.OwnerHash(o), nil, elems, map[string]*nft.Elem{})
				f.record(&batch, o, kindMasquerade, nil, elems)
			}
			if err := f.Commit(&batch); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// What an attachment costs does not depend on how many there are.
func BenchmarkFilter(b *testing.B) {
	for _, n := range []int{0, 1000, 10000} {
		b.Run(fmt.Sprintf("present=%d", n), func(b *testing.B) {
			w := contract.NewHost(b)
			crowd(b, w, n)
			p := plan.Plan{
				Masquerade{Owner: contract.Owner, From: []netip.Prefix{contract.Prefix("10.1.2.5/24")}},
				publishOf("c1", "net", "10.1.2.5/24", tcp("", 80), PortMapping{Protocol: "udp", HostPort: 81, ContainerPort: 53}),
			}
			remove := func(b *testing.B) {
				if err := p.Remove(b.Context(), w); err != nil {
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
					if err := p.Verify(b.Context(), w); err != nil {
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
	var each []PortMapping
	for i := range 2000 {
		each = append(each, PortMapping{Protocol: "tcp", HostPort: uint16(40000 + i), ContainerPort: uint16(40000 + i)})
	}
	shapes := []struct {
		name  string
		ports []PortMapping
	}{
		{"port", each[:1]},
		{"range", []PortMapping{portRange("", 40000, 41999)}},
		{"all", []PortMapping{{Protocol: "udp", HostPort: 1, HostPortEnd: 65535, ContainerPort: 1}}},
		{"shifted", []PortMapping{{Protocol: "tcp", HostPort: 40000, HostPortEnd: 41999, ContainerPort: 1000}}},
		{"one by one", each},
	}
	for _, others := range []string{"nobody", "1000 ports", "1000 ranges"} {
		b.Run("beside="+others, func(b *testing.B) {
			w := contract.NewHost(b)
			skeleton(b, w)
			switch others {
			case "1000 ports":
				crowd(b, w, 1000)
			case "1000 ranges":
				for i := range 1000 {
					contract.Ensure(b, w, publishOf(strconv.Itoa(i), "crowd", fmt.Sprintf("10.200.%d.%d/16", i/200, i%200+1),
						portRange("", uint16(10000+i*20), uint16(10019+i*20))))
				}
			}
			for _, s := range shapes {
				p := publishOf("c1", "net", "10.1.2.5/24", s.ports...)
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
