package plugin_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

const simple = `"type":"bridge","bridge":"br-h","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","subnet":"10.88.0.0/24"}`

func wantCode(t *testing.T, what string, err error, code spec.Code, say string) {
	t.Helper()
	var e *spec.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Msg, say) {
		t.Errorf("%s: %v, want code %d and %q", what, err, code, say)
	}
}

// TestDelOfBadConfiguration deletes with a configuration that somebody broke after ADD: what is broken is
// not what DEL works from.
//
// clause: P12 P13 C12
func TestDelOfBadConfiguration(t *testing.T) {
	r := newRunner(t, chain{name: "bad", plugins: []string{simple}})
	warm := &attachment{id: "w", netns: nstest.NewNS(t)}
	r.must("add", r.add(warm))
	r.must("del", r.del(warm))
	clean := state(t)
	for _, bad := range []string{
		`,"mtu":"x"`, `,"dns":"x"`, `,"args":3`, `,"runtimeConfig":3`, `,"capabilities":{"x":"y"}`, `,"cni.dev/valid-attachments":"x"`,
		`,"ipam":{"type":"host-local","subnet":"x"}`, `,"ipam":{"type":"host-local","ranges":5}`, `,"ipam":{"type":"host-local","ranges":[[5]]}`,
		`,"ipam":{"type":"host-local","routes":"x"}`, `,"ipam":{"type":"host-local","releaseCooldown":"x"}`,
	} {
		a := &attachment{id: "c", netns: nstest.NewNS(t)}
		r.must("add", r.add(a))
		if _, err := r.run(0, "DEL", a, bad); err != nil {
			t.Errorf("del with %s: %v", bad, err)
		}
		same(t, "del with "+bad, clean)
		r.must("del", r.del(a))
	}
}

// TestForeignPair adds where the container has an interface of that name whose other end is a port of the
// very bridge. The refused ADD and the DEL that a runtime sends after it leave that interface.
//
// clause: P10 P11
func TestForeignPair(t *testing.T) {
	r := newRunner(t, chain{name: "foreign", plugins: []string{simple}})
	warm := &attachment{id: "w", netns: nstest.NewNS(t)}
	r.must("add", r.add(warm))
	r.must("del", r.del(warm))
	a := &attachment{id: "f", netns: nstest.NewNS(t)}
	nstest.Run(t, "ip", "link", "add", "somebodys", "type", "veth", "peer", "name", "eth0", "netns",
		filepath.Base(a.netns))
	t.Cleanup(func() { nstest.Run(t, "ip", "link", "del", "somebodys") })
	nstest.Run(t, "ip", "link", "set", "somebodys", "master", "br-h")
	if err := r.add(a); err == nil || !strings.Contains(err.Error(), "eth0: an interface of that name exists already") {
		t.Errorf("add: %v", err)
	}
	r.must("del", r.del(a))
	nstest.Run(t, "ip", "link", "show", "somebodys")
}

