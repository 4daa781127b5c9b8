package plugin_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// inChain ends the names of lists that are in one plugin chain.
const inChain = "-in-chain"

// withChains adds the lives in one plugin chain.
func withChains(lists []life) []life {
	for _, c := range slices.Clone(lists) {
		if c.inChain {
			c.chain, c.kill = asChain(c.chain), c.killInChain
			lists = append(lists, c)
		}
	}
	return lists
}

// asChain is a list in one plugin chain. What the runtime would give its plugins, it gives the chain.
func asChain(c chain) chain {
	given, capabilities := map[string]json.RawMessage{}, map[string]bool{}
	var inner []map[string]any
	for _, p := range c.plugins {
		var conf map[string]any
		if err := json.Unmarshal([]byte("{"+p+"}"), &conf); err != nil {
			panic(err)
		}
		var rc struct{ RuntimeConfig map[string]json.RawMessage }
		if err := json.Unmarshal([]byte("{"+p+"}"), &rc); err != nil {
			panic(err)
		}
		delete(conf, "runtimeConfig")
		own := map[string]bool{}
		for name, value := range rc.RuntimeConfig {
			given[name], capabilities[name], own[name] = value, true, true
		}
		if len(own) > 0 {
			conf["capabilities"] = own
		}
		inner = append(inner, conf)
	}
	entry := map[string]any{"type": "chain", "plugins": inner}
	if len(given) > 0 {
		entry["runtimeConfig"], entry["capabilities"] = given, capabilities
	}
	b, err := json.Marshal(entry)
	if err != nil {
		panic(err)
	}
	return chain{c.name + inChain, []string{strings.TrimSuffix(strings.TrimPrefix(string(b), "{"), "}")}, c.breaks}
}

func listed(t *testing.T, name string) life {
	t.Helper()
	i := slices.IndexFunc(chains, func(c life) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("no list %s", name)
	}
	return chains[i]
}

// TestChainCrossed: what a chain makes is what the same plugins make as a list, and each takes away what the other
// made.
//
// clause: R2 P12 P14 P22
func TestChainCrossed(t *testing.T) {
	for _, name := range []string{"bridge", "ptp-chain", "portmap", "portmap-iptables", "firewall", "bandwidth", "tuning",
		"sbr", "vrf"} {
		nstest.Apart(t, name, func(t *testing.T) {
			c := listed(t, name)
			list := c.runner(t)
			one := newRunner(t, asChain(c.chain))
			one.chain.name = c.name // one network
			withoutBridges(t)
			netns := nstest.NewNS(t)
			fresh := func() *attachment { return &attachment{id: "c1", netns: netns} }
			warm := fresh()
			list.must("add", list.add(warm))
			list.must("del", list.del(warm))
			clean := state(t)

			volatile := regexp.MustCompile(` # handle \d+|0x0000[0-9a-f]{4}( \}|,)`) // the second one is a link's index
			var first [2]string
			for _, way := range []struct {
				what      string
				add, then *runner
			}{{"add by the list", list, one}, {"add by the chain", one, list}} {
				a := fresh()
				list.must(way.what, way.add.add(a))
				now := [2]string{string(a.prev), inOrder(volatile.ReplaceAllString(state(t), ""))}
				for i, s := range now {
					now[i] = strings.NewReplacer(a.text("IP4"), "IP4", a.text("IP6"), "IP6",
						strings.ReplaceAll(a.text("IP6"), ":", "_"), "IP6").Replace(s)
				}
				switch {
				case first[0] == "":
					first = now
				case !sameJSON(t, json.RawMessage(now[0]), first[0]):
					t.Errorf("results:\n%s\nand\n%s", first[0], now[0])
				case now[1] != first[1]:
					t.Errorf("states:\n%s\nand\n%s", first[1], now[1])
				}
				list.must(way.what+": check by the other", way.then.check(a))
				list.must(way.what+": gc by the other", way.then.gc("c1"))
				list.must(way.what+": check after that", way.add.check(a))
				list.must(way.what+": del by the other", way.then.del(a))
				same(t, way.what+", del by the other", clean)

				list.must(way.what, way.add.add(fresh()))
				list.must(way.what+": del by the other without a result", way.then.del(fresh()))
				same(t, way.what+", del by the other without a result", clean)

				list.must(way.what, way.add.add(fresh()))
				list.must(way.what+": gc of all by the other", way.then.gc())
				same(t, way.what+", gc by the other", clean)
				list.must(way.what+": del", way.add.del(fresh()))
			}
		})
	}
}

