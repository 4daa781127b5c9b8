package packetfilter

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// What is large, asleep, ours or without end is dealt with as the kernel would, or it is said that it is not.
func TestVerdictBounds(t *testing.T) {
	var elements, tree []string
	for i := range 3000 {
		elements = append(elements, fmt.Sprintf("10.3.%d.%d", i/256, i%256))
	}
	for i := 10; i > 0; i-- {
		tree = append(tree, fmt.Sprintf("chain c%d { %s; }", i,
			strings.Repeat(fmt.Sprintf("meta random < 1000; jump c%d; ", i+1), 3)))
	}
	forward := "chain forward { type filter hook forward priority 0; policy drop; "
	src, dst := netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("10.3.1.7")
	for _, tc := range []struct {
		name, rules string
		p           Packet
		skip        string
		want        Outcome
		why         string
	}{
		{"a large set, by key", "set s { type ipv4_addr; elements = { " + strings.Join(elements, ", ") + " }; }; " + forward +
			"ip daddr @s accept; }",
			Packet{Src: src, Dst: dst}, "", Accepted, ""},
		{"a large set, and not the key", "set s { type ipv4_addr; elements = { " + strings.Join(elements, ", ") + " }; }; " +
			forward + "ip daddr @s accept; }",
			Packet{Src: src}, "", Undecided, "depends on ip daddr in @s"},
		{"any other element, by key", "map m { type ipv4_addr : verdict; elements = { 10.1.0.5 : drop, * : accept }; }; " +
			forward + "ip daddr vmap @m; }",
			Packet{Src: src, Dst: dst}, "", Accepted, ""},
		{"any other element, and not the key",
			"map m { type ipv4_addr : verdict; elements = { 10.1.0.5 : accept, * : accept }; }; " + forward +
				"ip daddr vmap @m; }",
			Packet{Src: src}, "", Undecided, "depends on ip daddr"},
		{"the same either way", forward + "meta l4proto tcp drop; drop; }", Packet{Src: src}, "", Dropped, ""},
		{"a table that sleeps", "flags dormant; " + forward + "}", Packet{Src: src}, "", Accepted, ""},
		{"ours", forward + "}", Packet{Src: src}, "inet t", Accepted, ""},
		{"another family's", forward + "meta nfproto ipv4 accept; }", Packet{Src: netip.MustParseAddr("fd00::1")}, "",
			Dropped, ""},
		{"more rules than can be followed", "chain c11 { counter; counter; }; " + strings.Join(tree, "; ") + "; " + forward +
			"jump c1; accept; }",
			Packet{Src: src}, "", Undecided, "too many rules"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := nstest.NewNS(t)
			file := filepath.Join(t.TempDir(), "rules")
			if err := os.WriteFile(file, []byte("table inet t { "+tc.rules+"; }\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			nstest.RunIn(t, path, "nft", "-f", file)
			ns, err := kernel.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer ns.Close()
			v, err := Forwarded(ns, tc.p, tc.skip)
			if err != nil || v.Outcome != tc.want || !strings.Contains(v.String(), tc.why) {
				t.Errorf("%v, %v; want %v, %s", v, err, tc.want, tc.why)
			}
		})
	}
}

// Rules that are replaced all the time, by others that say the same, change nothing: neither what is read of two
// generations, nor, where it takes the kernel long to delete the old rules, the new chain that has no policy yet.
func TestVerdictMeanwhile(t *testing.T) {
	for name, chains := range map[string]string{
		"sets": "chain forward { type filter hook forward priority 0; policy drop; ip daddr { 10.0.0.1, 10.0.0.2 } accept; " +
			"ip saddr { 10.0.0.3-10.0.0.9 } jump { tcp dport { 1, 2 } drop; }; };",
		"long transaction": "chain forward { type filter hook forward priority 0; policy drop; }; chain other { " +
			strings.Repeat("tcp dport 1; ", 2000) + "};",
	} {
		t.Run(name, func(t *testing.T) { verdictMeanwhile(t, "table inet t { "+chains+" }\n") })
	}
}

func verdictMeanwhile(t *testing.T, rules string) {
	path := nstest.NewNS(t)
	file := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(file, []byte("table inet t { }\ndelete table inet t\n"+rules), 0o644); err != nil {
		t.Fatal(err)
	}
	nstest.RunIn(t, path, "nft", "-f", file)
	ns, err := kernel.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	stop := make(chan bool)
	go func() {
		defer close(stop)
		for range 20 {
			exec.Command("nsenter", "--net="+path, "nft", "-f", file).Run()
		}
	}()
	p := Packet{Src: netip.MustParseAddr("10.0.0.4"), Dst: netip.MustParseAddr("10.0.0.8"), Proto: kernel.TCP, DstPort: 3}
	asked := 0
	for {
		select {
		case <-stop:
			if asked < 20 {
				t.Errorf("asked %d times", asked)
			}
			return
		default:
		}
		if v, err := Forwarded(ns, p); err != nil || v.Outcome == Accepted {
			t.Fatalf("%v, %v", v, err)
		}
		asked++
	}
}

// TestReceived holds that a packet for the host is asked about at the input hook, and one that is forwarded is not.
func TestReceived(t *testing.T) {
	path := nstest.NewNS(t)
	rules := "table inet t { chain in { type filter hook input priority 0; iifname cni0 udp dport 53 drop; }; }\n"
	file := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(file, []byte(rules), 0o644); err != nil {
		t.Fatal(err)
	}
	nstest.RunIn(t, path, "nft", "-f", file)
	ns, err := kernel.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	src, dst := netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("10.1.0.1")
	p := Packet{In: "cni0", Src: src, Dst: dst, Proto: kernel.UDP, DstPort: 53}
	if v, err := Received(ns, p); err != nil || v.Outcome != Dropped || v.Chain.Name != "in" {
		t.Errorf("%v %v", v, err)
	}
	if v, err := Forwarded(ns, p); err != nil || v.Outcome != Accepted {
		t.Errorf("%v %v", v, err)
	}
	p.DstPort = 80
	if v, err := Received(ns, p); err != nil || v.Outcome != Accepted {
		t.Errorf("%v %v", v, err)
	}
}

// TestArriving holds that what comes to the host is asked about before its destination is translated, and who does
// that.
func TestArriving(t *testing.T) {
	path := nstest.NewNS(t)
	rules := `table ip t {
	chain early { type nat hook prerouting priority dstnat; tcp dport 80 dnat to 10.1.0.5; udp dport 53 redirect to :5353; }
	chain late { type nat hook prerouting priority -90; tcp dport 81 dnat to 10.1.0.5; }
	chain first { type filter hook prerouting priority raw; tcp dport 82 drop; }
	chain forward { type filter hook forward priority 0; tcp dport 83 drop; }
}
table ip ours { chain in { type nat hook prerouting priority dstnat; tcp dport 84 dnat to 10.1.0.5; }; }
`
	file := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(file, []byte(rules), 0o644); err != nil {
		t.Fatal(err)
	}
	nstest.RunIn(t, path, "nft", "-f", file)
	ns, err := kernel.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	p := Packet{In: "up0", Dst: netip.MustParseAddr("192.0.2.2"), Proto: kernel.TCP}
	ask := func(proto byte, port uint16, want Outcome, chain string) {
		t.Helper()
		p.Proto, p.DstPort = proto, port
		if v, err := Arriving(ns, p, -99, "ip ours"); err != nil || v.Outcome != want || v.Chain.Name != chain {
			t.Errorf("port %d: %v %v, want %v by %q", port, v, err, want, chain)
		}
	}
	ask(kernel.TCP, 80, Translated, "early")
	ask(kernel.UDP, 53, Translated, "early")
	ask(kernel.UDP, 80, Accepted, "")
	ask(kernel.TCP, 81, Accepted, "")
	ask(kernel.TCP, 82, Dropped, "first")
	ask(kernel.TCP, 83, Accepted, "")
	ask(kernel.TCP, 84, Accepted, "")
	for _, tool := range []string{"iptables-nft", "iptables-legacy"} {
		if nstest.Missing(tool) != "" {
			continue
		}
		if out, err := nstest.Output(path, exec.Command(tool, "-t", "nat", "-N", "DOCKER")); err != nil {
			t.Logf("%s: %s", tool, out) // this kernel has no ip_tables
			continue
		}
		nstest.RunIn(t, path, tool, "-t", "nat", "-A", "PREROUTING", "-m", "addrtype", "!", "--dst-type", "MULTICAST", "-j",
			"DOCKER")
		nstest.RunIn(t, path, tool, "-t", "nat", "-A", "DOCKER", "!", "-i", "docker0", "-p", "tcp", "--dport", "90", "-j",
			"DNAT", "--to-destination", "172.17.0.2:80")
		ask(kernel.TCP, 90, Translated, "PREROUTING")
		p.In = "docker0"
		ask(kernel.TCP, 90, Accepted, "")
		p.In = "up0"
		nstest.RunIn(t, path, tool, "-t", "nat", "-F")
	}
	p.DstPort = 80
	if v, err := Received(ns, p); err != nil || v.Outcome != Accepted {
		t.Errorf("%v %v", v, err)
	}
}
