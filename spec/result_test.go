package spec

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
)

// sections are the parts of a file in testdata.
func sections(t testing.TB, file string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{}
	for _, part := range strings.Split(string(b), "\n-- ")[1:] {
		name, text, _ := strings.Cut(part, " --\n")
		parts[name] = text
	}
	return parts
}

// shape is the version whose shape v shares.
func shape(v Version) Version {
	switch {
	case v.AtLeast(V100):
		return v
	case v.AtLeast(V030):
		return V030
	}
	return V010
}

// Each of the seven versions into each: what the two shapes have in common is left.
// clause: V4 V6 V7
func TestConversions(t *testing.T) {
	want := sections(t, "testdata/conversions.txtar")
	rich, err := DecodeResult([]byte(want["1.1.0 to 1.1.0"]), V110)
	if err != nil {
		t.Fatal(err)
	}
	expect := func(from, to Version) string {
		from, to = shape(from), shape(to)
		switch {
		case from == V010 && to == V110:
			to = V100 // the same shape, and nothing of what 1.1.0 adds is there
		case to == V010:
			from = V110
		case from != V010 && from != V110: // 0.3.0 and 1.0.0 have lost what 1.1.0 has beyond 1.0.0
			from = V110
			if to == V110 {
				to = V100
			}
		}
		doc, ok := want[string(from+" to "+to)]
		if !ok {
			t.Fatalf("no golden for %s to %s", from, to)
		}
		return doc
	}
	for _, from := range Versions() {
		b, err := rich.Encode(from)
		if err != nil {
			t.Fatal(err)
		}
		read, err := DecodeResult(b, "")
		if err != nil {
			t.Fatalf("%v in %s", err, b)
		}
		if read.CNIVersion != from {
			t.Errorf("version %s, want %s", read.CNIVersion, from)
		}
		for _, to := range Versions() {
			t.Run(string(from+" to "+to), func(t *testing.T) {
				got, err := read.Encode(to)
				if err != nil {
					t.Fatal(err)
				}
				doc := decode(t, []byte(expect(from, to))).(map[string]any)
				doc["cniVersion"] = string(to)
				same(t, decode(t, got), doc)
			})
		}
	}
}

// clause: V7
func TestConversionWithoutAddress(t *testing.T) {
	for _, tc := range []struct {
		name string
		r    Result
		v    Version
		bad  string
	}{
		{"only interfaces", Result{Interfaces: []Interface{{Name: "eth0"}}}, V020,
			"has no form for this result, which has no address"},
		{"nothing at all", Result{}, V010, "has no form for this result"},
		{"nothing, as it was read", Result{CNIVersion: V020}, V010, ""},
		{"only interfaces, newer", Result{Interfaces: []Interface{{Name: "eth0"}}}, V030, ""},
		{"routes read without address", Result{CNIVersion: V020, Routes: []Route{{Dst: netip.MustParsePrefix("::/0")}}}, V020,
			"has no form for this result"},
		{"an address that is none", Result{IPs: []IP{{}}}, V100, "ips[0] has no address"},
		{"a route to nowhere", Result{Routes: []Route{{}}}, V100, "routes[0] has no destination"},
		{"a version to come", Result{}, "1.2.0", `"1.2.0" is not known`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := tc.r.Encode(tc.v)
			wantError(t, err, tc.bad)
			var e *Error
			if err != nil && !errors.As(err, &e) {
				t.Errorf("%T has no code", err)
			}
		})
	}
}

func wantError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("unexpected: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("error %v, want %q", err, want)
	}
}

// What the reference's own plugins print, byte for byte.
// clause: V4 V6 P6
func TestReferenceOutput(t *testing.T) {
	for _, v := range []Version{V010, V020, V030, V031, V040} {
		b, err := os.ReadFile("testdata/reference/static-" + string(v) + ".json")
		if err != nil {
			t.Fatal(err)
		}
		r, err := DecodeResult(b, Newest)
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		sameBytes(t, got, b)
	}
}

