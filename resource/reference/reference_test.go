package reference

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"github.com/fairlead-cni/fairlead/spec"
)

func published(port publish.Mapping) publish.PortsIPTables {
	return publish.PortsIPTables{MarkBit: 13,
		Ports: publish.Ports{Owner: contract.Owner, SNAT: true, Mappings: []publish.Mapping{port}}}
}

// GC removes by what is remembered and, of the reference's, by the comments; what is valid stays.
//
// clause: P22
func TestSweepIPTables(t *testing.T) {
	contract.EachIPTables(t, func(t *testing.T, v xtables.Variant) {
		w := contract.NewWorld(t)
		contract.ChooseVariant(t, w, v)
		make := func(id, ifName string, n byte) []plan.Remover {
			p := published(publish.Mapping{Protocol: "tcp", HostPort: 8000 + uint16(n), ContainerPort: 80})
			p.Owner.ContainerID, p.Owner.IfName = id, ifName
			p.To4, p.To6 = contract.Prefix("10.1.2.10"+string('0'+rune(n))+"/24"), contract.Prefix("fd00::10"+
				string('0'+rune(n))+"/64")
			m := masquerade.SourcesIPTables{Sources: masquerade.Sources{Owner: p.Owner, From: p.Addrs()}}
			contract.Ensure(t, w, p)
			contract.Ensure(t, w, m)
			return []plan.Remover{p, m}
		}
		lives := make("lives", "eth0", 1)
		make("lives", "eth1", 2) // of which a runtime says nothing
		former := make("former", "eth0", 3)
		make("dies", "eth0", 4)
		other := published(publish.Mapping{Protocol: "tcp", HostPort: 9000, ContainerPort: 80})
		other.Owner = spec.Owner{Network: "other", ContainerID: "dies", IfName: "eth0"}
		other.To4, other.To6 = contract.Prefix("10.9.9.105/24"), contract.Prefix("fd00:9::105/64")
		contract.Ensure(t, w, other)
		if err := w.Store.Delete(publish.IPTablesRecord, former[0].(publish.PortsIPTables).Owner); err != nil {
			t.Fatal(err)
		}
		if err := w.Store.Delete(masquerade.IPTablesRecord, former[0].(publish.PortsIPTables).Owner); err != nil {
			t.Fatal(err)
		}
		err := sweep(t.Context(), w, "net", []spec.Owner{{Network: "net", ContainerID: "lives", IfName: "eth0"}})
		if err != nil {
			t.Fatal(err)
		}
		s := contract.IPTablesState(t, w, v)
		for _, gone := range []string{".102", "::102", ".103", "::103", ".104", "::104", `"former\"`} {
			if strings.Contains(s, gone) {
				t.Errorf("GC left %s:\n%s", gone, s)
			}
		}
		for _, r := range lives {
			contract.Verify(t, w, r)
		}
		contract.Verify(t, w, other)
	})
}

// BenchmarkNothingOfTheReference is what DEL pays on a host that never had the reference: questions to the kernel.
func BenchmarkNothingOfTheReference(b *testing.B) {
	host, err := kernel.Open("") // of the test alone, and entered by nobody, as in a plugin
	if err != nil {
		b.Fatal(err)
	}
	defer host.Close()
	w := &kernel.World{Host: host, Store: record.Store{Dir: b.TempDir()}}
	all := plan.Plan{publish.PortsIPTables{Ports: publish.Ports{Owner: contract.Owner}},
		Ports{Owner: contract.Owner}, masquerade.SourcesIPTables{Sources: masquerade.Sources{Owner: contract.Owner}},
		Masquerade{Owner: contract.Owner}, SpoofCheck{Owner: contract.Owner}, Firewall{Owner: contract.Owner}}
	for _, r := range all {
		b.Run(strings.TrimPrefix(fmt.Sprintf("%T", r), "resource."), func(b *testing.B) {
			for b.Loop() {
				if err := engine.Undo(b.Context(), w, plan.Plan{r}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