func inOrder(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// program puts a plugin of somebody else's into a runner's directory, a shell script. DIR is a directory of its own.
func (r *runner) program(name, script string) (dir string) {
	r.t.Helper()
	dir = r.t.TempDir()
	text := "#!/bin/sh\nexec 2>&1\n" + strings.ReplaceAll(script, "DIR", dir)
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o755); err != nil {
		r.t.Fatal(err)
	}
	return dir
}

// TestChainOthers: a plugin of somebody else's is executed in its place, with what a runtime would give it.
//
// clause: R1 R2 R7 C9
func TestChainOthers(t *testing.T) {
	c := listed(t, "portmap").chain
	c.plugins = []string{c.plugins[0], `"type":"foreign","key":[1,2]`, c.plugins[1]}
	c = asChain(c)
	c.plugins[0] = strings.Replace(c.plugins[0], `"key":[1,2]`, `"key":[1,2],"capabilities":{"mac":true,"ips":false}`, 1)
	c.plugins[0] = strings.Replace(c.plugins[0], `"runtimeConfig":{`, `"runtimeConfig":{"mac":"02:00:00:00:00:07","ips":["10.77.0.9"],`, 1)
	c.plugins[0] = strings.Replace(c.plugins[0], `"capabilities":{"portMappings":true},"plugins"`, `"capabilities":{"portMappings":true,"mac":true},"plugins"`, 1)
	r := newRunner(t, c)
	withoutBridges(t)
	dir := r.program("foreign", `
cat >DIR/$CNI_COMMAND
[ $CNI_COMMAND != ADD ] || echo '{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"'$CNI_NETNS'"}],"ips":[{"address":"10.77.0.200/24","interface":0}]}'
`)
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	var told map[string]json.RawMessage
	read := func(verb string) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, verb))
		told = map[string]json.RawMessage{}
		if err != nil || json.Unmarshal(b, &told) != nil {
			t.Fatalf("%s: %v: %s", verb, err, b)
		}
	}
	read("ADD")
	for key, want := range map[string]string{"name": `"life-portmap` + inChain + `"`, "cniVersion": `"1.1.0"`, "type": `"foreign"`, "key": `[1,2]`,
		"runtimeConfig": `{"mac":"02:00:00:00:00:07"}`} {
		if string(told[key]) != want {
			t.Errorf("ADD: %s is %s, want %s", key, told[key], want)
		}
	}
	if !strings.Contains(string(told["prevResult"]), "10.77.0.") || told["capabilities"] != nil || told["plugins"] != nil {
		t.Errorf("ADD was told %s", told)
	}
	if !strings.Contains(string(a.prev), "10.77.0.200/24") {
		t.Errorf("the result is not what it had handed on: %s", a.prev)
	}
	if out := nstest.Run(t, "nft", "list", "ruleset"); !strings.Contains(out, "10.77.0.200") {
		t.Errorf("portmap was not given its result:\n%s", out)
	}
	r.must("gc", r.gc("c1"))
	if read("GC"); !strings.Contains(string(told["cni.dev/valid-attachments"]), `"c1"`) {
		t.Errorf("GC was told %s", told)
	}
	r.must("status", r.status())
	r.must("del", r.del(a))
	if read("DEL"); !strings.Contains(string(told["prevResult"]), "10.77.0.200/24") {
		t.Errorf("DEL was told %s", told)
	}
}

