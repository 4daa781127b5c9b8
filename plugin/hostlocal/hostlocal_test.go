package hostlocal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/sdk"
)

// The test binary is the plugin when a runtime calls it.
func TestMain(m *testing.M) {
	if os.Getenv("CNI_COMMAND") != "" {
		os.Exit(sdk.Serve([]sdk.Plugin{Plugin}, "host-local", "test"))
	}
	nstest.Main(m)
}

type answer struct {
	out    []byte
	stderr string
	status int
}

func (a answer) String() string { return fmt.Sprintf("exit %d: %s %s", a.status, a.out, a.stderr) }

// call runs a plugin as a runtime does.
func call(t testing.TB, program, verb, id, args, conf string) answer {
	t.Helper()
	cmd := exec.Command(program)
	var stderr strings.Builder
	cmd.Stdin, cmd.Stderr = strings.NewReader(conf), &stderr
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", "CNI_NETNS=/run/netns/none",
		"CNI_PATH=/x", "CNI_ARGS=" + args}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return answer{out, stderr.String(), cmd.ProcessState.ExitCode()}
}

func ours(t testing.TB, verb, id, args, conf string) answer {
	t.Helper()
	return call(t, "/proc/self/exe", verb, id, args, conf)
}

// leases is what a folder holds, file by file.
func leases(t testing.TB, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "net", "*"))
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		m[filepath.Base(f)] = string(b)
	}
	return m
}

