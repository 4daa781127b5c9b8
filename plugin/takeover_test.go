package plugin_test

import (
	"crypto/sha512"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

const reference = "/usr/lib/cni"

// eachIPTables runs fn for both variants of iptables, each as what "iptables" is, with an empty packet filter.
func eachIPTables(t *testing.T, fn func(t *testing.T, variant string)) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			dir := t.TempDir()
			for _, family := range []string{"iptables", "ip6tables"} {
				for _, what := range []string{"", "-save", "-restore"} {
					path, err := exec.LookPath(family + "-" + variant + what)
					if err != nil {
						t.Fatal(err)
					}
					if err := os.Symlink(path, filepath.Join(dir, family+what)); err != nil {
						t.Fatal(err)
					}
				}
				out, err := exec.Command("nsenter", "--net="+nstest.NewNS(t), family+"-"+variant, "-t", "nat", "-L",
					"-n").CombinedOutput()
				if err != nil {
					nstest.Skip(t, string(out))
				}
			}
			if _, err := os.ReadFile("/proc/thread-self/net/ip_tables_names"); variant == "legacy" && err != nil {
				nstest.Skip(t, err) // in a user namespace it is the first root's alone, and nobody can tell what tables there are
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			empty := func() {
				nstest.Run(t, "nft", "flush", "ruleset")
				nstest.Run(t, "sh", "-c", `for p in iptables ip6tables; do for t in nat filter; do
					grep -qx $t /proc/net/${p%tables}_tables_names 2>/dev/null && { $p-legacy -t $t -F; $p-legacy -t $t -X; }; done; done; true`)
			}
			empty()
			t.Cleanup(empty)
			fn(t, variant)
		})
	}
}

// filters are what packet filters hold, of both variants.
func filters(t *testing.T) string {
	t.Helper()
	return nstest.Run(t, "sh", "-c", `
		for v in nft legacy; do for p in iptables ip6tables; do for t in nat filter; do $p-$v-save -t $t 2>/dev/null | grep '^-A'; done; done; done
		nft list ruleset 2>/dev/null | grep -v '^#'; true`)
}

// TestTakeOver attaches by the reference plugins and detaches by ours: nothing is left that their own DEL would
// not leave.
//
// clause: P12
func TestTakeOver(t *testing.T) {
	nstest.NeedProgram(t, reference+"/bridge")
	eachIPTables(t, func(t *testing.T, variant string) {
		c := chain{name: "takeover", plugins: []string{
			`"type":"bridge","bridge":"br-take","isGateway":true,"ipMasq":true,"macspoofchk":true,` + hostLocal,
			`"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":5353,"containerPort":53,"protocol":"udp"}]}`,
			`"type":"firewall"`,
		}}
		for i := range c.plugins {
			c.plugins[i] = strings.Replace(c.plugins[i], `"type"`, `"cniVersion":"1.0.0","type"`, 1)
		}
		ours := newRunner(t, c)
		theirs := *ours
		theirs.dir = reference
		attached := func(how string, del func(a *attachment)) {
			t.Helper()
			a := &attachment{id: "c1", netns: nstest.NewNS(t)}
			ours.must("add by the reference", theirs.add(a))
			for _, want := range []string{"10.77.0.", "CNI-DN-", "cni-br-iface-c1-eth0"} {
				if !strings.Contains(filters(t), want) {
					t.Fatalf("the reference made no %s", want)
				}
			}
			del(a)
			for _, gone := range []string{"10.77.0.", "fd00:77::", "CNI-DN-", "c1", "name: "} {
				if s := filters(t); strings.Contains(s, gone) {
					t.Errorf("%s: DEL left %s:\n%s", how, gone, s)
				}
			}
			if s := state(t); strings.Contains(s, "veth") || strings.Contains(s, "life-takeover/10.77.0.2") {
				t.Errorf("%s: DEL left\n%s", how, s)
			}
		}
		attached("with a result", func(a *attachment) { ours.must("del", ours.del(a)) })
		attached("without a result", func(a *attachment) {
			ours.must("del",
				ours.del(&attachment{id: a.id, netns: a.netns}))
		})
		attached("without a result, the namespace gone", func(a *attachment) {
			nstest.RunIn(t, a.netns, "ip", "link", "del", "eth0") // as the kernel does, but after an unknown time
			if err := nstest.RemoveNS(a.netns); err != nil {
				t.Fatal(err)
			}
			ours.must("del", ours.del(&attachment{id: a.id, netns: a.netns}))
		})

		// A port that the reference publishes for a living container is nobody else's.
		a := &attachment{id: "c1", netns: nstest.NewNS(t)}
		ours.must("add by the reference", theirs.add(a))
		b := &attachment{id: "c2", netns: nstest.NewNS(t)}
		if err := ours.add(b); err == nil || !strings.Contains(err.Error(), "life-takeover/c1") ||
			!strings.Contains(err.Error(), "8080") {
			t.Errorf("add of a second container: %v", err)
		}
		ours.must("del", ours.del(b))
		ours.must("del", ours.del(a))
		ours.must("add", ours.add(b))
		ours.must("check", ours.check(b))
		ours.must("del", ours.del(b))
	})
}

