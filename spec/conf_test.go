package spec

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

// clause: V5 C1 C2 C3 C11 C12 P8
func TestParseConf(t *testing.T) {
	for _, tc := range []struct {
		name, conf string
		code       Code
		bad        string
	}{
		{"least", `{"name":"n","type":"bridge"}`, 0, ""},
		{"keys in any case", `{"NAME":"n","Type":"bridge","CniVersion":"1.0.0","IPAM":{"TYPE":"dhcp"}}`, 0, ""},
		{"no ipam", `{"name":"n","type":"bridge","ipam":{}}`, 0, ""},
		{"ipam null", `{"name":"n","type":"bridge","ipam":null,"dns":null,"capabilities":null,"prevResult":null}`, 0, ""},
		{"ipam type empty", `{"name":"n","type":"bridge","ipam":{"type":""}}`, 0, ""},
		{"args of any kind", `{"name":"n","type":"bridge","args":[1]}`, 0, ""},
		{"unknown version, unknown shape", `{"name":"n","cniVersion":"3.0.0","type":{"is":"an object"},"prevResult":5}`, 0, ""},
		{"malformed version", `{"name":"n","type":"bridge","cniVersion":"1.0"}`, 0, ""},
		{"last of duplicates", `{"name":"a b","name":"n","type":"bridge"}`, 0, ""},

		{"empty", "", 6, "line 1, column 1: there is no JSON here, the text is empty"},
		{"truncated", "{\"name\":\"n\",\n\"type\":", 6,
			"line 2, column 8: the text ends inside the object that begins at line 1, column 1"},
		{"array", `[]`, 6, "the configuration is an array: it has to be an object"},
		{"two documents", `{"name":"n","type":"bridge"}{}`, 6, "column 29: { where the end of the document is expected"},
		{"name of a wrong kind", `{"name":5,"type":"bridge"}`, 6, "line 1, column 9: name: is the number 5, and has to be a string"},
		{"version of a wrong kind", `{"name":"n","type":"bridge","cniVersion":1.0}`, 6, "cniVersion: is the number 1.0"},
		{"ipam of a wrong kind", `{"name":"n","type":"bridge","ipam":"dhcp"}`, 6, "ipam: is the string \"dhcp\", and has to be an object"},
		{"capability of a wrong kind", `{"name":"n","type":"bridge","capabilities":{"ips":"true"}}`, 6, "capabilities.ips: is the string \"true\", and has to be true or false without quotation marks"},
		{"dns of a wrong kind", `{"name":"n","type":"bridge","dns":{"search":[1]}}`, 6, "dns.search[0]: is the number 1"},
		{"attachments of a wrong kind", `{"name":"n","type":"bridge","cni.dev/valid-attachments":{}}`, 6, "cni.dev/valid-attachments: is an object, and has to be an array"},
		{"attachment without interface", `{"name":"n","type":"bridge","cni.dev/valid-attachments":[{"containerID":"c","ifName":"eth0"},{"containerID":"c","iface":"x"}]}`, 7,
			"cni.dev/valid-attachments[1].ifname: is missing: an attachment has containerID and ifname (is \"iface\""},
		{"attachment of nobody", `{"name":"n","type":"bridge","cni.dev/attachments":[{"containerID":"","ifname":"eth0"}]}`, 7, "cni.dev/attachments[0].containerID: is empty"},
		{"no name", `{"type":"bridge"}`, 7, "name: is missing: a network needs one"},
		{"name null", `{"name":null,"type":"bridge"}`, 7, "name: is missing"},
		{"name empty", `{"name":"","type":"bridge"}`, 7, "name: name is empty"},
		{"name that is a path", `{"name":"../n","type":"bridge"}`, 7, `name "../n" begins with '.'`},
		{"name with a blank", `{"name":"a b","type":"bridge"}`, 7, `has the character ' '`},
		{"no type", `{"name":"n","tpye":"bridge"}`, 7, `type: is missing: it names the plugin (is "tpye" at line 1, column 13 meant to be it?)`},
		{"type that is a path", `{"name":"n","type":"a/b"}`, 7, `type: type "a/b" is not a plain file name`},
		{"ipam type that is a path", `{"name":"n","type":"b","ipam":{"type":"..\\x"}}`, 7, `ipam.type: type "..\\x" is not a plain file name`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := ParseConf([]byte(tc.conf))
			wantError(t, err, tc.bad)
			if err == nil {
				if c.Name != "n" {
					t.Errorf("name %q", c.Name)
				}
				sameBytes(t, marshal(t, c.Object), []byte(tc.conf))
				return
			}
			var f *FileError
			if e, ok := err.(*Error); !ok || e.Code != tc.code || !errors.As(err, &f) || f.Line == 0 {
				t.Errorf("%#v: want code %d and a position", err, tc.code)
			}
			// Who it is about is what DEL needs; a list that was read in part would have GC remove the rest.
			known := strings.HasPrefix(tc.conf, `{"name":"n","type":"bridge","`) && c.unfinished()
			if (c != nil) != known {
				t.Errorf("the configuration is %+v", c)
			}
		})
	}
}

func (c *Conf) unfinished() bool {
	return c != nil && c.Name == "n" && c.Type == "bridge" && !c.HasValidAttachments && c.ValidAttachments == nil
}

