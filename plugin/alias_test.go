package plugin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/command/nameserver"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/miekg/dns"
)

// nameServer serves names on the test's host until the test ends.
func nameServer(t *testing.T) { startNameServer(t) }

// startNameServer also returns what ends the server, and waits for that.
func startNameServer(t *testing.T) (stop func()) {
	t.Helper()
	m := record.Store{Dir: record.Dir}
	if err := os.MkdirAll(filepath.Dir(m.Dir), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", nameserver.Socket(m))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- nameserver.Serve(ctx, nameserver.Settings{Memory: m, ResolvConf: "/run/resolv.conf",
			Log:    slog.New(slog.NewTextHandler(io.Discard, nil)),
			Holder: func(uint32) string { return "process other (PID 1)" }}, l, func() { close(ready) })
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// asked is the answer that a server gives in a namespace: the records' values, sorted, or the code.
func asked(t *testing.T, netns, server, network, name string, typ uint16) string {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), typ)
	var a *dns.Msg
	err := nstest.In(netns, func() (err error) {
		c := dns.Client{Net: network, Timeout: nstest.Patience(t)}
		a, _, err = c.Exchange(m, net.JoinHostPort(server, "53"))
		return err
	})
	if err != nil {
		return err.Error()
	}
	if a.Rcode != dns.RcodeSuccess {
		return dns.RcodeToString[a.Rcode]
	}
	var values []string
	for _, r := range a.Answer {
		values = append(values, strings.TrimPrefix(r.String(), r.Header().String()))
	}
	slices.Sort(values)
	return strings.Join(values, " ")
}

// aliased makes a runner of a network with bridge and alias.
func aliased(t *testing.T, network, subnet4, subnet6, conf string) *runner {
	t.Helper()
	r := newRunner(t, chain{network, []string{fmt.Sprintf(`"type":"bridge","bridge":"br-%s","isGateway":true,"ipam":{"type":"host-local",
		"ranges":[[{"subnet":%q}],[{"subnet":%q}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`, network, subnet4, subnet6), `"type":"alias"` + conf}, nil})
	t.Cleanup(func() { r.must("gc at the end", r.gc()) })
	return r
}

func addrsOf(t *testing.T, a *attachment) (v4, v6 string) {
	t.Helper()
	return a.text("IP4"), a.text("IP6")
}

