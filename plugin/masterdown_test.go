package plugin_test

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// A master that is down is not the attachment's to set up: the attachment is made, it is warned of, nothing is waited
// for, and packets flow when somebody sets the master up.
func TestMasterDown(t *testing.T) {
	for _, kind := range []string{"macvlan", "macvtap", "ipvlan"} {
		t.Run(kind, func(t *testing.T) {
			nstest.Need(t, kind)
			wire := nstest.NewNS(t)
			r := newRunner(t, chain{name: "down-" + kind, plugins: []string{`"type":"` + kind + `","master":"ens7",` + hostLocal}})
			r.host = nstest.NewNS(t)
			nstest.RunIn(t, r.host, "ip", "link", "add", "ens7", "type", "veth", "peer", "name", "wire", "netns",
				strings.TrimPrefix(wire, "/run/netns/"))
			nstest.RunIn(t, wire, "sh", "-ec",
				"ip addr add 10.77.0.1/24 dev wire; ip addr add fd00:77::1/64 dev wire nodad; ip link set wire up")
			var said bytes.Buffer
			r.start = func(cmd *exec.Cmd) error {
				out := cmd.Stderr.(*bytes.Buffer)
				err := cmd.Run()
				said.Write(out.Bytes())
				return err
			}
			warned := func(verb string) {
				t.Helper()
				if !strings.Contains(said.String(), "the master is down") ||
					strings.Contains(said.String(), "has no carrier yet") {
					t.Errorf("%s said %s", verb, said.String())
				}
				said.Reset()
			}
			a := &attachment{id: "c1", netns: nstest.NewNS(t)}
			r.must("STATUS", r.status())
			warned("STATUS")
			r.must("ADD", r.add(a))
			warned("ADD")
			r.must("CHECK", r.check(a))
			warned("CHECK")
			if out := nstest.RunIn(t, r.host, "ip", "-br", "link", "show", "ens7"); strings.Contains(out, "UP") {
				t.Errorf("the master is %s", out)
			}
			nstest.RunIn(t, r.host, "ip", "link", "set", "ens7", "up")
			if kind != "macvtap" { // whose packets are a program's
				nstest.RunIn(t, wire, "ping", "-qc1", "-w600", a.text("IP4"))
				nstest.RunIn(t, wire, "ping", "-qc1", "-w600", a.text("IP6"))
			}
			r.must("CHECK", r.check(a))
			if said.Len() > 0 {
				t.Errorf("with a master that is up CHECK said %s", said.String())
			}
			r.must("DEL", r.del(a))
		})
	}
}
