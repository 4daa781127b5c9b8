package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

func capabilityChecks() []Check {
	const (
		argsFirst = `If a runtime passes an equivalent key via args and the plugin understands args, the plugin must ignore the CNI_ARGS Field.`
		inserted  = `any capability supported by the plugin configuration and provided by the runtime should be inserted in the runtimeConfig.`
	)
	list := []Check{
		{ID: "K2/ranges", Title: "the address is of runtimeConfig.ipRanges",
			Sentence: `ipRanges: Dynamically configure the IP range(s) for address allocation.`,
			Kinds:    []Kind{IPAM}, run: requestedRange},
		{ID: "K3/limits", Title: "runtimeConfig.bandwidth limits what the container gets and sends",
			Sentence: `bandwidth: Dynamically configure interface bandwidth limits. Rates are in bits per second, burst values are in bits.`,
			Kinds:    []Kind{Chained}, run: limitedBandwidth},
		{ID: "K4/dns", Title: "runtimeConfig.dns is in the result",
			Sentence: `dns: Dynamically configure dns according to runtime.`, Kinds: makers(), run: requestedDNS},
		{ID: "K5/ips", Title: "the address is that of runtimeConfig.ips",
			Sentence: `ips: Dynamically allocate IPs for container interface.`, Kinds: []Kind{IPAM}, run: requestedIPs},
		{ID: "K11/labels", Title: "ADD with args.cni.labels succeeds",
			Sentence: `labels: Pass key=value labels to plugins.`, Kinds: everyPlugin(), run: labels},
		{ID: "K11/ips", Title: "the address is that of args.cni.ips, and not that of CNI_ARGS",
			Sentence: argsFirst, Kinds: []Kind{IPAM}, run: argsBeforeCNIArgs},
		{ID: "K12/ip", Title: "the address is that of CNI_ARGS", Sentence: `IP: Request a specific IP from IPAM plugins.`,
			Kinds: []Kind{IPAM}, run: addressOfCNIArgs},
		{ID: "K12/mac", Title: "the MAC of the interface is that of CNI_ARGS",
			Sentence: `Extra arguments passed in by the user at invocation time.`,
			Kinds:    []Kind{Interface, Chained}, run: macOfCNIArgs},
		{ID: "K13/malformed", Title: "a malformed value of runtimeConfig that the plugin acts on is an error",
			Sentence: `It should return an error if it can't act on fields that were expected or where the field values were malformed.`,
			Kinds:    everyPlugin(), run: malformedValues},
	}
	for _, c := range capabilities() {
		if c.clause == "" {
			continue
		}
		list = append(list, Check{ID: c.clause + "/passed", Sentence: inserted, Kinds: []Kind{Runtime},
			Title: c.name + " reaches the plugin that declares it", run: c.passed})
	}
	return list
}

// A capability is a key of runtimeConfig.
type capability struct {
	name      string
	good      string // a value; empty where a check of its own has one
	malformed string
	clause    string // of the check that a runtime passes it
}

func capabilities() []capability {
	return []capability{
		{"portMappings", "", `[{"hostPort":70000,"containerPort":80,"protocol":"tcp"}]`, ""},
		{"ipRanges", "", `[[{"subnet":"10.93.0.0/33"}]]`, ""},
		{"bandwidth", "", `{"ingressRate":"fast","ingressBurst":80000}`, ""},
		{"dns", "", `"10.90.0.53"`, ""},
		{"ips", "", `["10.93.0.300/24"]`, ""},
		{"mac", "", `"02:00:00"`, ""},
		{"infinibandGUID", `"c2:11:22:33:44:55:66:77"`, `"c2:11"`, "K7"},
		{"deviceID", `"0000:04:00.5"`, `"no address"`, "K8"},
		{"aliases", `["my-container","primary-db"]`, `"primary-db"`, "K9"},
		{"cgroupPath", `"/kubepods/burstable/pod17"`, `17`, "K10"},
	}
}

// acts reports whether the profile says that the plugin acts on a key of runtimeConfig.
func (p Plugin) acts(name string) bool {
	var given object
	json.Unmarshal(p.RuntimeConfig, &given)
	return given[name] != nil || slices.Contains(p.Capabilities, name)
}

// needs ends a check where the plugin does not act on a key of runtimeConfig.
func (t *trial) needs(name string) {
	applies(t.subject.acts(name), "the profile does not say that the plugin acts on "+name)
}

// offering is runtimeConfig with one key.
func offering(name, value string) change {
	return key("runtimeConfig", map[string]json.RawMessage{name: json.RawMessage(value)})
}

func (c capability) passed(t *trial) {
	n := diskNetwork{plugins: map[string]map[string]any{"b": {"capabilities": map[string]bool{c.name: true}}}}
	log := t.works("add", t.beginning(n), fmt.Sprintf("CAP_ARGS={%q:%s}", c.name, c.good))
	ordered(log, "ADD a, ADD b, ADD c")
	got, want := log[1].given("runtimeConfig"), fmt.Sprintf("{%q:%s}", c.name, c.good)
	expect(sameJSON(got, json.RawMessage(want)), "runtimeConfig "+want, "%q", got)
}

// hasIP fails where the result does not have an address that is as expected.
func (c *container) hasIP(t *trial, expected string, is func(netip.Prefix) bool) {
	t.last.expect(slices.ContainsFunc(c.result.IPs, func(ip spec.IP) bool { return is(ip.Address) }), expected)
}