// TestAlias: containers find each other by name and alias, by IPv4 and IPv6, UDP and TCP, in their own network alone.
//
// clause: K9 P18
func TestAlias(t *testing.T) {
	stop := startNameServer(t)
	withoutBridges(t)
	blue := aliased(t, "blue", "10.77.0.0/24", "fd00:77::/64", `,"domainName":"blue.test"`)
	red := aliased(t, "red", "10.78.0.0/24", "fd00:78::/64", "")
	add := func(r *runner, id, aliases string) *attachment {
		t.Helper()
		conf := r.chain.plugins[1]
		r.chain.plugins[1] += aliases
		defer func() { r.chain.plugins[1] = conf }()
		a := &attachment{id: id, netns: nstest.NewNS(t)}
		r.must("add "+id, r.add(a))
		return a
	}
	web := add(blue, "web", `,"runtimeConfig":{"aliases":["www","Shared"]}`)
	db := add(blue, "db", `,"runtimeConfig":{"aliases":{"`+blue.network()+`":["shared"],"other":["wrong"]}}`)
	long := add(blue, strings.Repeat("0123456789abcdef", 4), `,"args":{"cni":{"K8S_POD_NAME":"pod-1"}}`)
	other := add(red, "other", `,"runtimeConfig":{"aliases":["www"]}`)

	res, err := spec.DecodeResult(web.prev, spec.V110)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(res.DNS.Nameservers, res.DNS.Search); got != "[10.77.0.1 fd00:77::1] [blue.test]" {
		t.Errorf("the result's dns is %s", got)
	}
	web4, web6 := addrsOf(t, web)
	db4, db6 := addrsOf(t, db)
	long4, _ := addrsOf(t, long)
	other4, other6 := addrsOf(t, other)
	both := func(a, b string) string { return strings.Join(slices.Sorted(slices.Values([]string{a, b})), " ") }
	type question struct {
		from    *attachment
		name    string
		typ     uint16
		want    string
		gateway string
	}
	rev := func(a string) string { r, _ := dns.ReverseAddr(a); return r }
	questions := []question{
		{from: db, name: "web", typ: dns.TypeA, want: web4},
		{from: db, name: "WEB", typ: dns.TypeAAAA, want: web6},
		{from: db, name: "www", typ: dns.TypeA, want: web4},
		{from: db, name: "web.blue.test", typ: dns.TypeA, want: web4},
		{from: db, name: "pod-1", typ: dns.TypeA, want: long4},
		{from: db, name: "0123456789ab", typ: dns.TypeA, want: long4},
		{from: web, name: "db", typ: dns.TypeA, want: db4},
		{from: web, name: "shared", typ: dns.TypeA, want: both(web4, db4)},
		{from: web, name: "shared", typ: dns.TypeAAAA, want: both(web6, db6)},
		{from: web, name: "wrong", typ: dns.TypeA, want: "NXDOMAIN"},
		{from: web, name: "nobody.blue.test", typ: dns.TypeA, want: "NXDOMAIN"},
		{from: web, name: "db", typ: dns.TypeMX, want: ""},
		{from: web, name: "blue.test", typ: dns.TypeA, want: ""},
		{from: web, name: rev(db4), typ: dns.TypePTR, want: "db.blue.test."},
		{from: web, name: rev(db6), typ: dns.TypePTR, want: "db.blue.test."},
		{from: web, name: "other", typ: dns.TypeA, want: "NXDOMAIN"},
		{from: web, name: rev(other4), typ: dns.TypePTR, want: "SERVFAIL"}, // forwarded, and there is nobody
		{from: other, name: "web", typ: dns.TypeA, want: "NXDOMAIN"},
		{from: other, name: "www", typ: dns.TypeA, want: other4},
		{from: other, name: "other", typ: dns.TypeAAAA, want: other6},
		{from: other, name: "web", typ: dns.TypeA, want: "REFUSED", gateway: "10.77.0.1"},
		{from: other, name: rev(web4), typ: dns.TypePTR, want: "REFUSED", gateway: "10.77.0.1"},
		{from: nil, name: "web", typ: dns.TypeA, want: web4, gateway: "10.77.0.1"},
	}
	askAll := func(when string) {
		t.Helper()
		for _, q := range questions {
			gateways, netns := []string{q.gateway}, ""
			if q.from != nil {
				netns = q.from.netns
			}
			if q.gateway == "" {
				gateways = []string{"10.77.0.1", "fd00:77::1"}
				if q.from == other {
					gateways = []string{"10.78.0.1", "fd00:78::1"}
				}
			}
			for _, gw := range gateways {
				for _, over := range []string{"udp", "tcp"} {
					if got := asked(t, netns, gw, over, q.name, q.typ); got != q.want {
						t.Errorf("%s: %s of %s at %s by %s: %q, want %q", when, dns.TypeToString[q.typ], q.name, gw, over, got, q.want)
					}
				}
			}
		}
	}
	askAll("after ADD")
	stop()
	if got := asked(t, db.netns, "10.77.0.1", "tcp", "web", dns.TypeA); !strings.Contains(got, "refused") {
		t.Errorf("without a server: %s", got)
	}
	wantCode(t, "CHECK without a server", blue.check(web), spec.CodeUnavailable, "no name server runs on this host")
	wantCode(t, "STATUS without a server", blue.status(), spec.CodeUnavailable, "no name server runs on this host")
	wantCode(t, "ADD without a server", blue.add(&attachment{id: "late", netns: nstest.NewNS(t)}), spec.CodeTryAgain, "start `fairlead dns`")
	blue.must("del of what was refused", blue.del(&attachment{id: "late"}))
	startNameServer(t)
	askAll("after a restart")

	blue.must("del", blue.del(web))
	until(t, "www to go", func() bool { return asked(t, db.netns, "10.77.0.1", "udp", "www", dns.TypeA) == "NXDOMAIN" })
	if got := asked(t, db.netns, "10.77.0.1", "udp", "shared", dns.TypeA); got != db4 {
		t.Errorf("shared after a DEL: %s", got)
	}
	blue.must("gc", blue.gc())
	until(t, "the sockets to go", func() bool {
		return strings.Contains(asked(t, "", "10.77.0.1", "tcp", "db", dns.TypeA), "refused")
	})
	if got := asked(t, other.netns, "10.78.0.1", "udp", "www", dns.TypeA); got != other4 {
		t.Errorf("the other network after a GC of the first: %s", got)
	}
}

// until waits for what happens at an event of the kernel's.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for limit := nstest.Deadline(t); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("waited for %s", what)
		}
	}
}

