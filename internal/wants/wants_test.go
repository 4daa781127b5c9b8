package wants

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
)

// What the tag of a key allows is allowed, and what it does not is refused with what would be right.
func TestWants(t *testing.T) {
	for _, tc := range []struct {
		tag        string
		allowed    string // values, separated by blanks
		refused    string
		want, lack string // parts of the error that are there, and that are not
	}{
		{`want:"bridge|private"`, `"bridge" "private" "" null`, `"brigde"`, `x: "brigde": want bridge or private; did you mean "bridge"?`, ""},
		{`want:"bridge|private" says:"a mode"`, `"bridge"`, `"brigde"`, `x: "brigde": want a mode`, "did you mean"},
		{`want:"0|68..65535 bytes"`, `0 68 65535`, `67`, `x: 67: want`, ""},
		{`want:"0|68..65535 bytes"`, ``, `65536`, `68 to 65535 bytes`, ""},
		{`want:"1..4|auto"`, `1 4 "auto"`, `"autp"`, `did you mean "auto"?`, ""},
		{`want:"1..4|auto"`, ``, `0`, `1 to 4`, ""},
		{`want:"mac"`, `"02:00:00:00:00:01"`, `"02:00"`, `x: "02:00": `, ""},
		{`want:"mac|auto"`, `"02:00:00:00:00:01" "auto"`, `"x"`, `x: "x": `, ""},
		{`want:"ifname"`, `"eth0"`, `"a/b"`, `x: "a/b": interface name`, ""},
		{`want:"address"`, `"192.0.2.1" "2001:db8::1"`, `"fe80::1%eth0"`, `want an address, such as`, ""},
		{`want:"address" says:"a next hop"`, ``, `"x"`, `x: "x": want a next hop`, "such as"},
		{`want:"subnet"`, `"192.0.2.0/24"`, `"192.0.2.0"`, `want a subnet, such as`, ""},
		{`want:"subnet" says:"a range"`, ``, `"x"`, `x: "x": want a range`, "such as"},
		{`want:"address|subnet"`, `"192.0.2.1" "192.0.2.0/24"`, `"x"`, `want a subnet`, ""},
		{`want:"/^[a-z]{1,3}$/" says:"letters"`, `"a" "abc"`, `"abcd"`, `x: "abcd": want letters`, ""},
		{`want:"bridge"`, `["bridge","bridge"]`, `["bridge","x"]`, `x[1]: "x": want "bridge"`, ""},
		{``, `"x" 5 true`, ``, "", ""},
	} {
		w := Of(reflect.StructTag(tc.tag))
		if w.Some() != (tc.tag != "") {
			t.Errorf("%s: restricts %v", tc.tag, w.Some())
		}
		for _, value := range strings.Fields(tc.allowed) {
			if err := w.Check("x", json.RawMessage(value)); err != nil {
				t.Errorf("%s: %v", tc.tag, err)
			}
		}
		if tc.refused == "" {
			continue
		}
		for _, code := range []spec.Code{spec.CodeConfig, 2} {
			if code == 2 {
				w = Of(reflect.StructTag(tc.tag + ` code:"2"`))
			}
			err := w.Check("x", json.RawMessage(tc.refused))
			if err == nil || !strings.Contains(err.Error(), tc.want) || tc.lack != "" && strings.Contains(err.Error(), tc.lack) {
				t.Errorf("%s refuses %s: %v", tc.tag, tc.refused, err)
				continue
			}
			if got := spec.AsError(err, spec.CodeIO).Code; got != code && !strings.Contains(tc.tag, "mac") {
				t.Errorf("%s: %v has the code %d, want %d", tc.tag, err, got, code)
			}
		}
	}
}
