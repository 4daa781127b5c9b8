package nameserver

import (
	"net"
	"testing"

	"github.com/fairlead-cni/fairlead/resource/names"
	"github.com/miekg/dns"
)

// TestForgedAnswers: a container answers for the host's name servers. What has another ID, comes from another socket, or
// answers another question does not reach a client.
func TestForgedAnswers(t *testing.T) {
	r := newRig(t)
	r.record(true, "c1", names.Record{Addrs: addrs("10.1.0.2/16")})
	const bad = "203.0.113.66"
	other, err := net.ListenPacket("udp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	newUpstream(t, "127.0.0.2", func(w dns.ResponseWriter, q, m *dns.Msg) {
		forged := m.Copy()
		says(bad)(discard{w}, q, forged)
		if packet, err := forged.Pack(); err == nil {
			other.WriteTo(packet, w.RemoteAddr())
		}
		forged.Id++
		w.WriteMsg(forged)
		says("192.0.2.1")(w, q, m)
	})
	newUpstream(t, "127.0.0.3", func(w dns.ResponseWriter, q, m *dns.Msg) {
		q.Question[0].Name = "elsewhere.example."
		m.SetReply(q)
		says(bad)(w, q, m)
	})
	newUpstream(t, "127.0.0.4", func(w dns.ResponseWriter, q, m *dns.Msg) {
		m.Response = false
		says(bad)(w, q, m)
	})
	for server, want := range map[string]string{
		"127.0.0.2": "192.0.2.1", "127.0.0.3": "SERVFAIL", "127.0.0.4": "SERVFAIL",
	} {
		resolv(t, server)
		if got := r.answer("udp", "www.example.com", dns.TypeA); got != want {
			t.Errorf("with %s: %q, want %q", server, got, want)
		}
	}
}

// discard drops what is written as an answer.
type discard struct{ dns.ResponseWriter }

func (discard) WriteMsg(*dns.Msg) error { return nil }