// A container in two networks finds the names of both at either address, and its neighbours only their own.
func TestAliasTwoNetworks(t *testing.T) {
	startNameServer(t)
	withoutBridges(t)
	blue := aliased(t, "blue2", "10.77.0.0/24", "fd00:77::/64", "")
	red := aliased(t, "red2", "10.78.0.0/24", "fd00:78::/64", "")
	red.ifName = "eth1"
	netns := nstest.NewNS(t)
	in1, in2 := &attachment{id: "both", netns: netns}, &attachment{id: "both", netns: netns}
	blue.must("add", blue.add(in1))
	red.must("add", red.add(in2))
	red.ifName = "eth0"
	mate1, mate2 := &attachment{id: "mate1", netns: nstest.NewNS(t)}, &attachment{id: "mate2", netns: nstest.NewNS(t)}
	blue.must("add", blue.add(mate1))
	red.must("add", red.add(mate2))
	four := func(a *attachment) string { v4, _ := addrsOf(t, a); return v4 }
	for _, q := range []struct{ netns, gw, name, want string }{
		{netns, "10.77.0.1", "mate1", four(mate1)}, {netns, "10.77.0.1", "mate2", four(mate2)}, {netns, "10.78.0.1", "mate1",
			four(mate1)},
		{netns, "10.78.0.1", "both", four(in2)}, {netns, "10.77.0.1", "both", four(in1)},
		{mate1.netns, "10.77.0.1", "both", four(in1)}, {mate1.netns, "10.77.0.1", "mate2", "NXDOMAIN"},
		{mate2.netns, "10.78.0.1", "both", four(in2)}, {mate2.netns, "10.78.0.1", "mate1", "NXDOMAIN"},
	} {
		if got := asked(t, q.netns, q.gw, "udp", q.name, dns.TypeA); got != q.want {
			t.Errorf("%s at %s: %q, want %q", q.name, q.gw, got, q.want)
		}
	}
}

// A network whose gateway is not the host's is refused, and nothing is left.
func TestAliasNoGateway(t *testing.T) {
	startNameServer(t)
	withoutBridges(t)
	r := newRunner(t, chain{"nogw", []string{`"type":"bridge","bridge":"br-nogw",` + hostLocal, `"type":"alias"`}, nil})
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	wantCode(t, "add", r.add(a), spec.CodeConfig, "network life-nogw has no gateway on this host (10.77.0.1, fd00:77::1)")
	r.must("del", r.del(a))
	if left, _ := filepath.Glob(record.Dir + "/names.*"); left != nil {
		t.Errorf("left %v", left)
	}
}

// A program that listens on port 53 of all addresses is named, by ADD and by STATUS; when it ends, ADD succeeds.
func TestAliasWildcard(t *testing.T) {
	startNameServer(t)
	withoutBridges(t)
	r := aliased(t, "wild", "10.77.0.0/24", "fd00:77::/64", "")
	for _, network := range []string{"udp", "tcp"} {
		var stop io.Closer
		var err error
		if network == "udp" {
			stop, err = net.ListenPacket("udp4", "0.0.0.0:53")
		} else {
			stop, err = net.Listen("tcp", "[::]:53")
		}
		if err != nil {
			t.Fatal(err)
		}
		a := &attachment{id: "c1", netns: nstest.NewNS(t)}
		const say = "process other (PID 1) listens on "
		wantCode(t, network+": status", r.status(), spec.CodeUnavailable, say)
		wantCode(t, network+": add", r.add(a), spec.CodeTryAgain, say)
		r.must("del", r.del(a))
		stop.Close()
		r.must(network+": status when it has ended", r.status())
		r.must(network+": add when it has ended", r.add(a))
		r.must("del", r.del(a))
	}
}

// What the result named before is asked for other names, and what the plugin is configured with comes before that; the
// rest of the result's dns stays.
func TestAliasUpstream(t *testing.T) {
	startNameServer(t)
	withoutBridges(t)
	for i, tt := range []struct{ bridge, alias, want, dns string }{
		{`,"dns":{"nameservers":["192.0.2.1"],"domain":"example.net","search":["a.test"],"options":["ndots:2"]}`, "", "[192.0.2.1]",
			"{[10.77.0.1 fd00:77::1] example.net [b.test a.test] [ndots:2]}"},
		{`,"dns":{"nameservers":["192.0.2.1"]}`, `,"dns":{"nameservers":["192.0.2.2","2001:db8::2"],"domain":"d.test","search":["s.test"],"options":["rotate"]}`,
			"[192.0.2.2 2001:db8::2]", "{[10.77.0.1 fd00:77::1] d.test [b.test s.test] [rotate]}"},
		{"", "", "[]", "{[10.77.0.1 fd00:77::1]  [b.test] []}"},
	} {
		r := aliased(t, fmt.Sprint("up", i), "10.77.0.0/24", "fd00:77::/64", `,"domainName":"b.test"`+tt.alias)
		r.chain.plugins[0] += tt.bridge
		a := &attachment{id: "c1", netns: nstest.NewNS(t)}
		r.must("add", r.add(a))
		r.must("check", r.check(a))
		files, _ := filepath.Glob(record.Dir + "/names.*")
		if len(files) != 1 {
			t.Fatal(files)
		}
		b, _ := os.ReadFile(files[0])
		var rec struct{ Upstream []netip.Addr }
		if err := json.Unmarshal(b, &rec); err != nil || fmt.Sprint(rec.Upstream) != tt.want {
			t.Errorf("%d: upstream %v, %v", i, rec.Upstream, err)
		}
		res, err := spec.DecodeResult(a.prev, spec.V110)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(res.DNS); got != tt.dns {
			t.Errorf("%d: dns is %s, want %s", i, got, tt.dns)
		}
		r.must("del", r.del(a))
		nstest.Run(t, "ip", "link", "del", fmt.Sprint("br-up", i))
	}
}

