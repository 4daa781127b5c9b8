package plugin_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// TestPeerAmongListed gives plugins a result that lists another container's link, and one more, before the container's
// own: firewall isolates, and bridge makes a port of, the one that is the other end of the container's veth.
//
// clause: P18 P23
func TestPeerAmongListed(t *testing.T) {
	withoutBridges(t)
	one, other := nstest.NewNS(t), nstest.NewNS(t)
	nstest.Run(t, "sh", "-ec", `ip link add loose type veth peer name loose1
		ip link add br-made type bridge; ip link set br-made up; ip addr add 10.98.0.1/24 dev br-made
		for c in own:`+filepath.Base(one)+` others:`+filepath.Base(other)+`; do
			ip link add ${c%:*} type veth peer name eth0 netns ${c#*:}; ip link set ${c%:*} up; ip -n ${c#*:} link set eth0 up
		done; ip -n `+filepath.Base(one)+` addr add 10.98.0.2/24 dev eth0`)
	prev := json.RawMessage(`{"cniVersion":"1.1.0","interfaces":[{"name":"others"},{"name":"loose"},{"name":"own"},{"name":"eth0","sandbox":"` + one + `"}],"ips":[{"address":"10.98.0.2/24","interface":3}]}`)
	r := newRunner(t, chain{name: "listed", plugins: []string{`"type":"bridge","bridge":"br-made"`, `"type":"firewall","backend":"nftables","ingressPolicy":"isolated"`}})
	a := &attachment{id: "one", netns: one, prev: prev}
	masters := func() string {
		return nstest.Run(t, "sh", "-ec", `for l in own others loose; do ip -o link show $l | grep -o 'master [^ ]*' || echo none; done`)
	}

	out, err := r.run(0, "ADD", a, "")
	r.must("add", err)
	if s := masters(); s != "master br-made\nnone\nnone\n" {
		t.Errorf("the masters of the container's own link, another's and one more are %q", s)
	}
	nstest.Run(t, "ip", "link", "set", "others", "master", "br-made")
	a.prev = out
	out, err = r.run(1, "ADD", a, "")
	r.must("add", err)
	a.prev = out
	if s := nstest.Run(t, "nft", "list", "set", "bridge", "fairlead", "isolated_ports"); !strings.Contains(s, `"own"`) || strings.Contains(s, `"others"`) {
		t.Errorf("isolated are %s", s)
	}
	r.must("check", r.check(a))
	r.must("del", r.del(a))
	if s := masters(); s != "none\nmaster br-made\nnone\n" {
		t.Errorf("after DEL, the masters are %q", s)
	}
	nstest.Run(t, "ip", "link", "del", "loose")
}