// TestChainFails: what was made before a plugin that fails is taken back, DEL goes on past errors, and each error says
// whose it is.
//
// clause: R4 R5 P8 P11 P12
func TestChainFails(t *testing.T) {
	broken := `cat >/dev/null; case $CNI_COMMAND in DIRVERBS) echo '{"cniVersion":"1.1.0","code":111,"msg":"no such luck","details":"at all"}'; exit 1;; esac`
	c := listed(t, "portmap").chain
	last := asChain(chain{c.name, append(slices.Clone(c.plugins), `"type":"broken"`), nil})
	last.name = c.name
	r := newRunner(t, last)
	withoutBridges(t)
	warm := newRunner(t, c)
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	r.must("add", warm.add(a))
	r.must("del", warm.del(a))
	clean := state(t)

	say := func(err error, code spec.Code, want string) {
		t.Helper()
		e, ok := err.(*spec.Error)
		if !ok || e.Code != code || !strings.Contains(e.Msg, want) {
			t.Errorf("it says %v, want code %d and %q", err, code, want)
		}
	}
	r.program("broken", strings.Replace(broken, "DIRVERBS", "ADD|CHECK|STATUS", 1))
	say(r.add(a), 111, `plugins[2] (broken): no such luck`)
	same(t, "an ADD whose last plugin failed", clean)
	say(r.status(), 111, `plugins[2] (broken): no such luck`)

	middle := asChain(chain{c.name, []string{c.plugins[0], `"type":"broken"`, c.plugins[1]}, nil})
	middle.name = c.name
	mid := newRunner(t, middle)
	mid.program("broken", strings.Replace(broken, "DIRVERBS", "DEL|GC", 1))
	r.must("add", warm.add(a))
	nstest.RunIn(t, a.netns, "ip", "addr", "flush", "dev", "eth0")
	nstest.Run(t, "nft", "flush", "ruleset")
	err := mid.check(a)
	say(err, spec.CodeInternal, "plugins[0] (bridge): addr ")
	say(err, spec.CodeInternal, "plugins[2] (portmap): ")
	say(mid.del(a), 111, `plugins[1] (broken): no such luck`)
	same(t, "a DEL that failed in the middle", clean)
	r.must("add", warm.add(a))
	say(mid.gc(), 111, `plugins[1] (broken): no such luck`)
	same(t, "a GC that failed in the middle", clean)
}

// badChains are configurations of a chain that cannot be served, and what is said of them.
var badChains = []struct {
	conf string
	code spec.Code
	say  string
}{
	{``, 7, `plugins: is missing or empty: want at least one plugin`},
	{`"plugins":[]`, 7, `plugins: is missing or empty`},
	{`"plugins":{}`, 6, `plugins: {}: want a list`},
	{`"plugins":[5]`, 6, `plugins[0] is the number 5: it has to be an object`},
	{`"plugins":[{}]`, 7, `plugins[0].type: is missing: it names the plugin`},
	{`"plugins":[{"type":"../x"}]`, 7, `plugins[0].type: type "../x" is not a plain file name`},
	{`"plugins":[{"type":"bridge"},{"type":"chain","plugins":[]}]`, 7, `plugins[1].type: "chain": a chain cannot contain a chain`},
	{`"plugins":[{"type":"bridge"},{"type":"nosuch"}]`, 7, `plugins[1] (nosuch): find plugin "nosuch": plugin not found`},
	{`"plugins":[{"type":"bridge","capabilities":{"mac":1}}]`, 6, `plugins[0].capabilities.mac: is the number 1, and has to be true or false`},
	{`"plugins":[{"type":"bridge","mtu":1000000}]`, 7, `plugins[0] (bridge): mtu: 1000000: want 68 to 65535 bytes`},
	{`"plugins":[{"type":"bridge"},{"type":"tuning","mtu":"big"}]`, 6, `plugins[1] (tuning): mtu: "big": want a whole number`},
	{`"plugins":[{"type":"bridge","ipam":{"type":"bridge"}}]`, 7, `plugins[0] (bridge): ipam.type: "bridge": is not an IPAM plugin`},
	{`"plugins":[{"type":"bridge","bridg":"x","strict":true}]`, 2, `plugins[0] (bridge): bridg: "x": unknown key`},
	{`"plugin":[{"type":"bridge"}],"strict":true`, 2, `plugin: [{"type":"bridge"}]: unknown key, and "strict" is set; did you mean "plugins"?`},
	{`"plugins":[{"type":"bridge"}],"ipam":{"type":"host-local"},"strict":true`, 2, `ipam: {"type":"host-local"}: unknown key`},
	{`"plugins":[{"type":"portmap"}]`, 7, `plugins[0] (portmap): prevResult is missing`},
}

