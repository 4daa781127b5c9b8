package plugin_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// TestStickyConflict has a machine on the segment take the address that a key would get. The key gets another one the
// next time, and that again and again.
//
// clause: P8 P11 K11
func TestStickyConflict(t *testing.T) {
	for _, c := range []struct {
		name, ranges string
		has, want    []string // the machine's addresses, and the container's in the end
	}{
		{"IPv4", `[{"subnet":"10.77.0.0/24"}]`, []string{"10.77.0.2/24"}, []string{"10.77.0.3/24"}},
		{"IPv6", `[{"subnet":"fd00:77::/64"}]`, []string{"fd00:77::2/64"}, []string{"fd00:77::3/64"}},
		{"both", `[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]`, []string{"fd00:77::2/64"}, []string{"10.77.0.2/24", "fd00:77::3/64"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("CNI_ARGS", "IgnoreUnknown=1;POD=web")
			nstest.Need(t, "macvlan")
			lan := nstest.NewNS(t)
			nstest.Run(t, "sh", "-ec", "ip link add ens3 type veth peer name wire netns "+strings.TrimPrefix(lan, "/run/netns/")+
				"; sysctl -qw net.ipv6.conf.ens3.disable_ipv6=1; ip link set ens3 up")
			t.Cleanup(func() { nstest.Run(t, "ip", "link", "del", "ens3") })
			nstest.RunIn(t, lan, "sh", "-ec", "ip link set wire up")
			for _, a := range c.has {
				flags := ""
				if strings.Contains(a, ":") {
					flags = " nodad"
				}
				nstest.RunIn(t, lan, "sh", "-ec", "ip addr add "+a+" dev wire"+flags)
			}
			r := newRunner(t, chain{name: "sticky-" + c.name, plugins: []string{`"type":"macvlan","master":"ens3","conflictDetection":"probe","ipam":{"type":"host-local","ranges":[` + c.ranges + `],"sticky":{"key":["POD"]}}`}})
			a := &attachment{id: "a", netns: nstest.NewNS(t)}
			var e *spec.Error
			if err := r.add(a); !errors.As(err, &e) || e.Code != spec.CodeTryAgain ||
				!strings.Contains(e.Msg, strings.Split(c.has[0], "/")[0]) {
				t.Fatalf("the machine's address: %v", err)
			}
			r.must("del", r.del(a))
			for _, id := range []string{"b", "c"} {
				a := &attachment{id: id, netns: nstest.NewNS(t)}
				r.must("add", r.add(a))
				have := nstest.RunIn(t, a.netns, "ip", "-br", "addr", "show", "dev", "eth0")
				for _, want := range c.want {
					if !strings.Contains(have, want) {
						t.Errorf("%s has %s, want %s", id, have, want)
					}
				}
				r.must("check", r.check(a))
				r.must("del", r.del(a))
			}
		})
	}
}