// TestRefusedAddForgetsNothing adds twice: the second call is refused, and what is known of the first one's
// namespace is known still.
//
// clause: P10
func TestRefusedAddForgetsNothing(t *testing.T) {
	r := newRunner(t, chain{name: "twice", plugins: []string{simple}})
	a := &attachment{id: "a", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	before := nstest.Run(t, "sh", "-c", "cat /run/cni/fairlead/memory/*")
	if err := r.add(&attachment{id: a.id, netns: a.netns}); err == nil {
		t.Error("a second ADD succeeded")
	}
	if after := nstest.Run(t, "sh", "-c", "cat /run/cni/fairlead/memory/*"); after != before {
		t.Errorf("remembered is %q, before it was %q", after, before)
	}
	r.must("del", r.del(a))
}

// TestLongNames: neither container IDs nor network names have a maximum (clause P3, C1), but a file's name does.
//
// clause: P3 P12 P13
func TestLongNames(t *testing.T) {
	r := newRunner(t, chain{name: "long", plugins: []string{simple}})
	warm := &attachment{id: "w", netns: nstest.NewNS(t)}
	r.must("add", r.add(warm))
	r.must("del", r.del(warm))
	clean := state(t)
	a := &attachment{id: strings.Repeat("i", 100_000), netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	r.must("check", r.check(a))
	r.must("del", r.del(a))
	same(t, "a long container ID", clean)

	r = newRunner(t, chain{name: strings.Repeat("n", 300), plugins: []string{simple}})
	a = &attachment{id: "a", netns: nstest.NewNS(t)}
	wantCode(t, "add", r.add(a), spec.CodeConfig, "255")
	r.must("del", r.del(a))
	r.must("gc", r.gc())
	wantCode(t, "status", r.status(), spec.CodeUnavailable, "255")
	same(t, "a long name of a network", clean)
}

// TestRefused is what ADD must not begin with.
//
// clause: K13 P11
func TestRefused(t *testing.T) {
	if err := unix.Mkfifo("/run/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	ipam := func(more string) string { return `,"ipam":{"type":"host-local","subnet":"10.88.0.0/24",` + more + `}` }
	r := newRunner(t, chain{name: "refused", plugins: []string{simple}})
	warm := &attachment{id: "w", netns: nstest.NewNS(t)}
	r.must("add", r.add(warm))
	r.must("del", r.del(warm))
	clean := state(t)
	for _, tt := range []struct {
		extra  string
		code   spec.Code
		say    string
		status bool // STATUS knows it too
	}{
		{`,"mtu":-1`, spec.CodeConfig, "mtu: -1", true},
		{`,"bridge":"br%d"`, spec.CodeConfig, "br%d", true},
		{ipam(`"resolvConf":"/run/fifo"`), spec.CodeConfig, "ipam.resolvConf: /run/fifo", true},
		{ipam(`"resolvConf":"/dev/zero"`), spec.CodeConfig, "ipam.resolvConf: /dev/zero", true},
		{ipam(`"resolvConf":"/none"`), spec.CodeConfig, "ipam.resolvConf", true},
		{ipam(`"gateway":"fd00::1"`), spec.CodeConfig, "ipam.gateway", true},
		{ipam(`"routes":[{"dst":"192.0.2.0/24","mtu":-1}]`), spec.CodeConfig, "mtu", true},
		{ipam(`"routes":[{"dst":"192.0.2.0/24","table":4294967296}]`), spec.CodeConfig, "table", true},
	} {
		a := &attachment{id: "a", netns: nstest.NewNS(t)}
		_, err := r.run(0, "ADD", a, tt.extra)
		wantCode(t, "add with "+tt.extra, err, tt.code, tt.say)
		if _, err := r.run(0, "STATUS", &attachment{}, tt.extra); (err != nil) != tt.status {
			t.Errorf("status with %s: %v", tt.extra, err)
		}
		if _, err := r.run(0, "DEL", a, tt.extra); err != nil {
			t.Errorf("del with %s: %v", tt.extra, err)
		}
		same(t, tt.extra, clean)
	}
}

// TestHostileResult: the links that a previous result lists on the host may be anything.
//
// clause: P23
func TestHostileResult(t *testing.T) {
	r := newRunner(t, chain{name: "hostile", plugins: []string{`"type":"bridge","bridge":"br-h"`}})
	nstest.Run(t, "ip", "link", "add", "uplink", "type", "veth", "peer", "name", "router")
	t.Cleanup(func() { nstest.Run(t, "ip", "link", "del", "uplink") })
	nstest.Run(t, "ip", "addr", "add", "192.0.2.7/24", "dev", "uplink")
	prev := func(names ...string) []byte {
		return []byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"` + strings.Join(names, `"},{"name":"`) + `"}]}`)
	}
	// lo can be no port, so it is no reason not to make a pair.
	a := &attachment{id: "h", netns: nstest.NewNS(t), prev: prev("lo", "", "../x", strings.Repeat("x", 300))}
	out, err := r.run(0, "ADD", a, "")
	r.must("add beside lo", err)
	a.prev = out
	r.must("check", r.check(a))
	r.must("del", r.del(a))
	// As a port of a bridge the host's uplink would no longer be one.
	a = &attachment{id: "h", netns: nstest.NewNS(t), prev: prev("uplink")}
	_, err = r.run(0, "ADD", a, "")
	wantCode(t, "add of the uplink", err, spec.CodeConfig, "192.0.2.7/24")
	r.must("del", r.del(a))
	if s := nstest.Run(t, "ip", "link", "show", "uplink"); strings.Contains(s, "master") {
		t.Errorf("the uplink was taken: %s", s)
	}
}

// TestNothingToPublish asks for a port of a container without an address.
//
// clause: K1 K13
func TestNothingToPublish(t *testing.T) {
	r := newRunner(t, chain{name: "nothing", plugins: []string{`"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}]}`}})
	a := &attachment{id: "n", netns: nstest.NewNS(t), prev: []byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}]}`)}
	_, err := r.run(0, "ADD", a, "")
	wantCode(t, "add", err, spec.CodeConfig, "runtimeConfig.portMappings")
	r.must("del", r.del(a))
}

// TestOddFiles: what stands in the place of a lease directory's files is not waited for.
func TestOddFiles(t *testing.T) {
	r := newRunner(t, chain{name: "odd", plugins: []string{simple}})
	dir := "/var/lib/cni/networks/" + r.network()
	if err := errors.Join(os.MkdirAll(dir, 0o755), unix.Mkfifo(dir+"/last_reserved_ip.0", 0o600)); err != nil {
		t.Fatal(err)
	}
	a := &attachment{id: "o", netns: nstest.NewNS(t)}
	wantCode(t, "add", r.add(a), spec.CodeIO, "last_reserved_ip.0")
	r.must("del", r.del(a))
}

// TestManyPorts publishes a range, as for the media ports of a telephone exchange: it takes as much longer than
// one port as there are ports, and no more.
//
// clause: K1
func TestManyPorts(t *testing.T) {
	var ports []string
	for i := 20000; i < 24000; i++ {
		ports = append(ports, fmt.Sprintf(`{"hostPort":%d,"containerPort":%d,"protocol":"udp"}`, i, i))
	}
	r := newRunner(t, chain{name: "many", plugins: []string{simple, `"type":"portmap","runtimeConfig":{"portMappings":[` + strings.Join(ports, ",") + `]}`}})
	a := &attachment{id: "m", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	r.must("check", r.check(a))
	r.must("del", r.del(a))
	if s := nstest.Run(t, "nft", "list", "ruleset"); strings.Contains(s, "udp . 2") {
		t.Error("ports are left")
	}
}

// TestClaimsLost flushes what says who wants a port: CHECK tells, and DEL takes the port away all the same.
//
// clause: P12 P15
func TestClaimsLost(t *testing.T) {
	r := newRunner(t, chain{name: "claims", plugins: []string{simple, `"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":8088,"containerPort":80}]}`}})
	a, b := &attachment{id: "a", netns: nstest.NewNS(t)}, &attachment{id: "b", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	nstest.Run(t, "nft", "flush", "map", "inet", "fairlead", "claims_ip")
	if err := r.check(a); err == nil || !strings.Contains(err.Error(), "claims_ip") {
		t.Errorf("check: %v", err)
	}
	r.must("del", r.del(a))
	if s := nstest.Run(t, "nft", "list", "ruleset"); strings.Contains(s, "8088") {
		t.Errorf("the port is left:\n%s", s)
	}
	r.must("add another", r.add(b))
	r.must("check another", r.check(b))
	r.must("del another", r.del(b))
}