// The reference's loopback prints the shape of 1.0.0 under the label of the configuration.
// clause: V7
func TestMislabelledResult(t *testing.T) {
	for _, v := range []Version{V020, V040} {
		b, err := os.ReadFile("testdata/reference/loopback-" + string(v) + ".json")
		if err != nil {
			t.Fatal(err)
		}
		r, err := DecodeResult(b, Newest)
		if err != nil {
			t.Fatal(err)
		}
		if r.CNIVersion != v || len(r.IPs) != 2 || len(r.Interfaces) != 1 || r.InterfaceOf(r.IPs[1]).Name != "lo" ||
			r.Extra != nil {
			t.Errorf("%s: %+v", v, r)
		}
	}
	r, err := DecodeResult([]byte(`{"cniVersion": "0.2.0", "ip4": {"ip": "10.1.2.3/24"}, "ips": [{"address": "10.9.9.9/24"}]}`), "")
	if err != nil || len(r.IPs) != 1 || r.IPs[0].Address.String() != "10.1.2.3/24" || string(r.Extra["ips"]) == "" {
		t.Errorf("%+v, %v: the shape of the label goes first", r, err)
	}
	b, err := r.Encode(V110)
	if err != nil || strings.Contains(string(b), "10.9.9.9") {
		t.Errorf("%s, %v: ips means something in 1.1.0", b, err)
	}
}

// clause: V5 V4
func TestDecodeResult(t *testing.T) {
	for _, tc := range []struct {
		name, doc string
		conf      Version
		bad       string
		want      string // in the version of the result
	}{
		{"null", "null", V040, "", `{"cniVersion":"0.4.0","dns":{}}`},
		{"null without a version", " null ", "", "", `{"cniVersion":"0.1.0","dns":{}}`},
		{"no label", `{"ips":[{"address":"10.1.2.3/24"}]}`, V100, "", `{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24"}]}`},
		{"empty label", `{"cniVersion":"","ips":[{"address":"10.1.2.3/24"}]}`, V100, "", `{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24"}]}`},
		{"no label and no version", `{"ip4":{"ip":"10.1.2.3/24"}}`, "", "", `{"cniVersion":"0.1.0","ip4":{"ip":"10.1.2.3/24"},"dns":{}}`},
		{"ip6 before ip4", `{"ip6":{"ip":"fd00::1/64","routes":[{"dst":"::/0"}]},"ip4":{"ip":"10.1.2.3/24"}}`, V020, "",
			`{"cniVersion":"0.2.0","ip4":{"ip":"10.1.2.3/24"},"ip6":{"ip":"fd00::1/64","routes":[{"dst":"::/0"}]},"dns":{}}`},
		{"another version than the configuration's", `{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24"}]}`, V040, "",
			`{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24"}]}`},
		{"keys in any case, null, empty gateway", `{"CNIVERSION":"1.0.0","IPs":[{"ADDRESS":"10.1.2.3/24","gateway":"","interface":null}],"interfaces":null,"DNS":null}`, "", "",
			`{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24"}]}`},
		{"mapped address", `{"ips":[{"address":"::ffff:10.1.2.3/120","gateway":"::ffff:10.1.2.1"}]}`, V040, "",
			`{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.2.3/24","gateway":"10.1.2.1"}],"dns":{}}`},
		{"host bits", `{"routes":[{"dst":"10.1.2.3/8"}]}`, V100, "", `{"cniVersion":"1.0.0","routes":[{"dst":"10.1.2.3/8"}]}`},
		{"what the version does not have", `{"interfaces":[{"name":"a","mtu":9000,"socketPath":"/s","pciID":"p"}]}`, V100, "",
			`{"cniVersion":"1.0.0","interfaces":[{"name":"a"}]}`},
		{"extra", `{"z":1.0,"a":9007199254740993,"ips":[]}`, V100, "", `{"a":9007199254740993,"cniVersion":"1.0.0","z":1.0}`},
		{"index out of range", `{"ips":[{"address":"10.1.2.3/24","interface":-1}]}`, V100, "", `{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24","interface":-1}]}`},

		{"unknown label", `{"cniVersion":"2.0.0"}`, V100, `line 1, column 15: cniVersion: "2.0.0" is not known: 0.1.0, 0.2.0,`, ""},
		{"label of a wrong kind", `{"cniVersion":1}`, V100, "cniVersion: is the number 1, and has to be a string", ""},
		{"no object", `[]`, V100, "is an array, and has to be a result", ""},
		{"no prefix length", "{\"ips\":\n [{\"address\":\"10.1.2.3\"}]}", V100, `line 2, column 14: ips[0].address: "10.1.2.3" has no prefix length, such as 10.1.2.3/32`, ""},
		{"no address", `{"ips":[{}]}`, V100, "ips[0].address: is missing", ""},
		{"no destination", `{"routes":[{"gw":"10.1.2.1"}]}`, V100, "routes[0].dst: is missing", ""},
		{"no ip", `{"ip4":{}}`, V010, "ip4.ip: is missing", ""},
		{"gateway with a length", `{"ips":[{"address":"10.1.2.3/24","gateway":"10.1.2.1/24"}]}`, V100, "is not an IP address: write 10.1.2.1, without", ""},
		{"leading zeros", `{"ips":[{"address":"010.1.2.3/24"}]}`, V100, "is not an address with a prefix length", ""},
		{"mapped with a length of IPv6", `{"ips":[{"address":"::ffff:10.1.2.3/64"}]}`, V100, "the prefix length of an IPv6 network", ""},
		{"zone", `{"routes":[{"dst":"::/0","gw":"fe80::1%eth0"}]}`, V100, "is not an IP address", ""},
		{"index in quotation marks", `{"ips":[{"address":"10.1.2.3/24","interface":"0"}]}`, V100, `is the string "0", and has to be an integer without quotation marks`, ""},
		{"fraction", `{"interfaces":[{"mtu":1.5}]}`, V110, "interfaces[0].mtu: is the number 1.5, and has to be an integer", ""},
		{"null as interface", `{"interfaces":[null]}`, V110, "interfaces[0]: is null, and has to be an object", ""},
		{"list as string", `{"dns":{"nameservers":"10.1.0.1"}}`, V110, "dns.nameservers: is the string \"10.1.0.1\", and has to be an array of strings", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := DecodeResult([]byte(tc.doc), tc.conf)
			wantError(t, err, tc.bad)
			if err == nil {
				sameBytes(t, marshal(t, r), []byte(tc.want))
			} else if e, ok := err.(*Error); !ok || e.Code != CodeDecode && e.Code != CodeVersion {
				t.Errorf("%T %v", err, err)
			}
		})
	}
}

