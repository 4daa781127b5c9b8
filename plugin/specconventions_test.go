package plugin_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// TestSpecCapabilities has the command hand the plugins the values that the conventions show.
//
// clause: K1 K2 K3 K5 K6 K11 K13 R7
func TestSpecCapabilities(t *testing.T) {
	doc := specExamples(t)["conventions"]
	value := func(name string) string { return strings.TrimSpace(doc["Well-known capabilities: "+name]) }
	const published = `{"type":"bridge","bridge":"cni0","capabilities":{"ips":true},"ipam":{"type":"static"}},
		{"type":"tuning","capabilities":{"mac":true}},{"type":"portmap","capabilities":{"portMappings":true}}`
	const host = "rm -rf /var/lib/cni/networks; ip link add cni0 type bridge; " +
		"ip link set cni0 up; ip addr add 10.10.0.254/24 dev cni0"
	for name, c := range map[string]struct {
		plugins, offers string
		there           func(specHost)
	}{
		"ips mac portMappings": {published, `"ips":` + value("ips") + `,"mac":` + value("mac") +
			`,"portMappings":` + value("portMappings"), func(h specHost) {
			h.sees(blue, "ip addr show eth0", `(?s)c2:11:22:33:44:55.*inet 10\.10\.0\.1/24.*inet6 3ffe:ffff:0:1ff::1/64`)
			h.sees("", "nft list table inet fairlead", `udp . 8000.*10\.10\.0\.1 . 8001`)
			h.published("c2:11:22:33:44:55", "10.10.0.254")
		}},
		"ipRanges": {`{"type":"bridge","bridge":"cni0","ipam":{"type":"host-local"},"capabilities":{"ipRanges":true}}`,
			`"ipRanges":` + strings.Replace(value("ipRanges"), ` 10.1.2.99"`, ` "10.1.2.99"`, 1), func(h specHost) {
				h.sees(blue, "ip -br addr show eth0", ` 10\.1\.2\.3/24 `)
			}},
		"bandwidth": {`{"type":"bridge","bridge":"cni0"},{"type":"bandwidth","capabilities":{"bandwidth":true}}`,
			`"bandwidth":` + value("bandwidth"), func(h specHost) { // the plugin raises a burst to a frame's length
				h.sees("", "tc qdisc show dev $(ip -br link show master cni0 | cut -d@ -f1)", `rate 2048bit burst 1513b`)
				h.sees("", "tc qdisc", `rate 4096bit burst 1513b`)
			}},
		"args": {`{"type":"bridge","bridge":"cni0","args":{"cni":` + strings.TrimSpace(doc["args: ips, example"]) +
			`},"ipam":{"type":"host-local","ranges":[[{"subnet":"10.2.2.0/24"}],
			[{"subnet":"2001:db8::/64"}]]}}`, ``, func(h specHost) {
			h.sees(blue, "ip addr show eth0", `(?s)inet 10\.2\.2\.42/24.*inet6 2001:db8::5/64`)
		}},
	} {
		nstest.Apart(t, name, func(t *testing.T) {
			withoutBridges(t)
			nstest.Run(t, "sh", "-ec", host)
			newSpecHost(t).byCommand(specCase{offers: "{" + c.offers + "}",
				there: func(h specHost, _ specResult) { c.there(h) }},
				`{"cniVersion":"1.0.0","name":"conventions","plugins":[`+c.plugins+`]}`)
		})
	}
	for _, name := range []string{"ipRanges", "dns"} { // a quotation mark and a comma are missing
		nstest.Apart(t, name+" as it stands", func(t *testing.T) {
			h := newSpecHost(t)
			h.configure(`{"cniVersion":"1.0.0","name":"conventions","plugins":[` + published + `]}`)
			offers := []string{`CAP_ARGS={"` + name + `":` + value(name) + `}`}
			h.refused("CAP_ARGS: want a JSON object")(h.run(offers, "", "fairlead", "add", "conventions", blue))
		})
	}
}

// TestSpecRuntimeConfig compares what the command gives a plugin of the documents with what they show.
//
// clause: R7 V5
func TestSpecRuntimeConfig(t *testing.T) {
	docs := specExamples(t)
	for name, c := range map[string]struct{ conf, network, typ, given string }{
		"conventions": {docs["conventions"]["Capabilities: as an operator writes it"], "ExamplePlugin", "port-mapper",
			docs["conventions"]["Capabilities: as the plugin receives it"]},
		"1.0.0": {`{"cniVersion":"1.0.0","name":"mine","plugins":[` + docs["1.0.0"]["runtimeConfig: configured"] + `]}`,
			"mine", "myPlugin", strings.Replace(docs["1.0.0"]["runtimeConfig: passed"], "  ...", `, "name": "mine"`, 1)},
	} {
		nstest.Apart(t, name, func(t *testing.T) {
			h := newSpecHost(t)
			h.configure(c.conf)
			script := "#!/bin/sh\n[ $CNI_COMMAND = VERSION ] || cat > " + h.dir + "/given\necho '{}'\n"
			if err := os.WriteFile(filepath.Join(h.dir, c.typ), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			offers := `{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}],"mac":"02:00:00:00:00:01"}`
			h.must(h.run([]string{"CAP_ARGS=" + offers}, "", "fairlead", "add", c.network, blue))
			given, err := os.ReadFile(filepath.Join(h.dir, "given"))
			if err != nil {
				t.Fatal(err)
			}
			sameDocument(t, given, c.given)
		})
	}
}