// Called the same, the reference and we answer the same: result, or refusal, and files.
// clause: I4 K2 K5 K11 K12 C12 V4 V6
func TestSameAsTheReference(t *testing.T) {
	const program = "/usr/lib/cni/host-local"
	nstest.NeedProgram(t, program)
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	const text = "# c\n; d\nnameserver 192.0.2.1 ignored\n\tnameserver fd00::53  \ndomain a.example\ndomain b.example\n" +
		"search c.example d.example\nsearch e.example\noptions ndots:5 edns0\noptions trust-ad\nnameserver\nnonsense x\n#nameserver 9.9.9.9\n"
	if err := os.WriteFile(resolv, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	const lone = `"subnet":"10.1.0.0/24"`
	type step struct{ verb, id, args, conf string } // of conf what stands between the braces
	for name, steps := range map[string][]step{
		"lone range":          {{"ADD", "a", "", `"ipam":{"type":"host-local",` + lone + `}`}, {"ADD", "a", "", `"ipam":{` + lone + `}`}, {"ADD", "b", "", `"ipam":{` + lone + `}`}},
		"bounds":              {{"ADD", "a", "", `"ipam":{` + lone + `,"rangeStart":"10.1.0.7","rangeEnd":"10.1.0.8","gateway":"10.1.0.254"}`}},
		"keys in any case":    {{"ADD", "a", "", `"IPAM":{"SUBNET":"10.1.0.0/24","RangeStart":"10.1.0.7"}`}},
		"routes":              {{"ADD", "a", "", `"ipam":{` + lone + `,"routes":[{"dst":"0.0.0.0/0"},{"dst":"192.168.0.0/16","gw":"10.1.0.9"}]}`}},
		"resolv.conf":         {{"ADD", "a", "", `"ipam":{` + lone + `,"resolvConf":"` + resolv + `"}`}},
		"missing resolv.conf": {{"ADD", "a", "", `"ipam":{` + lone + `,"resolvConf":"/nonexistent"}`}},
		"two families": {{"ADD", "a", "", `"ipam":{"ranges":[[{` + lone + `}],[{"subnet":"fd00::/64","gateway":"fe80::1"}]]}`},
			{"DEL", "a", "", `"ipam":{"ranges":[[{` + lone + `}],[{"subnet":"fd00::/64"}]]}`}},
		"a pool of two": {{"ADD", "a", "", `"ipam":{"ranges":[[{"subnet":"10.1.0.0/30"},{"subnet":"10.2.0.0/30"}]]}`},
			{"ADD", "b", "", `"ipam":{"ranges":[[{"subnet":"10.1.0.0/30"},{"subnet":"10.2.0.0/30"}]]}`},
			{"ADD", "c", "", `"ipam":{"ranges":[[{"subnet":"10.1.0.0/30"},{"subnet":"10.2.0.0/30"}]]}`}},
		"ipRanges come first": {{"ADD", "a", "", `"ipam":{` + lone + `},"runtimeConfig":{"ipRanges":[[{"subnet":"10.2.0.0/24"}]]}`},
			{"ADD", "b", "", `"ipam":{` + lone + `}`}, // whose set 0 is the other one now
			{"ADD", "c", "", `"ipam":{` + lone + `,"ranges":[[{"subnet":"10.3.0.0/24"}]]},"runtimeConfig":{"ipRanges":[[{"subnet":"10.2.0.0/24"}]]}`}},
		"asked by CNI_ARGS":       {{"ADD", "a", "IP=10.1.0.9", `"ipam":{` + lone + `}`}},
		"asked with a prefix":     {{"ADD", "a", "IP=10.1.0.9/8", `"ipam":{` + lone + `}`}},
		"asked by args":           {{"ADD", "a", "", `"ipam":{` + lone + `},"args":{"cni":{"ips":["10.1.0.9"]}}`}},
		"asked by runtimeConfig":  {{"ADD", "a", "", `"ipam":{` + lone + `},"runtimeConfig":{"ips":["10.1.0.9/24"]}`}},
		"asked twice, as podman":  {{"ADD", "a", "IgnoreUnknown=1;K8S_POD_NAME=x;IP=10.1.0.9", `"ipam":{` + lone + `},"runtimeConfig":{"ips":["10.1.0.9"]}`}},
		"asked for the gateway":   {{"ADD", "a", "IP=10.1.0.1", `"ipam":{` + lone + `}`}},
		"asked for one elsewhere": {{"ADD", "a", "IP=10.9.0.9", `"ipam":{` + lone + `}`}},
		"asked for what is taken": {{"ADD", "a", "IP=10.1.0.9", `"ipam":{` + lone + `}`}, {"ADD", "b", "IP=10.1.0.9", `"ipam":{` + lone + `}`}},
		"asked for nonsense":      {{"ADD", "a", "IP=x", `"ipam":{` + lone + `}`}},
		"unknown argument":        {{"ADD", "a", "MAC=02:00:00:00:00:01", `"ipam":{` + lone + `}`}},
		"no range":                {{"ADD", "a", "", `"ipam":{"type":"host-local"}`}},
		"no ipam":                 {{"ADD", "a", "", `"x":1`}},
		"host bits":               {{"ADD", "a", "", `"ipam":{"subnet":"10.1.0.5/24"}`}},
		"too small":               {{"ADD", "a", "", `"ipam":{"subnet":"10.1.0.0/31"}`}},
		"start elsewhere":         {{"ADD", "a", "", `"ipam":{` + lone + `,"rangeStart":"10.2.0.1"}`}},
		"upside down":             {{"ADD", "a", "", `"ipam":{` + lone + `,"rangeStart":"10.1.0.9","rangeEnd":"10.1.0.8"}`}},
		"mixed families":          {{"ADD", "a", "", `"ipam":{"ranges":[[{` + lone + `},{"subnet":"fd00::/64"}]]}`}},
		"overlap":                 {{"ADD", "a", "", `"ipam":{"ranges":[[{` + lone + `}],[{"subnet":"10.1.0.0/16"}]]}`}},
		"a number for a string":   {{"ADD", "a", "", `"ipam":{"subnet":10}`}},
		"unknown keys":            {{"ADD", "a", "", `"x":1,"ipam":{` + lone + `,"y":{"z":1}}`}},
		"empty strings":           {{"ADD", "a", "", `"ipam":{` + lone + `,"dataDir":"` + "DIR" + `","resolvConf":"","rangeStart":"","gateway":""}`}},
		"nulls":                   {{"ADD", "a", "", `"ipam":{` + lone + `,"routes":null,"ranges":null},"args":null,"runtimeConfig":null`}},
		"DEL of nothing":          {{"DEL", "a", "", `"ipam":{` + lone + `}`}},
		"second address by name":  {{"ADD", "a", "", `"ipam":{` + lone + `}`}, {"ADD", "a", "IP=10.1.0.9", `"ipam":{` + lone + `}`}, {"DEL", "a", "", `"ipam":{` + lone + `}`}},
		"CHECK":                   {{"ADD", "a", "", `"ipam":{` + lone + `}`}, {"CHECK", "a", "", `"ipam":{` + lone + `},"prevResult":{"ips":[{"version":"4","address":"10.1.0.2/24"}]}`}},
		"CHECK of nothing":        {{"ADD", "a", "", `"ipam":{` + lone + `}`}, {"CHECK", "b", "", `"ipam":{` + lone + `},"prevResult":{"ips":[{"version":"4","address":"10.1.0.2/24"}]}`}},
	} {
		for _, version := range []string{"0.2.0", "0.3.1", "0.4.0", "1.0.0", "0.3.1 IPv6", "1.0.0 IPv6"} {
			t.Run(name+" "+version, func(t *testing.T) {
				dirs := [2]string{t.TempDir(), t.TempDir()}
				version, six := strings.CutSuffix(version, " IPv6")
				for i, s := range steps {
					if six {
						s.args, s.conf = asIPv6(s.args), asIPv6(s.conf)
					}
					var got [2]answer
					for j, program := range []string{"/proc/self/exe", program} {
						// Each has a folder of its own, and the first step of all makes it.
						conf := strings.Replace(s.conf, `ipam":{`, `ipam":{"dataDir":"`+dirs[j]+`",`, 1)
						conf = strings.Replace(conf, `IPAM":{`, `ipam":{"dataDir":"`+dirs[j]+`",`, 1)
						conf = strings.ReplaceAll(conf, "DIR", dirs[j])
						got[j] = call(t, program, s.verb, s.id, s.args, `{"cniVersion":"`+version+`","name":"net","type":"x",`+conf+`}`)
					}
					if got[0].status != got[1].status {
						t.Fatalf("step %d, %s %s %s:\nours      %s\nreference %s", i, s.verb, s.id, s.args, got[0], got[1])
					}
					var a, b map[string]any
					if got[0].status == 0 && s.verb == "ADD" {
						if err := errors.Join(json.Unmarshal(got[0].out, &a), json.Unmarshal(got[1].out, &b)); err != nil {
							t.Fatal(err)
						}
						for _, m := range []map[string]any{a, b} { // older ones print an empty dns with 1.0.0 too
							if dns, ok := m["dns"].(map[string]any); ok && len(dns) == 0 {
								delete(m, "dns")
							}
						}
						if !reflect.DeepEqual(a, b) {
							t.Errorf("step %d, %s %s %s:\nours      %s\nreference %s", i, s.verb, s.id, s.args, got[0].out, got[1].out)
						}
					}
					files := [2]map[string]string{leases(t, dirs[0]), leases(t, dirs[1])}
					for _, m := range files {
						delete(m, "lock") // which even its refusals make
						if got[0].status != 0 {
							delete(m, "last_reserved_ip.0") // which may have moved before the refusal
						}
					}
					if !reflect.DeepEqual(files[0], files[1]) {
						t.Errorf("step %d, %s %s %s:\nours      %q\nreference %q", i, s.verb, s.id, s.args, files[0], files[1])
					}
				}
			})
		}
	}
}

// asIPv6 is a text whose IPv4 addresses are IPv6 ones, as long and as far apart.
func asIPv6(s string) string {
	s = regexp.MustCompile(`\b10\.(\d)\.0\.(\d+)/(\d+)`).ReplaceAllStringFunc(s, func(p string) string {
		a := netip.MustParsePrefix(p)
		return fmt.Sprintf("fd00:%d::%x/%d", a.Addr().As4()[1], a.Addr().As4()[3], a.Bits()+96)
	})
	s = regexp.MustCompile(`\b10\.(\d)\.0\.(\d+)`).ReplaceAllStringFunc(s, func(p string) string {
		a := netip.MustParseAddr(p)
		return fmt.Sprintf("fd00:%d::%x", a.As4()[1], a.As4()[3])
	})
	return strings.NewReplacer("0.0.0.0/0", "::/0", "192.168.0.0/16", "fd99::/16", `"version":"4"`, `"version":"6"`).Replace(s)
}

// Of two places that say the same thing args counts: IP of CNI_ARGS is not even read.
//
// clause: K11
func TestArgsBeatCNIArgs(t *testing.T) {
	for _, ip := range []string{"10.1.0.9", "10.9.0.9", "nonsense"} {
		got := ours(t, "ADD", "a", "IP="+ip, `{"cniVersion":"1.0.0","name":"net","type":"host-local","ipam":{"type":"host-local","subnet":"10.1.0.0/24","dataDir":"`+t.TempDir()+
			`"},"args":{"cni":{"ips":["10.1.0.7"]}}}`)
		if got.status != 0 || !strings.Contains(string(got.out), `"10.1.0.7/24"`) || strings.Contains(string(got.out), "10.1.0.9") {
			t.Errorf("IP=%s: %v", ip, got)
		}
	}
}

// A refusal is a document that names the path, the value and what would be right.
// clause: P5 P7 P8 K13
func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		args, conf string
		code       int
		msg        string
	}{
		{"", `"ipam":{"ranges":[[{"subnet":"10.9.0.0/24"},{"subnet":"10.0.0.5/24"}]]}`, 7, "ipam.ranges[0][1].subnet: 10.0.0.5/24 has host bits set; the network is 10.0.0.0/24"},
		{"", `"ipam":{"subnet":"10.0.0.0/33"}`, 7, `ipam.subnet: "10.0.0.0/33"`},
		{"", `"ipam":{"ranges":[[{"subnet":7}]]}`, 6, `ipam.ranges[0][0].subnet: 7: want a string`},
		{"", `"ipam":{"subnet":"10.0.0.0/24"},"runtimeConfig":{"ipRanges":[[{}]]}`, 7, "runtimeConfig.ipRanges[0][0].subnet: is missing"},
		{"", `"ipam":{"subnet":"10.0.0.0/24","releaseCooldown":"soon"}`, 7, `ipam.releaseCooldown: "soon": want a duration such as "30s", or seconds`},
		{"", `"ipam":{"subnet":"10.0.0.0/24","releaseCooldown":-1}`, 7, `ipam.releaseCooldown: -1: want a duration such as "30s", or seconds`},
		{"", `"ipam":{"subnet":"10.0.0.0/24","resolvConf":"/nonexistent"}`, 7, "ipam.resolvConf: open /nonexistent: no such file or directory"},
		{"", `"ipam":{"type":"host-local"}`, 7, "ipam: has no range: want subnet or ranges"},
		{"", `"ipam":{"subnet":"10.0.0.0/24","reserved":["10.0.0.5","x"]}`, 7, `ipam.reserved[1]: "x": want an address or a subnet`},
		{"", `"ipam":{"subnet":"fd00::/64","reserved":["fd00::5/64"]}`, 7, `ipam.reserved[0]: fd00::5/64 has host bits set; write fd00::5, or fd00::/64`},
		{"", `"ipam":{"subnet":"10.0.0.0/24","reserved":"10.0.0.5"}`, 6, `ipam.reserved: "10.0.0.5": want a list`},
		{"", `"ipam":{"subnet":"10.0.0.0/24","sticky":{}}`, 7, `ipam.sticky.key: is missing`},
		{"", `"ipam":{"subnet":"10.0.0.0/24","sticky":{"key":"K8S_POD_NAME"}}`, 6, `ipam.sticky.key: "K8S_POD_NAME": want a list`},
		{"", `"ipam":{"subnet":"10.0.0.0/24","sticky":{"key":["K8S_POD_NAME","labels."]}}`, 7, `ipam.sticky.key[1]: "labels.": want the name of an argument`},
		{"", `"ipam":{"subnet":"10.0.0.0/24","sticky":{"key":["NAME"],"ttl":"-1h"}}`, 7, `ipam.sticky.ttl: "-1h": want a duration`},
		{"NAME=x;OTHER=y", `"ipam":{"subnet":"10.0.0.0/24","sticky":{"key":["NAME"]}}`, 4, `["OTHER"]`},
		{"IP=10.0.0.1", `"ipam":{"subnet":"10.0.0.0/24"}`, 7, "requested address 10.0.0.1 is the gateway"},
		{"IP=10.0.0.255", `"ipam":{"subnet":"10.0.0.0/24","rangeEnd":"10.0.0.255"}`, 7, "CNI_ARGS: IP: requested address 10.0.0.255 is the broadcast address of 10.0.0.0/24: want an address"},
		{"", `"ipam":{"subnet":"10.0.0.0/24"},"runtimeConfig":{"ips":["10.0.0.5","10.0.0.0/16"]}`, 7, "runtimeConfig.ips[1]: requested address 10.0.0.0 is the address of the subnet 10.0.0.0/24 itself"},
		{"", `"ipam":{"subnet":"fd00::/64"},"args":{"cni":{"ips":["::1"]}}`, 7, "args.cni.ips[0]: requested address ::1 is the host's itself"},
		{"", `"ipam":{"subnet":"fd00::/64"},"runtimeConfig":{"ips":["::"]}`, 7, "runtimeConfig.ips[0]: requested address :: is no address"},
		{"IP=127.0.0.5", `"ipam":{"subnet":"127.0.0.0/8"}`, 7, "CNI_ARGS: IP: requested address 127.0.0.5 is the host's itself"},
		{"IP=224.0.0.5/24", `"ipam":{"subnet":"224.0.0.0/24"}`, 7, "CNI_ARGS: IP: requested address 224.0.0.5 is a group's"},
		{"MAC=02:00:00:00:00:01", `"ipam":{"subnet":"10.0.0.0/24"}`, 4, "MAC"},
		{"IP=10.7.0.1", `"ipam":{"subnet":"10.0.0.0/24"}`, 7, "requested address 10.7.0.1 is in no range; there is 10.0.0.1-10.0.0.254"},
	} {
		conf := `{"cniVersion":"1.1.0","name":"net","type":"x",` + strings.Replace(tc.conf, `ipam":{`, `ipam":{"dataDir":"`+dir+`",`, 1) + `}`
		got := ours(t, "ADD", "a", tc.args, conf)
		var doc struct {
			CNIVersion string
			Code       int
			Msg        string
		}
		if err := json.Unmarshal(got.out, &doc); err != nil {
			t.Errorf("%s: %v in %s", tc.conf, err, got)
			continue
		}
		if got.status == 0 || doc.Code != tc.code || !strings.Contains(doc.Msg, tc.msg) || doc.CNIVersion != "1.1.0" {
			t.Errorf("%s:\ngot  %d %q\nwant %d %q", tc.conf, doc.Code, doc.Msg, tc.code, tc.msg)
		}
	}
	if got := leases(t, dir); len(got) > 0 {
		t.Errorf("refusals left %q", got)
	}
}