func requestedRange(t *trial) {
	t.needs("ipRanges")
	c := t.container("c1")
	t.add(c, offering("ipRanges", `[[{"subnet":"10.93.0.0/24","rangeStart":"10.93.0.20","rangeEnd":"10.93.0.29"}]]`))
	first, last := netip.MustParseAddr("10.93.0.20"), netip.MustParseAddr("10.93.0.29")
	c.hasIP(t, "an address from 10.93.0.20 to 10.93.0.29", func(p netip.Prefix) bool {
		return !p.Addr().Less(first) && !last.Less(p.Addr())
	})
}

// free are addresses that the plugin can give, but would not by itself.
func (t *trial) free() (one, other netip.Prefix) {
	c := t.attached("c0")
	t.last.expect(len(c.result.IPs) > 0, "an address")
	t.succeed("DEL", "DEL", c)
	t.containers--
	p := c.result.IPs[0].Address
	next := p.Addr().Next().Next()
	return netip.PrefixFrom(next, p.Bits()), netip.PrefixFrom(next.Next(), p.Bits())
}

// gets attaches a container, which has to get an address.
func (t *trial) gets(want netip.Prefix, changes ...change) {
	c := t.container("c1")
	t.add(c, changes...)
	c.hasIP(t, "the address "+want.String(), func(p netip.Prefix) bool { return p == want })
}

// cniArgs has the plugin called with CNI_ARGS.
func cniArgs(args string) change { return env(func(call *invoke.Call) { call.Args = args }) }

func requestedIPs(t *trial) {
	t.needs("ips")
	want, _ := t.free()
	t.gets(want, offering("ips", `["`+want.String()+`"]`))
}

func addressOfCNIArgs(t *trial) {
	t.needs("ips")
	want, _ := t.free()
	t.gets(want, cniArgs("IP="+want.String()))
}

func macOfCNIArgs(t *trial) {
	t.needs("mac")
	const mac = "02:00:00:00:00:18"
	c := t.container("c1")
	t.add(c, lacking("runtimeConfig"), cniArgs("MAC="+mac+";IgnoreUnknown=1"))
	l := must(link(c.netns, c.ifName))
	expect(l != nil && l.MAC.String() == mac, "an interface with the MAC "+mac, "%+v", l)
}

func argsBeforeCNIArgs(t *trial) {
	t.needs("ips")
	want, other := t.free()
	args := map[string]any{"cni": map[string]any{"ips": []string{want.String()}}}
	t.gets(want, key("args", args), cniArgs("IP="+other.String()))
}

func labels(t *trial) {
	list := []map[string]string{{"key": "app", "value": "myapp"}}
	t.add(t.container("c1"), key("args", map[string]any{"cni": map[string]any{"labels": list}}))
}

func requestedDNS(t *trial) {
	t.needs("dns")
	c := t.container("c1")
	t.add(c, offering("dns", `{"servers":["10.90.0.53"],"searches":["conformance.example"],"options":["ndots:2"]}`))
	got := c.result.DNS
	t.last.expect(slices.Contains(got.Nameservers, "10.90.0.53") && slices.Contains(got.Search, "conformance.example"),
		"the name server 10.90.0.53 and the search domain conformance.example in dns")
}

func malformedValues(t *trial) {
	tried := false
	for _, c := range capabilities() {
		if !t.subject.acts(c.name) {
			continue
		}
		tried = true
		a := t.do("ADD", t.container("c-"+c.name), offering(c.name, c.malformed))
		a.expect(a.failed != nil, "an error of the malformed "+c.name)
		t.containers--
	}
	applies(tried, "the profile does not say that the plugin acts on a key of runtimeConfig")
}

// limitedBandwidth sends what takes two seconds within the limit. Without a limit it takes no time.
func limitedBandwidth(t *trial) {
	t.needs("bandwidth")
	const bytes, least = 100_000, time.Second
	c := t.container("c1")
	t.add(c, offering("bandwidth",
		`{"ingressRate":400000,"ingressBurst":80000,"egressRate":400000,"egressBurst":80000}`))
	for what, way := range map[string]struct {
		from, to string
		addr     netip.Addr
	}{"gets": {"", c.netns, c.addr.Addr()}, "sends": {c.netns, "", gateway()}} {
		took, err := transfer(way.from, way.to, netip.AddrPortFrom(way.addr, 7777), bytes)
		require(err)
		expected := fmt.Sprintf("%d bytes that the container %s to take %v or more", bytes, what, least)
		expect(took >= least, expected, "%v", took)
	}
}

// transfer sends bytes from one namespace to a listener in another, and returns how long that took.
func transfer(from, to string, addr netip.AddrPort, bytes int) (took time.Duration, err error) {
	var l net.Listener
	if err := nstest.In(to, func() (err error) { l, err = net.Listen("tcp", addr.String()); return err }); err != nil {
		return 0, err
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if n, _ := io.Copy(io.Discard, conn); n == int64(bytes) {
			conn.Write([]byte{1})
		}
	}()
	var conn net.Conn
	err = nstest.In(from, func() (err error) {
		conn, err = net.DialTimeout("tcp", addr.String(), answerLimit)
		return err
	})
	if err != nil {
		return 0, differs(addr.String()+" to answer", "%v", err)
	}
	defer conn.Close()
	begun := time.Now()
	if _, err := conn.Write(make([]byte, bytes)); err != nil {
		return 0, err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		return 0, differs(fmt.Sprintf("%d bytes to arrive at %s", bytes, addr), "%v", err)
	}
	return time.Since(begun), nil
}