// clause: P8 P11 K13
func TestChainBadInput(t *testing.T) {
	withoutBridges(t)
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	clean := state(t)
	for _, tt := range badChains {
		r := newRunner(t, chain{"bad", []string{strings.TrimSuffix(`"type":"chain",`+tt.conf, ",")}, nil})
		err := r.add(a)
		e, ok := err.(*spec.Error)
		if !ok || e.Code != tt.code || !strings.Contains(e.Msg, tt.say) {
			t.Errorf("%s: ADD says %v, want code %d and %q", tt.conf, err, tt.code, tt.say)
		}
		if strings.Contains(tt.say, "prevResult") || strings.Contains(tt.say, "1000000") || strings.Contains(tt.say, "big") {
			nstest.Run(t, "sh", "-c", "ip link del cni0 2>/dev/null || true")
		}
		same(t, tt.conf+": ADD", clean)
		if err := r.gc(); err != nil && !strings.Contains(tt.say, "nosuch") && !strings.Contains(tt.say, "is not an IPAM plugin") {
			t.Errorf("%s: GC: %v", tt.conf, err)
		}
		if err := r.del(a); err != nil && !strings.Contains(tt.say, "nosuch") {
			t.Errorf("%s: DEL: %v", tt.conf, err)
		}
	}
}

// TestChainDeclares: STATUS says where the runtime would not give a plugin of the chain what it has capabilities for.
//
// clause: R7 P21
func TestChainDeclares(t *testing.T) {
	withoutBridges(t)
	const plugins = `"plugins":[{"type":"bridge"},{"type":"portmap","capabilities":{"portMappings":true,"mac":false}}]`
	for _, tt := range []struct{ capabilities, say string }{
		{`"capabilities":{"portMappings":true},`, ""},
		{``, ""}, // a runtime need not hand the key on
		{`"capabilities":{"mac":true},`, `capabilities: lacks "portMappings", which plugins[1] (portmap) has`},
		{`"capabilities":{"portMappings":false},`, `capabilities: lacks "portMappings"`},
	} {
		r := newRunner(t, chain{"declares", []string{`"type":"chain",` + tt.capabilities + plugins}, nil})
		err := r.status()
		if tt.say == "" && err != nil || tt.say != "" && (err == nil || !strings.Contains(fmt.Sprint(err), tt.say)) {
			t.Errorf("%s: STATUS says %v, want %q", tt.capabilities, err, tt.say)
		}
	}
}

// TestChainAfter: a chain after another plugin goes on from that one's result.
//
// clause: R2 P18
func TestChainAfter(t *testing.T) {
	c := listed(t, "ptp-chain").chain
	rest := asChain(chain{c.name, c.plugins[1:], nil})
	c = chain{"after", append(slices.Clone(c.plugins[:1]), rest.plugins...), nil}
	r := newRunner(t, c)
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	r.must("check", r.check(a))
	if res, err := spec.DecodeResult(a.prev, spec.V110); err != nil || len(res.IPs) != 2 {
		t.Errorf("the result is %s, %v", a.prev, err)
	}
	r.must("del", r.del(a))
	if s := state(t); strings.Contains(s, "veth") || strings.Contains(s, "ifb") {
		t.Errorf("left after DEL:\n%s", s)
	}
}
