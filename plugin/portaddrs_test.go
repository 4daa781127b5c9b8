package plugin_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// TestOneBridgeTwoLists has two lists, with overlapping ranges, put containers on one bridge: the address of one that
// lives is refused, and the error says whose it is. What goes, goes with its mark. What was configured by hand with
// both is warned about.
func TestOneBridgeTwoLists(t *testing.T) {
	host := nstest.NewNS(t)
	nstest.RunIn(t, host, "ip", "link", "set", "lo", "up")
	at := func(name, ipam string) *runner {
		r := newRunner(t, chain{"share-" + name, []string{`"type":"bridge","bridge":"br1","ipMasq":true,"isGateway":true,` + ipam}, nil})
		r.host = host
		return r
	}
	container := func(id string) *attachment { return &attachment{id: id, netns: nstest.NewNS(t)} }
	ips := func(a *attachment) string {
		var res struct{ IPs []struct{ Address string } }
		if err := json.Unmarshal(a.prev, &res); err != nil {
			t.Fatal(err)
		}
		all := []string{}
		for _, ip := range res.IPs {
			all = append(all, ip.Address)
		}
		return strings.Join(all, " ")
	}
	refused := func(r *runner, a *attachment, whose string) {
		t.Helper()
		err := r.add(a)
		if err == nil || !strings.Contains(err.Error(), whose) {
			t.Errorf("want a refusal that names %s: %v", whose, err)
		}
	}
	one, two := at("one", hostLocal), at("two", hostLocal)
	a, b := container("c1"), container("c2")
	one.must("add", one.add(a))
	refused(two, b, "share-one/c1/eth0")
	two.must("add again, with the next address", two.add(b))
	if ips(a) == ips(b) {
		t.Errorf("both have %s", ips(a))
	}
	for _, x := range []struct {
		r *runner
		a *attachment
	}{{one, a}, {two, b}} {
		x.r.must("check", x.r.check(x.a))
	}

	static := func(name, address string) *runner {
		return at(name, `"ipam":{"type":"static","addresses":[{"address":"`+address+`","gateway":"10.77.0.1"}]}`)
	}
	refused(static("hand", strings.Fields(ips(b))[0]), container("c3"), "share-two/c2/eth0")
	vip, vip2 := static("vip", "10.77.0.200/24"), static("vip2", "10.77.0.200/24")
	c, d := container("c4"), container("c5")
	if s := vip.addSaying(c); s != "" {
		t.Errorf("by hand, alone: %s", s)
	}
	if s := vip2.addSaying(d); !strings.Contains(s, "10.77.0.200") || !strings.Contains(s, "share-vip/c4/eth0") {
		t.Errorf("by hand, twice: %s", s)
	}
	one.must("del", one.del(a))
	same := at("same", `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.77.0.0/24","rangeStart":"`+strings.TrimSuffix(strings.Fields(ips(a))[0], "/24")+`"}]]}`)
	e := container("c6")
	same.must("add of an address that is free again", same.add(e))
	for r, x := range map[*runner]*attachment{two: b, vip: c, vip2: d, same: e} {
		r.must("del", r.del(x))
	}
	if links := nstest.RunIn(t, host, "ip", "link"); strings.Contains(links, "altname") {
		t.Errorf("left:\n%s", links)
	}
}

// TestManyStaticAddresses gives a container more addresses than the kernel takes alternative names for a link: they are
// not reserved, ADD says so, and everything else is as with few.
func TestManyStaticAddresses(t *testing.T) {
	var list []string
	for i := range 512 {
		list = append(list, fmt.Sprintf(`{"address":"10.77.%d.%d/16","gateway":"10.77.255.1"}`, 1+i/250, 1+i%250))
	}
	r := newRunner(t, chain{"many", []string{`"type":"bridge","bridge":"br1","ipMasq":true,"isGateway":true,"ipam":{"type":"static","addresses":[` +
		strings.Join(list, ",") + `]}`}, nil})
	r.host = nstest.NewNS(t)
	nstest.RunIn(t, r.host, "ip", "link", "set", "lo", "up")
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	if s := r.addSaying(a); !strings.Contains(s, "512 addresses") {
		t.Errorf("said %q", s)
	}
	r.must("check", r.check(a))
	for _, ip := range []string{"10.77.1.1", "10.77.3.12"} {
		nstest.RunIn(t, r.host, "ping", "-c1", "-W600", ip)
	}
	r.must("del", r.del(a))
}

// TestStatusOverlap has STATUS say that a network overlaps with an address, or with a route, of the host.
func TestStatusOverlap(t *testing.T) {
	host := nstest.NewNS(t)
	nstest.RunIn(t, host, "sh", "-ec", `ip link set lo up; ip link add ens3 up type veth peer name wire; ip addr add 192.0.2.10/24 dev ens3; ip route add 198.51.100.0/24 via 192.0.2.1`)
	for subnet, want := range map[string]string{"192.0.2.0/26": "overlaps with address 192.0.2.10/24 of link ens3",
		"198.51.0.0/16": "overlaps with route 198.51.100.0/24 of link ens3", "10.77.0.0/24": ""} {
		r := newRunner(t, chain{"overlap", []string{`"type":"bridge","bridge":"br1","isGateway":true,"ipam":{"type":"host-local","subnet":"` + subnet + `","gateway":"` + map[bool]string{true: "192.0.2.2"}[subnet[:3] == "192"] + `"}`}, nil})
		r.host = host
		file := filepath.Join(t.TempDir(), "stderr")
		_, err := r.run(0, "STATUS", &attachment{}, "", "sh", "-c", `exec "$@" 2>`+file, "sh")
		r.must("status", err)
		s, err := os.ReadFile(file)
		r.must("read what was said", err)
		if said := string(s); (said == "") != (want == "") || !strings.Contains(said, want) {
			t.Errorf("%s: %q, want %q", subnet, said, want)
		}
	}
}