// A life, by the verbs that the reference does not have.
// clause: P12 P13 P21 P22
func TestLife(t *testing.T) {
	for name, f := range map[string]struct{ ranges, full string }{
		"IPv4": {`"subnet":"10.1.0.0/29"`, "10.1.0.1-10.1.0.6: 5 of 5 are in use"},
		"IPv6": {`"subnet":"fd00::/125","rangeEnd":"fd00::6"`, "fd00::1-fd00::6: 5 of 5 are in use"},
		"both": {`"ranges":[[{"subnet":"10.1.0.0/29"}],[{"subnet":"fd00::/64"}]]`, "10.1.0.1-10.1.0.6: 5 of 5 are in use"},
	} {
		t.Run(name, func(t *testing.T) { life(t, f.ranges, f.full, name) })
	}
}

func life(t *testing.T, ranges, full, family string) {
	dir := t.TempDir()
	var addrs []string // without their ends
	if family != "IPv6" {
		addrs = append(addrs, "10.1.0.")
	}
	if family != "IPv4" {
		addrs = append(addrs, "fd00::")
	}
	conf := func(extra string) string {
		return `{"cniVersion":"1.1.0","name":"net","type":"x","ipam":{"type":"host-local","dataDir":"` + dir + `",` + ranges + `}` + extra + `}`
	}
	bare := `{"cniVersion":"1.1.0","name":"net","type":"x","ipam":{"type":"host-local","dataDir":"` + dir + `"},"cni.dev/valid-attachments":[{"containerID":"b","ifname":"eth0"}]}`
	silent := func(what string, a answer) {
		t.Helper()
		if a.status != 0 || len(a.out) > 0 || a.stderr != "" {
			t.Errorf("%s: %s", what, a)
		}
	}
	silent("STATUS before the first ADD", ours(t, "STATUS", "", "", conf("")))
	var first json.RawMessage
	for i, id := range []string{"a", "b", "c", "d", "e"} {
		got := ours(t, "ADD", id, "", conf(""))
		for _, a := range addrs {
			if want := fmt.Sprintf(`"%s%d/`, a, i+2); got.status != 0 || !bytes.Contains(got.out, []byte(want)) {
				t.Fatalf("ADD %s: %s", id, got)
			}
		}
		if id == "a" {
			first = got.out
		}
	}
	silent("CHECK", ours(t, "CHECK", "a", "", conf(`,"prevResult":`+string(first))))
	for verb, code := range map[string]string{"ADD": `"code": 11`, "STATUS": `"code": 50`} {
		got := ours(t, verb, "f", "", conf(""))
		if got.status == 0 || !bytes.Contains(got.out, []byte(code)) || !bytes.Contains(got.out, []byte(full)) {
			t.Errorf("%s of a full range: %s", verb, got)
		}
	}
	// DEL and GC need no ranges, and nobody's arguments stop them.
	silent("DEL", ours(t, "DEL", "a", "MAC=x;nonsense", bare))
	silent("DEL again", ours(t, "DEL", "a", "", bare))
	silent("STATUS", ours(t, "STATUS", "", "", conf("")))
	for _, a := range addrs {
		if got := ours(t, "CHECK", "a", "", conf(`,"prevResult":`+string(first))); got.status == 0 || !bytes.Contains(got.out, []byte("lease "+a+"2: is missing")) {
			t.Errorf("CHECK after DEL: %s", got)
		}
	}
	silent("GC", ours(t, "GC", "", "", bare))
	if got := leases(t, dir); len(got) != 1+2*len(addrs) || got[addrs[0]+"3"] != "b\r\neth0" {
		t.Errorf("after GC: %q", got)
	}
	if got := ours(t, "GC", "", "", conf("")); got.status == 0 || !bytes.Contains(got.out, []byte(`"code": 7`)) {
		t.Errorf("GC without a list: %s", got)
	}
	// What a crash leaves is said.
	if err := os.WriteFile(filepath.Join(dir, "net", addrs[0]+"6"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := ours(t, "ADD", "f", "", conf("")); got.status != 0 || !strings.Contains(got.stderr, "net/"+addrs[0]+"6") {
		t.Errorf("an empty lease file: %s", got)
	}
}