func TestConfFields(t *testing.T) {
	c, err := ParseConf([]byte(`{"cniVersion":"0.4.0","name":"n","type":"bridge","ipam":{"type":"host-local"},
		"capabilities":{"portMappings":true,"ips":false},"dns":{"nameservers":["10.1.0.1"],"options":[]},
		"prevResult":{"ips":[{"version":"4","address":"10.1.2.3/24"}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	prev := c.PrevResult
	if prev == nil || prev.CNIVersion != V040 || len(prev.IPs) != 1 {
		t.Errorf("prevResult %+v", prev)
	}
	c.PrevResult, c.Object = nil, Object{}
	same(t, c, &Conf{CNIVersion: V040, Name: "n", Type: "bridge", IPAMType: "host-local",
		Capabilities: map[string]bool{"portMappings": true, "ips": false}, DNS: &DNS{Nameservers: []string{"10.1.0.1"},
			Options: []string{}}})
	if c.HasValidAttachments {
		t.Error("no list is no empty list")
	}
	c, err = ParseConf([]byte(`{"name":"n","type":"t","cniVersion":"9.0.0"}`))
	if err != nil || c.CNIVersion.Known() || c.Type != "t" {
		t.Errorf("%+v, %v: an unknown version is for the plugin to refuse", c, err)
	}
	if c, err = ParseConf([]byte(`{"name":"n","type":"t"}`)); err != nil || c.CNIVersion != V010 {
		t.Errorf("%+v, %v", c, err)
	}
}

// DEL goes on without a prevResult that cannot be read; the others see the error.
// clause: P12
func TestBadPrevResult(t *testing.T) {
	for doc, code := range map[string]Code{
		`{"name":"n","type":"t","cniVersion":"1.0.0","prevResult":{"ips":[{"address":"x"}]}}`: CodeDecode,
		`{"name":"n","type":"t","cniVersion":"1.0.0","prevResult":{"cniVersion":"7.0.0"}}`:    CodeVersion,
		`{"name":"n","type":"t","cniVersion":"1.0.0","prevResult":[]}`:                        CodeDecode,
	} {
		c, err := ParseConf([]byte(doc))
		var e *Error
		if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Msg, "prevResult") {
			t.Errorf("%s: %v", doc, err)
		}
		if c == nil || c.Name != "n" || c.PrevResult != nil {
			t.Errorf("%s: %+v: the rest was fine", doc, c)
		}
	}
}

// Both keys are in use, and an attachment that one of them names is valid.
// clause: P22
func TestValidAttachments(t *testing.T) {
	for _, tc := range []struct {
		keys string
		has  bool
		want []Attachment
	}{
		{``, false, nil},
		{`,"cni.dev/valid-attachments":null`, true, nil}, // what libcni sends for a nil slice
		{`,"cni.dev/valid-attachments":null,"cni.dev/attachments":null`, true, nil},
		{`,"cni.dev/valid-attachments":null,"cni.dev/attachments":[{"containerID":"a","ifname":"eth0"}]`, true, []Attachment{{"a", "eth0"}}},
		{`,"cni.dev/valid-attachments":[]`, true, nil},
		{`,"cni.dev/attachments":[{"containerID":"a","ifname":"eth0"}]`, true, []Attachment{{"a", "eth0"}}},
		{`,"cni.dev/valid-attachments":[{"containerID":"b","ifname":"eth0"},{"containerID":"a","ifname":"eth0"}],
		   "cni.dev/attachments":[{"containerID":"a","ifname":"eth0"},{"containerID":"a","ifname":"eth1"}]`, true,
			[]Attachment{{"b", "eth0"}, {"a", "eth0"}, {"a", "eth1"}}},
	} {
		c, err := ParseConf([]byte(`{"cniVersion":"1.1.0","name":"n","type":"t"` + tc.keys + `}`))
		if err != nil || c.HasValidAttachments != tc.has || !reflect.DeepEqual(c.ValidAttachments, tc.want) {
			t.Errorf("%s: %v %v, %v", tc.keys, c.HasValidAttachments, c.ValidAttachments, err)
		}
	}
}

// An attachment that cannot be read is no valid one, and none that is missing: GC would take it away.
func TestOddValidAttachments(t *testing.T) {
	for list, want := range map[string]string{
		`[5]`:                                  "is the number 5, and has to be an object",
		`[{"containerID":5,"ifname":"eth0"}]`:  "containerID: is the number 5",
		`[{"containerID":"","ifname":"eth0"}]`: "containerID: is empty",
		`[{"containerID":"a"}]`:                "ifname: is missing",
		`5`:                                    "has to be an array of attachments",
	} {
		_, err := ParseConf([]byte(`{"cniVersion":"1.1.0","name":"n","type":"t","cni.dev/valid-attachments":` + list + `}`))
		wantError(t, err, want)
	}
}

// A document of many small values would take as much memory as a host has.
func TestParseConfBounded(t *testing.T) {
	many := func(n int) []byte {
		return []byte(`{"name":"n","type":"bridge","x":[` + strings.Repeat("1,", n) + `1]}`)
	}
	if _, err := ParseConf(many(1 << 19)); err != nil {
		t.Error(err)
	}
	c, err := ParseConf(many(1 << 20))
	wantError(t, err, "there are more than 1048576 values")
	if c != nil {
		t.Errorf("%+v", c)
	}
}
