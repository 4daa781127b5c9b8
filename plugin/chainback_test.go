package plugin_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// TestChainTakesBack: where a plugin of another program fails in a chain, that plugin and all before it are asked to
// take back what they did, the last one first. A plugin after it is asked for nothing.
//
// clause: R4 P11
func TestChainTakesBack(t *testing.T) {
	c := asChain(chain{"back", []string{listed(t, "bridge").plugins[0], `"type":"one"`, `"type":"two"`, `"type":"broken"`,
		`"type":"after"`}, nil})
	r := newRunner(t, c)
	withoutBridges(t)
	diary := filepath.Join(t.TempDir(), "diary")
	result := `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"'$CNI_NETNS'"}],` +
		`"ips":[{"address":"10.77.0.200/24","interface":0}]}`
	for _, name := range []string{"one", "two", "broken", "after"} {
		fails := ""
		if name == "broken" {
			fails = `[ $CNI_COMMAND != ADD ] || { echo '{"cniVersion":"1.1.0","code":111,"msg":"no such luck"}'; exit 1; }`
		}
		r.program(name, `
cat >/dev/null
echo $CNI_COMMAND `+name+` >>`+diary+`
`+fails+`
[ $CNI_COMMAND != ADD ] || echo '`+result+`'
`)
	}
	err := r.add(&attachment{id: "c1", netns: nstest.NewNS(t)})
	if err == nil || !strings.Contains(err.Error(), "no such luck") {
		t.Fatalf("ADD: %v", err)
	}
	b, err := os.ReadFile(diary)
	want := []string{"ADD one", "ADD two", "ADD broken", "DEL broken", "DEL two", "DEL one"}
	if got := strings.TrimSpace(string(b)); err != nil || got != strings.Join(want, "\n") {
		t.Errorf("the plugins were asked (%v):\n%s\nwant:\n%s", err, got, strings.Join(want, "\n"))
	}
}

// TestChainLooksAgain: what a plugin of another program does to the links on the host, the plugins after it see.
//
// clause: R1
func TestChainLooksAgain(t *testing.T) {
	bandwidth := listed(t, "bandwidth").plugins
	c := asChain(chain{"again", []string{bandwidth[0], `"type":"tuning","mtu":1300`, `"type":"renames"`, bandwidth[1]}, nil})
	r := newRunner(t, c)
	withoutBridges(t)
	r.program("renames", `
cat >/dev/null
[ $CNI_COMMAND != DEL ] || exit 0
dev=$(ip -br link show type veth | cut -d@ -f1)
ip link set $dev down && ip link set $dev name web0 up
echo '{"cniVersion":"1.1.0","interfaces":[{"name":"web0"},{"name":"eth0","sandbox":"'$CNI_NETNS'"}],"ips":[{"address":"10.77.0.200/24","interface":1}]}'
`)
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	r.must("ADD", r.add(a))
	if limits := nstest.Run(t, "tc", "qdisc", "show", "dev", "web0"); !strings.Contains(limits, "tbf") {
		t.Errorf("the renamed link has no limit:\n%s", limits)
	}
	r.must("DEL", r.del(a))
}