func TestResultJSON(t *testing.T) {
	r := &Result{CNIVersion: V040}
	if err := json.Unmarshal([]byte(`{"ips":[{"address":"10.1.2.3/24"}]}`), r); err != nil || r.CNIVersion != V040 || len(r.IPs) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	sameBytes(t, marshal(t, Result{IPs: r.IPs}), []byte(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.2.3/24"}]}`))
	b, err := (&Result{IPs: r.IPs}).Encode("") // 0.1.0, as everywhere
	if err != nil || !strings.Contains(string(b), `"ip4"`) {
		t.Errorf("%s, %v", b, err)
	}
	odd, err := DecodeResult([]byte(`{"interfaces":[{"name":"é\u2028\"\\\u0001<&>","sandbox":"~ \u007f"}]}`), V040)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = odd.Encode(V040); err != nil || !json.Valid(b) || !strings.Contains(string(b), `<&>`) {
		t.Errorf("%s, %v", b, err)
	}
	if again, err := DecodeResult(b, ""); err != nil || again.Interfaces[0] != odd.Interfaces[0] {
		t.Errorf("%+v, %v", again, err)
	}
	var routes []Route // as ipam.routes in a configuration
	if err := json.Unmarshal([]byte(`[{"dst":"10.0.0.0/8","GW":"10.1.2.1","table":0}]`), &routes); err != nil || *routes[0].Table != 0 || !routes[0].GW.IsValid() {
		t.Errorf("%+v, %v", routes, err)
	}
	sameBytes(t, marshal(t, routes), []byte(`[{"dst":"10.0.0.0/8","gw":"10.1.2.1","table":0}]`))
	wantError(t, json.Unmarshal([]byte(`[{"dst":"10.0.0.0"}]`), &routes), "has no prefix length, such as 10.0.0.0/32")
	wantError(t, json.Unmarshal([]byte(`[{"dst":"0.0.0.0"}]`), &routes), "has no prefix length, such as 0.0.0.0/0")
	wantError(t, json.Unmarshal([]byte(`[{"dst":"::"}]`), &routes), "has no prefix length, such as ::/0")
	var parts struct {
		I Interface
		A *IP
	}
	if err := json.Unmarshal([]byte(`{"i":{"name":"a","pciID":"p"},"a":null}`), &parts); err != nil || parts.I.PciID != "p" || parts.A != nil {
		t.Errorf("%+v, %v", parts, err)
	}
}

// The namespace of an interface is that of the first interface of its name that has one.
func TestSandbox(t *testing.T) {
	r := &Result{Interfaces: []Interface{{Name: "eth0"}, {Name: "eth1", Sandbox: "/other"}, {Name: "eth0", Sandbox: "/ns"},
		{Name: "eth0", Sandbox: "/later"}}}
	for name, want := range map[string]string{"eth0": "/ns", "eth1": "/other", "eth2": ""} {
		if got := r.Sandbox(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := (*Result)(nil).Sandbox("eth0"); got != "" {
		t.Errorf("of no result: %q", got)
	}
}

// What the document has beside the result's own keys stays, and none of it counts twice.
func TestExtra(t *testing.T) {
	r := Result{Extra: map[string]json.RawMessage{"x": json.RawMessage(` [1, 2] `), "dns": json.RawMessage(`5`),
		"ips": json.RawMessage(`5`), "cniVersion": json.RawMessage(`5`)}}
	b, err := r.Encode(V110)
	if back, bad := DecodeResult(b, ""); err != nil || bad != nil || string(back.Extra["x"]) == "" || back.CNIVersion != V110 {
		t.Errorf("%s, %v, %v", b, err, bad)
	}
	r.Extra["x"] = json.RawMessage(`{`)
	_, err = r.Encode(V110)
	wantError(t, err, "write the result")
}

func TestResultParts(t *testing.T) {
	type parts struct {
		I Interface `json:"i"`
		A IP        `json:"a"`
	}
	const doc = `{"i":{"name":"eth0","mtu":1400,"pciID":"p"},"a":{"interface":0,"address":"10.1.2.3/24","gateway":"10.1.2.1"}}`
	var p parts
	if err := json.Unmarshal([]byte(doc), &p); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, marshal(t, p), []byte(doc))
	wantError(t, json.Unmarshal([]byte(`{"a":{"address":5}}`), &p), "address: is the number 5")
	for _, v := range []any{IP{}, Route{}} {
		if b, err := json.Marshal(v); err == nil {
			t.Errorf("%T without an address is %s", v, b)
		}
	}
}

func TestClone(t *testing.T) {
	doc := sections(t, "testdata/conversions.txtar")["1.1.0 to 1.1.0"]
	r, err := DecodeResult([]byte(doc), V110)
	if err != nil {
		t.Fatal(err)
	}
	before := marshal(t, r)
	c := r.Clone()
	if !reflect.DeepEqual(r, c) {
		t.Fatal("a clone is equal")
	}
	c.Interfaces[0].Name, *c.IPs[0].Interface, *c.Routes[1].Table = "x", 9, 9
	c.DNS.Search[0], c.Extra["vendor"][0] = "x", '['
	c.Extra["more"] = json.RawMessage("1")
	sameBytes(t, marshal(t, r), before)
	if (*Result)(nil).Clone() != nil {
		t.Error("nothing has nothing as its clone")
	}
}