// TestTakeOverNFT is the same for what newer versions of the reference make by nft(8).
func TestTakeOverNFT(t *testing.T) {
	nstest.Run(t, "nft", "flush", "ruleset")
	t.Cleanup(func() { nstest.Run(t, "nft", "flush", "ruleset") })
	r := newRunner(t, chain{name: "takeover", plugins: []string{
		`"type":"bridge","bridge":"br-take","isGateway":true,"ipMasq":true,` + hostLocal,
		`"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80},{"hostPort":5353,"containerPort":53,"protocol":"udp"}]}`,
	}})
	load := func(file string) {
		t.Helper()
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(file)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	// The hashes are of life-takeover, and of eth0:c1 and eth0:other.
	load(`table inet cni_plugins_masquerade { chain masq_checks { comment "Masquerade traffic from certain IPs to any (multicast) IP outside their subnet";
			ip saddr == 10.77.0.200 ip daddr != 10.77.0.0/24 masquerade comment "` + hashed("life-takeover") + `-` + hashed("eth0:c1") + `, net: life-takeover, if: eth0, id: c1"
			ip6 saddr == fd00:77::200 ip6 daddr != fd00:77::/64 masquerade comment "` + hashed("life-takeover") + `-` + hashed("eth0:c1") + `, net: life-takeover, if: eth0, id: c1"
			ip saddr == 10.77.0.9 ip daddr != 10.77.0.0/24 masquerade comment "` + hashed("life-takeover") + `-` + hashed("eth0:other") + `, net: life-takeover, if: eth0, id: other" 
}
}
		table ip cni_hostport { chain hostports {
			tcp dport 8080 dnat to 10.77.0.200:80 comment "c1"
			udp dport 5353 dnat to 10.77.0.200:53 comment "c1"
			ip daddr 192.0.2.1 tcp dport 90 dnat to 10.77.0.9:80 comment "other"
}
			chain masquerading { type nat hook postrouting priority srcnat; ip saddr 10.77.0.200 ip daddr 10.77.0.200 masquerade comment "c1"; ip saddr 127.0.0.1 ip daddr 10.77.0.200 masquerade comment "c1" 
}
}
		table ip6 cni_hostport { chain hostports { tcp dport 8080 dnat to [fd00:77::200]:80 comment "c1" 
}
}
		table bridge nat { chain PREROUTING { type filter hook prerouting priority -300;
}
			chain cni-br-iface-c1-eth0-mac { ether saddr 02:00:00:00:00:01 return comment "macspoofchk-c1-eth0"; drop comment "macspoofchk-c1-eth0";
}
			chain cni-br-iface-c1-eth0 { jump cni-br-iface-c1-eth0-mac comment "macspoofchk-c1-eth0"; 
}
}
		add rule bridge nat PREROUTING iifname "vethold" jump cni-br-iface-c1-eth0 comment "macspoofchk-c1-eth0"
		add rule bridge nat PREROUTING iifname "vethgone" jump cni-br-iface-c1-eth0 comment "macspoofchk-c1-eth0"`)
	b := &attachment{id: "c2", netns: nstest.NewNS(t)}
	if err := r.add(b); err == nil || !strings.Contains(err.Error(), "8080") ||
		!strings.Contains(err.Error(), "container c1") || !strings.Contains(err.Error(), "cni_hostport") {
		t.Errorf("a port that the reference publishes: %v", err)
	}
	r.must("del", r.del(b))
	r.must("del of what the reference made", r.del(&attachment{id: "c1"}))
	s := nstest.Run(t, "nft", "list", "ruleset")
	for _, gone := range []string{`"c1"`, "-c1-", "10.77.0.200", "fd00:77::200", "vethold"} {
		if strings.Contains(s, gone) {
			t.Errorf("DEL left %s:\n%s", gone, s)
		}
	}
	for _, stays := range []string{"10.77.0.9:80", "id: other"} {
		if !strings.Contains(s, stays) {
			t.Errorf("DEL took %s away:\n%s", stays, s)
		}
	}
	r.must("add", r.add(b))
	r.must("del", r.del(b))
	r.must("gc", r.gc("c2"))
	if s := nstest.Run(t, "nft", "list", "ruleset"); strings.Contains(s, "id: other") {
		t.Errorf("GC left:\n%s", s)
	}
}

func hashed(text string) string {
	h := sha512.Sum512([]byte(text))
	return hex.EncodeToString(h[:8])
}