// Names are found whatever else is in the list: behind ptp, and with each policy of the plugin firewall.
func TestAliasBesideOthers(t *testing.T) {
	startNameServer(t)
	withoutBridges(t)
	const pool = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`
	bridge := `"type":"bridge","bridge":"br-names","isGateway":true,"ipMasq":true,"macspoofchk":true,` + pool
	firewall := func(policy string) string {
		return `"type":"firewall","backend":"nftables","ingressPolicy":"` + policy + `"`
	}
	for name, plugins := range map[string][]string{
		"ptp":              {`"type":"ptp","ipMasq":true,` + pool, `"type":"alias"`},
		"same-bridge":      {bridge, firewall("same-bridge"), `"type":"alias"`},
		"isolated":         {bridge, firewall("isolated"), `"type":"alias"`},
		"strict":           {bridge, firewall("strict"), `"type":"alias"`},
		"strict, later":    {bridge, `"type":"alias"`, firewall("strict")},
		"ports":            {bridge, `"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":8053,"containerPort":53,"protocol":"udp"}]}`, `"type":"alias"`},
		"in a plugin list": {`"type":"chain","plugins":[{` + bridge + `},{"type":"alias","capabilities":{"aliases":true}}],"capabilities":{"aliases":true},"runtimeConfig":{"aliases":["db"]}`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRunner(t, chain{"names-" + strings.NewReplacer(" ", "", ",", "").Replace(name), plugins, nil})
			t.Cleanup(func() { r.must("gc", r.gc()) })
			web, client := &attachment{id: "web", netns: nstest.NewNS(t)}, &attachment{id: "client", netns: nstest.NewNS(t)}
			r.must("add", r.add(web))
			if name == "ports" {
				r.chain.plugins = []string{plugins[0], plugins[2]}
			}
			r.must("add", r.add(client))
			web4, web6 := addrsOf(t, web)
			for _, gw := range []string{"10.77.0.1", "fd00:77::1"} {
				for _, over := range []string{"udp", "tcp"} {
					if got := asked(t, client.netns, gw, over, "web", dns.TypeA); got != web4 {
						t.Errorf("A of web at %s by %s: %s, want %s", gw, over, got, web4)
					}
					if got := asked(t, client.netns, gw, over, "web", dns.TypeAAAA); got != web6 {
						t.Errorf("AAAA of web at %s by %s: %s, want %s", gw, over, got, web6)
					}
				}
			}
			r.must("check", r.check(client))
		})
	}
}

// Many containers that come and go at once are all found, and all forgotten.
func TestAliasAtOnce(t *testing.T) {
	startNameServer(t)
	withoutBridges(t)
	r := aliased(t, "crowd", "10.77.0.0/16", "fd00:77::/64", `,"runtimeConfig":{"aliases":["all"]}`)
	const n = 32
	var all [n]attachment
	each := func(what string, do func(*attachment) error) {
		t.Helper()
		var wg sync.WaitGroup
		for i := range all {
			wg.Go(func() {
				if err := do(&all[i]); err != nil {
					t.Errorf("%s %s: %v", what, all[i].id, err)
				}
			})
		}
		wg.Wait()
	}
	for i := range all {
		all[i] = attachment{id: fmt.Sprint("p", i), netns: nstest.NewNS(t)}
	}
	each("add", func(a *attachment) error { return r.add(a) })
	each("ask", func(a *attachment) error {
		if got, want := asked(t, a.netns, "10.77.0.1", "udp", a.id, dns.TypeA), a.text("IP4"); got != want {
			return fmt.Errorf("is %s, want %s", got, want)
		}
		return nil
	})
	if got := strings.Fields(asked(t, "", "10.77.0.1", "tcp", "all", dns.TypeAAAA)); len(got) != n {
		t.Errorf("all of them are %d", len(got))
	}
	keep := all[0]
	each("del", func(a *attachment) error {
		if a.id == keep.id {
			return nil
		}
		return r.del(a)
	})
	until(t, "the others to go", func() bool {
		return asked(t, "", "10.77.0.1", "tcp", "all",
			dns.TypeA) == keep.text("IP4")
	})
	r.must("del", r.del(&keep))
}
