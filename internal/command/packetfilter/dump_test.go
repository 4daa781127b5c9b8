package packetfilter

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// TestDump holds that the rules and elements of all programs are written, in nft(8)'s words as far as these are known.
func TestDump(t *testing.T) {
	nstest.NeedProgram(t, "nft")
	path := nstest.NewNS(t)
	file := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(file, []byte(`
table inet mine {
	map ports { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
		elements = { 192.0.2.1 . tcp . 8080 comment "web" : 10.1.2.3 . 80 } }
	map ways { type ifname : verdict
		elements = { "eth0" : jump side } }
	set cards { type ether_addr
		elements = { 02:00:00:00:00:01, 02:00:00:00:00:02, 02:00:00:00:00:03 } }
	set marks { type mark; elements = { 0x00001234 } }
	set many { type mark; flags interval; elements = { 0x00005600-0x000056ff } }
	chain numbers { meta mark 0x00000012 drop; meta mark > 0x00000345 accept; meta skuid 1000 accept;
		meta length 100-1500 accept; @nh,32,32 0x0a4d2108 drop; ip protocol tcp meta mark 0x700-0x7ff drop; }
	chain side { ip6 saddr 2001:db8::/32 drop comment "ours"; }
	chain guard { type filter hook forward priority 10; policy drop
		iifname vmap @ways
		ip daddr 10.1.0.0/16 tcp dport 80 accept; }
}
table bridge other { set none { type ipv6_addr; }; }
`), 0o600); err != nil {
		t.Fatal(err)
	}
	nstest.RunIn(t, path, "nft", "-f", file)
	ns, err := kernel.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var b bytes.Buffer
	if err := DumpNFT(ns, &b, 2); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"table inet mine {",
		`192.0.2.1 . tcp . 8080 : 10.1.2.3 . 80 comment "web"`, `"eth0" : jump side`,
		"meta mark 0x12 drop", "meta mark > 0x345 accept", "meta skuid 1000 accept", "0x0a4d2108 drop",
		"meta length >= 100 <= 1500 accept", "meta mark >= 0x700 <= 0x7ff drop", "0x1234", "0x5600",
		"and 1 more elements", `ip6 saddr 2001:db8::/32 drop comment "ours" # `, "hook 2 priority 10 policy drop",
		"ip daddr 10.1.0.0/16 tcp dport 80 accept # ", "table bridge other {"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("nothing of %q in\n%s", want, b.String())
		}
	}
	nstest.NeedProgram(t, "iptables-legacy")
	if out, err := nstest.Output(path, exec.Command("sh", "-ec", `iptables-legacy -N SIDE
		iptables-legacy -P FORWARD DROP; iptables-legacy -A FORWARD -s 10.9.0.0/16 -j SIDE; iptables-legacy -A SIDE -j ACCEPT
		iptables-legacy -A OUTPUT -d 10.8.0.1 -j DROP`)); err != nil {
		nstest.Skip(t, "no legacy iptables: ", string(out))
	}
	b.Reset()
	if err := DumpLegacy(ns, &b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"iptables-legacy -t filter {\n",
		"chain FORWARD policy drop {\n\t\tip saddr 10.9.0.0/16 jump SIDE # 1\n",
		"chain SIDE {\n\t\taccept # 1\n",
		"chain OUTPUT policy accept {\n\t\tip daddr 10.8.0.1 drop # 1\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("nothing of %q in\n%s", want, b.String())
		}
	}
}
