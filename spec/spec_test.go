package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"reflect"
	"strings"
	"testing"
)

// clause: V5
func TestParseVersion(t *testing.T) {
	for s, known := range map[string]bool{"": true, "0.1.0": true, "1.1.0": true, "1.2.0": false, "0.3.2": false,
		"1.0": false, "1": false, "01.0.0": false} {
		v, err := ParseVersion(s)
		if err != nil || v.Known() != known || s != "" && string(v) != s {
			t.Errorf("%q: %q, %v, known %v", s, v, err, v.Known())
		}
	}
	for _, s := range []string{"1.0.0-rc1", "v1.0.0", "1.0.0.0", ".", "1..0", "1.0.", "-1.0.0", " 1.0.0", "1.0.0\n",
		"99999999999999999999.0.0", "٠.١.٠"} {
		if v, err := ParseVersion(s); err == nil {
			t.Errorf("%q is %q", s, v)
		}
	}
	for _, tc := range []struct {
		v, w Version
		want bool
	}{{"", V010, true}, {V010, "", true}, {"", V020, false}, {V040, V031, true}, {V031, V040, false}, {V100, V100,
		true}, {"1.10.0", V110, true}, {"1.1", V110, true}, {"2", V110, true}} {
		if tc.v.AtLeast(tc.w) != tc.want {
			t.Errorf("%q at least %q: want %v", tc.v, tc.w, tc.want)
		}
	}
	if Version("").Or010() != V010 || V040.Or010() != V040 {
		t.Error("0.1.0 stands in for nothing else")
	}
	if vs := Versions(); len(vs) != 7 || vs[6] != Newest {
		t.Errorf("%q", vs)
	}
}

