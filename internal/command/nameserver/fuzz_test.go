package nameserver

import (
	"context"
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/fairlead-cni/fairlead/resource/names"
	"github.com/miekg/dns"
)

// FuzzAnswer: a question of any content, and a record of any content, get an answer that the client can read, to what it
// asked, with nothing of another network.
func FuzzAnswer(f *testing.F) {
	ours := names.Record{Network: "net", ContainerID: "c", IfName: "eth0", Names: []string{"db"}, Aliases: []string{"pool"},
		Domain: "test", Addrs: addrs("10.1.0.3/24", "fd00::3/64"), Gateways: []netip.Addr{netip.MustParseAddr(gw4)}}
	hidden := names.Record{Network: "other", ContainerID: "x", Names: []string{"secret"}, Addrs: addrs("10.2.0.9/24"),
		Gateways: []netip.Addr{netip.MustParseAddr("10.2.0.1")}}
	for _, r := range []names.Record{ours, {}, {Network: "net", Addrs: []netip.Prefix{{}}, Gateways: []netip.Addr{{}}}} {
		record, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		for _, q := range []struct {
			name string
			typ  uint16
		}{{"db.test.", dns.TypeA}, {"POOL.", dns.TypeANY}, {"3.0.1.10.in-addr.arpa.", dns.TypePTR}, {".", dns.TypeNS},
			{"secret.", dns.TypeAAAA}} {
			m := new(dns.Msg).SetQuestion(q.name, q.typ)
			m.RecursionDesired = false // nothing is forwarded
			m.SetEdns0(4096, true)
			b, err := m.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b, record)
		}
	}
	client := netip.MustParseAddr("10.1.0.3")
	f.Fuzz(func(t *testing.T, question, record []byte) {
		q := new(dns.Msg)
		if q.Unpack(question) != nil {
			return
		}
		q.RecursionDesired = false
		s := &Server{ctx: context.Background(), index: newIndex()}
		s.index.put("ours", &ours)
		s.index.put("hidden", &hidden)
		var r names.Record
		if json.Unmarshal(record, &r) == nil && r.Network != hidden.Network && r.ContainerID != hidden.ContainerID {
			s.index.put("theirs", &r)
		}

		a := s.answer(q, netip.MustParseAddr(gw4), client)
		a.Truncate(dns.MinMsgSize)
		b, err := a.Pack()
		if err != nil {
			t.Fatalf("%v is answered by %v: %v", q, a, err)
		}
		got := new(dns.Msg)
		if err := got.Unpack(b); err != nil || !got.Response || got.Id != q.Id {
			t.Errorf("%v is answered by %v, %v", q, got, err)
		}
		for _, rr := range got.Answer {
			if a, ok := rr.(*dns.A); ok && a.A.String() == "10.2.0.9" && !holds(r, "10.2.0.9") {
				t.Errorf("%v of another network is answered by %v", q, got)
			}
		}

		s.index.put("theirs", nil)
		s.index.put("ours", nil)
		s.index.put("hidden", nil)
		if left := len(s.index.zones) + len(s.index.gateways) + len(s.index.containers) + len(s.index.records); left > 0 {
			t.Errorf("%s leaves %d entries", record, left)
		}
	})
}

func holds(r names.Record, addr string) bool {
	for _, p := range r.Addrs {
		if p.Addr().String() == addr {
			return true
		}
	}
	return false
}
