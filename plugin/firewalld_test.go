package plugin_test

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

func (s *site) sources(zone string) string {
	s.Helper()
	return strings.TrimSpace(nstest.Run(s, "firewall-cmd", "--zone="+zone, "--list-sources"))
}

// TestFirewalld lets containers through a real firewalld, and takes them out of its zone by all that takes an
// attachment away.
//
// clause: P12 P22
func TestFirewalld(t *testing.T) {
	s := newSite(t)
	stop := nstest.StartFirewalld(s, s.host)
	const auto, conf = `"type":"firewall"`, `"type":"firewall","backend":"firewalld"`
	s.network("c")
	s.add("c1")
	a := s.network("a", published, auto)
	s.add("a1")
	for v, host := range []string{"192.0.2.1", "[2001:db8::1]"} {
		out := []string{"192.0.2.2:80", "[2001:db8::2]:80"}[v]
		s.expect("to the outside, without firewall", "c1", out, "")
		s.expect("to the outside", "a1", out, "outside")
		s.expect("from outside, published", "outside", host+":8080", "a1")
	}
	if got := s.sources("trusted"); got != "10.81.0.2/32 fd00:81::2/128" {
		t.Errorf("zone trusted has %q", got)
	}
	a.must("status", a.status())
	a.must("check", a.check(s.containers["a1"]))

	nstest.Run(t, "firewall-cmd", "--reload")
	if err := a.check(s.containers["a1"]); err == nil ||
		!strings.Contains(err.Error(), "firewalld zone trusted: source 10.81.0.2/32 is missing") {
		t.Errorf("check after a reload: %v", err)
	}

	b := s.network("b", conf)
	s.add("b1")
	a.must("del without a result", a.del(&attachment{id: "a1"}))
	if got := s.sources("trusted"); got != "10.82.0.2/32 fd00:82::2/128" {
		t.Errorf("after DEL zone trusted has %q", got)
	}
	a.must("gc of another network", a.gc())
	b.must("check", b.check(s.containers["b1"]))
	b.must("gc", b.gc())
	if got := s.sources("trusted"); got != "" {
		t.Errorf("after GC zone trusted has %q", got)
	}

	// In another zone, in one that there is not, and without firewalld.
	nstest.Run(t, "firewall-cmd", "--zone=work", "--add-source=10.84.0.2/32")
	refused := func(r *runner, want string) {
		t.Helper()
		x := &attachment{id: "x", netns: nstest.NewNS(t)}
		if err := r.add(x); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("add: %v, want %q", err, want)
		}
		r.must("del of what was refused", r.del(x))
		if got := s.sources("trusted"); got != "" {
			t.Errorf("a refused ADD left %q in the zone", got)
		}
	}
	refused(s.network("d", conf), `10.84.0.2 is in zone "work" of firewalld already`)
	refused(s.network("e", conf+`,"firewalldZone":"nonesuch"`), `firewalldZone: "nonesuch": firewalld has no such zone`)
	s.add("b1")
	stop()
	if err := b.status(); err == nil || !strings.Contains(err.Error(), "firewalld does not run") {
		t.Errorf("status without firewalld: %v", err)
	}
	b.must("del without firewalld", b.del(s.containers["b1"]))
}