// must returns what an encoder does.
func must(t *testing.T, encode func() ([]byte, error)) []byte {
	t.Helper()
	b, err := encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// clause: V1 V2
func TestVersionInfo(t *testing.T) {
	info := VersionInfo{V040, []Version{V031, V040}}
	for _, b := range [][]byte{marshal(t, info), must(t, info.Encode)} {
		sameBytes(t, b, []byte(`{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0"]}`))
	}
	for _, tc := range []struct {
		doc  string
		want []Version
		bad  string
	}{
		{`{"cniVersion":"1.0.0","supportedVersions":["0.4.0","9.9.9"]}`, []Version{V040, "9.9.9"}, ""},
		{`{"cniVersion":"0.2.0"}`, []Version{V010, V020}, ""},
		{`{"cniVersion":"0.3.0"}`, nil, "has no supportedVersions"},
		{`{"supportedVersions":["0.4.0"]}`, nil, "has no cniVersion"},
		{`{"cniVersion":1}`, nil, "cannot unmarshal number"},
	} {
		var info VersionInfo
		err := json.Unmarshal([]byte(tc.doc), &info)
		wantError(t, err, tc.bad)
		if !reflect.DeepEqual(info.SupportedVersions, tc.want) {
			t.Errorf("%s: %v", tc.doc, info)
		}
	}
}

// clause: C1 P3
func TestValidName(t *testing.T) {
	for _, valid := range []func(string) error{ValidName, ValidContainerID} {
		for _, s := range []string{"a", "Z", "0", "a_b.c-d", "1..2", strings.Repeat("x", 1000)} {
			if err := valid(s); err != nil {
				t.Error(err)
			}
		}
		for _, s := range []string{"", "_a", "-a", ".a", "..", "a b", "a/b", "a\n", "a:b", "é", "aé", "a\x00", "a\xff"} {
			if err := valid(s); err == nil {
				t.Errorf("%q is valid", s)
			}
		}
	}
	wantError(t, ValidName("a b"), `name "a b" has the character ' '`)
	wantError(t, ValidContainerID(""), "container ID is empty")
}

// clause: P4
func TestValidIfName(t *testing.T) {
	for _, s := range []string{"e", "eth0", "...", "veth-1_2.3@x", "123456789012345", "é"} {
		if err := ValidIfName(s); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []string{"", ".", "..", "1234567890123456", "ééééééé12", "a/b", "a:1", "a b", "a\t",
		"a\u00a0", "a\u2003", "a\x00", "eth%d", "a%", "all", "default", "e\xff", "e\x01", "e\x7f", "\ufffd", "à"} {
		if err := ValidIfName(s); err == nil {
			t.Errorf("%q is valid", s)
		}
	}
}

// clause: C2
func TestValidType(t *testing.T) {
	for _, s := range []string{"bridge", "host-local", "my_plugin.sh", "a b", ".hidden"} {
		if err := ValidType(s); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []string{"", ".", "..", "a/b", "/bin/sh", `a\b`, "../a", "a..b", "a\x00"} {
		if err := ValidType(s); err == nil {
			t.Errorf("%q is valid", s)
		}
	}
}

// clause: P5
func TestParseArgs(t *testing.T) {
	for _, tc := range []struct {
		s    string
		want [][2]string
		bad  string
	}{
		{"", nil, ""},
		{"FOO=BAR;ABC=123", [][2]string{{"FOO", "BAR"}, {"ABC", "123"}}, ""},
		{"IgnoreUnknown=1;K8S_POD_UID=", [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_UID", ""}}, ""},
		{"a=1;a=2;A=3", [][2]string{{"a", "1"}, {"a", "2"}, {"A", "3"}}, ""},
		{"a=1;", nil, "contains an empty pair"},
		{";", nil, "contains an empty pair"},
		{"a=1;word", nil, `"word" is not KEY=VALUE`},
		{"a=b=c", nil, `"a=b=c" has more than one =`},
		{"=v", nil, `"=v" has no key`},
	} {
		got, err := ParseArgs(tc.s)
		wantError(t, err, tc.bad)
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Code != CodeEnvironment) {
			t.Errorf("%q: %#v", tc.s, err)
		}
		if !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%q: %q", tc.s, got)
		}
		if back, err := FormatArgs(got); tc.bad == "" && (err != nil || back != tc.s) {
			t.Errorf("%q becomes %q, %v", tc.s, back, err)
		}
	}
	for _, p := range [][2]string{{"", "v"}, {"a;b", "v"}, {"a", "b;c"}, {"a", "b=c"}, {"a=", "b"}, {"a", "\x00"}} {
		if s, err := FormatArgs([][2]string{p}); err == nil {
			t.Errorf("%q becomes %q", p, s)
		}
	}
}

// clause: P7 P8
func TestErrorDocument(t *testing.T) {
	e := &Error{Code: CodeConfig, Msg: "Invalid <Configuration>",
		Details: "Network 192.168.0.0/31 too small to allocate from."}
	sameBytes(t, e.Encode(V100), []byte(`{
    "cniVersion": "1.0.0",
    "code": 7,
    "msg": "Invalid <Configuration>",
    "details": "Network 192.168.0.0/31 too small to allocate from."
}`))
	sameBytes(t, (&Error{Code: 100, Msg: "m"}).Encode(""),
		[]byte("{\n    \"cniVersion\": \"0.1.0\",\n    \"code\": 100,\n    \"msg\": \"m\"\n}"))
	if e.CNIVersion != "" {
		t.Error("Encode changes nothing")
	}
	back, ok := DecodeError(e.Encode(V100))
	if !ok || back.CNIVersion != V100 || back.Code != e.Code || back.Msg != e.Msg || back.Details != e.Details {
		t.Errorf("%+v", back)
	}
	for doc, want := range map[string]*Error{
		`{"code":11,"msg":"later"}`:           {Code: CodeTryAgain, Msg: "later"},
		`{"Code":1e0}`:                        nil,
		`{"code":-4,"msg":"m"}`:               {Code: CodeEnvironment, Msg: "m"}, // as 0.4.0 prints its table
		`{"MSG":"only"}`:                      {Msg: "only"},
		`{"code":null,"msg":"m","details":5}`: {Msg: "m"},
		`{"code":"7","msg":"m"}`:              nil,
		`{"code":7,"msg":["m"]}`:              nil,
		`{"cniVersion":"1.0.0","ips":[]}`:     nil,
		`{}`:                                  nil, `null`: nil, ``: nil, `[7]`: nil, `"code"`: nil, `{"code":7}{"code":8}`: nil,
	} {
		got, ok := DecodeError([]byte(doc))
		if ok != (want != nil) || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v %v", doc, got, ok)
		}
	}
}

// An error around a document has its code, and around a message alone the code that is asked for.
func TestCodeOfWrappedError(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want Code
	}{
		{Errorf(CodeVersion, "not known"), CodeVersion}, {&Error{Msg: "a message alone"}, CodeIO}, {io.EOF, CodeIO},
	} {
		for _, err := range []error{tc.err, fmt.Errorf("first: %w", tc.err)} {
			if e := AsError(err, CodeIO); e.Code != tc.want {
				t.Errorf("%v has code %d, want %d", err, e.Code, tc.want)
			}
		}
	}
}

// What fixes an error reaches who shows message and details alone, and who knows hints finds it apart from the details.
// clause: P7 I2
func TestErrorHint(t *testing.T) {
	taken := Errorf(CodeConfig, "runtimeConfig.portMappings[0]: port 80 is web's").HeldBy("lan/web/eth0")
	const free = "If its container is gone, `fairlead del lan gone --container-id web -i eth0` gives back what it holds."
	for _, e := range []*Error{
		taken,
		Errorf(CodeUnavailable, "%w", fmt.Errorf("first: %w", errors.Join(io.EOF, taken))),
		AsError(fmt.Errorf("first: %w", errors.Join(io.EOF, taken)), CodeInternal),
		AsError(errors.Join(Errorf(CodeIO, "another one"), taken), CodeInternal),
	} {
		if !strings.Contains(e.Hint, "The value is in no file. It comes from -p") || e.Holder != "lan/web/eth0" ||
			strings.Contains(e.Error(), e.Hint) {
			t.Errorf("%+v", e)
		}
	}
	for _, details := range []string{"", "two; of them"} {
		e := &Error{Code: CodeConfig, Msg: "m", Details: details, Hint: "Do this.", Holder: "lan/web/eth0"}
		var doc struct{ Details string }
		if err := json.Unmarshal(e.Encode(V100), &doc); err != nil ||
			doc.Details != strings.TrimPrefix(details+"; Do this.; "+free, "; ") {
			t.Errorf("%q, %v", doc.Details, err)
		}
		back, _ := DecodeError(e.Encode(V100))
		if back.CNIVersion = ""; !reflect.DeepEqual(back, e) {
			t.Errorf("%+v, want %+v", back, e)
		}
	}
	if e := Errorf(CodeIO, "m").WithHint("Do that."); e.Hint != "Do that." || e.Msg != "m" {
		t.Errorf("%+v", e)
	}
	for path, want := range map[string]string{"CNI_ARGS: MAC": "CNI_ARGS.", "runtimeConfig.mac": "CAP_ARGS.",
		"runtimeConfig.aliases[0]":               "--alias of `fairlead run`",
		"runtimeConfig.portMappings[0].hostPort": "or from CAP_ARGS.", "ipam.subnet": ""} {
		if hint := Errorf(CodeConfig, "%s: 5: want something else", path).Hint; !strings.Contains(hint, want) || want == "" &&
			hint != "" {
			t.Errorf("%s: %q", path, hint)
		}
	}
	for _, holder := range []string{"", "web", "/web/eth0", "lan/web/", "lan/we`b/eth0"} {
		if text := (&Error{Holder: holder}).ReleaseHint(); text != "" {
			t.Errorf("%q: %s", holder, text)
		}
	}
}

// clause: P8 I2
func TestErrorChain(t *testing.T) {
	e := Errorf(CodeIO, "open netns %s: %w", "/run/netns/x", fs.ErrNotExist)
	if e.Msg != "open netns /run/netns/x: file does not exist" || !errors.Is(e, fs.ErrNotExist) {
		t.Errorf("%v", e)
	}
	two := Errorf(CodeIO, "%w, %w", io.EOF, fs.ErrExist)
	if !errors.Is(two, io.EOF) || !errors.Is(two, fs.ErrExist) {
		t.Error("both causes stay reachable")
	}
	if errors.Unwrap(Errorf(CodeIO, "plain")) != nil {
		t.Error("nothing is wrapped")
	}

	full := &Error{Code: CodeTryAgain, Msg: "range is full", Details: "254 of 254"}
	if full.Error() != "range is full; 254 of 254" {
		t.Errorf("%v", full)
	}
	if AsError(full, CodeInternal) != full {
		t.Error("an error document is itself")
	}
	wrapped := AsError(fmt.Errorf("ipam host-local: %w", full), CodeInternal)
	if wrapped.Code != CodeTryAgain || wrapped.Msg != "ipam host-local: range is full" ||
		wrapped.Details != "254 of 254" || !errors.Is(wrapped, full) {
		t.Errorf("%+v", wrapped)
	}
	joined := AsError(errors.Join(io.EOF, fmt.Errorf("b: %w", full), fs.ErrExist), CodeInternal)
	if joined.Code != CodeTryAgain || joined.Msg != "EOF; b: range is full; file already exists" ||
		!errors.Is(joined, io.EOF) || !errors.Is(joined, fs.ErrExist) {
		t.Errorf("%+v", joined)
	}
	if plain := AsError(io.EOF, CodeInternal); plain.Code != CodeInternal || plain.Msg != "EOF" ||
		!errors.Is(plain, io.EOF) {
		t.Errorf("%+v", plain)
	}
	if AsError(nil, CodeInternal) != nil {
		t.Error("no error is none")
	}
}
