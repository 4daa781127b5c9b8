package static

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// The test binary is the plugin when a runtime calls it.
func TestMain(m *testing.M) {
	if os.Getenv("CNI_COMMAND") != "" {
		os.Exit(sdk.Serve([]sdk.Plugin{Plugin}, "static", "test"))
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
func call(t testing.TB, program, verb, args, conf string) answer {
	t.Helper()
	cmd := exec.Command(program)
	var stderr strings.Builder
	cmd.Stdin, cmd.Stderr = strings.NewReader(conf), &stderr
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=c", "CNI_IFNAME=eth0", "CNI_NETNS=/run/netns/none",
		"CNI_PATH=/x", "CNI_ARGS=" + args}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return answer{out, stderr.String(), cmd.ProcessState.ExitCode()}
}

const (
	four = `{"address":"10.1.0.5/24","gateway":"10.1.0.1"}`
	six  = `{"address":"fd00::5/64","gateway":"fd00::1"}`
)

// with is a configuration whose addresses are the given ones; more stands beside "ipam".
func with(more string, addresses ...string) string {
	return `"ipam":{"type":"static","addresses":[` + strings.Join(addresses, ",") + `],"routes":[{"dst":"0.0.0.0/0"},{"dst":"fd01::/64","gw":"fd00::9"}],"dns":{"nameservers":["10.1.0.53","fd00::53"],"domain":"a.example","search":["b.example"],"options":["ndots:5"]}}` + more
}

func result(t *testing.T, out []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if dns, ok := m["dns"].(map[string]any); ok && len(dns) == 0 { // older ones print an empty dns with 1.0.0 too
		delete(m, "dns")
	}
	return m
}

// Called the same, the reference and we answer the same.
// clause: I4 K5 K11 K12 C12 V4 V6 P5
func TestSameAsTheReference(t *testing.T) {
	const program = "/usr/lib/cni/static"
	nstest.NeedProgram(t, program)
	for name, tc := range map[string]struct{ args, conf string }{
		"IPv4":                         {"", with("", four)},
		"IPv6":                         {"", with("", six)},
		"both":                         {"", with("", four, six)},
		"several of a family":          {"", with("", four, `{"address":"10.2.0.5/16"}`, six, `{"address":"fd02::5/64"}`)},
		"a lone address":               {"", with("", `{"address":"10.1.0.5/32","gateway":"169.254.1.1"}`, `{"address":"fd00::5/128","gateway":"fe80::1"}`)},
		"keys in any case":             {"", `"IPAM":{"ADDRESSES":[{"address":"10.1.0.5/24","GateWay":"10.1.0.1"}],"DNS":{"Domain":"x"}}`},
		"unknown keys":                 {"", `"x":1,"ipam":{"y":2,"addresses":[` + four + `]}`},
		"empty strings and nulls":      {"", `"ipam":{"addresses":[{"address":"10.1.0.5/24","gateway":""}],"routes":null,"dns":null},"args":null,"runtimeConfig":null`},
		"none":                         {"", with("")},
		"no ipam":                      {"", `"x":1`},
		"by CNI_ARGS":                  {"IP=10.1.0.9/24,fd00::9/64;GATEWAY=10.1.0.254,fd00::ff", with("")},
		"by CNI_ARGS with spaces":      {"IP=10.1.0.9/24, fd00::9/64;GATEWAY=10.1.0.254, fd00::ff", with("")},
		"by CNI_ARGS, behind others":   {"IP=10.1.0.9/24;GATEWAY=10.1.0.254", with("", four, six)},
		"two gateways of a subnet":     {"IP=10.1.0.9/24;GATEWAY=10.1.0.253,10.1.0.254", with("")},
		"empty arguments":              {"IP=;GATEWAY=", with("", four)},
		"a length is missing":          {"IP=10.1.0.9", with("")},
		"nonsense":                     {"IP=x", with("")},
		"an empty one in the list":     {"IP=10.1.0.9/24,", with("")},
		"a gateway of nonsense":        {"IP=10.1.0.9/24;GATEWAY=x", with("")},
		"an argument of others":        {"MAC=02:00:00:00:00:01", with("", four)},
		"… that are to be ignored":     {"K8S_POD_NAME=x;IgnoreUnknown=1;IP=fd00::9/64", with("", four)},
		"arguments of nonsense":        {"IP", with("", four)},
		"args replace":                 {"IP=10.1.0.9/24;GATEWAY=10.1.0.254", with(`,"args":{"cni":{"ips":["10.1.0.7/24","fd00::7/64"]}}`, four, six)},
		"runtimeConfig replaces":       {"IP=10.1.0.9/24;GATEWAY=10.1.0.254", with(`,"runtimeConfig":{"ips":["10.1.0.8/24","fd00::8/64"]}`, four, six)},
		"runtimeConfig replaces args":  {"", with(`,"args":{"cni":{"ips":["10.1.0.7/24"]}},"runtimeConfig":{"ips":["10.1.0.8/24","fd00::8/64"]}`, four, six)},
		"empty lists replace nothing":  {"", with(`,"args":{"cni":{"ips":[]}},"runtimeConfig":{"ips":[]}`, four, six)},
		"nonsense in runtimeConfig":    {"", with(`,"runtimeConfig":{"ips":["x"]}`, four)},
		"no length, no subnet":         {"", with(`,"runtimeConfig":{"ips":["10.9.0.9"]}`)},
		"nonsense in the file":         {"", with("", `{"address":"x"}`)},
		"no length in the file":        {"", with("", `{"address":"10.1.0.5"}`)},
		"no address in the file":       {"", with("", `{"gateway":"10.1.0.1"}`)},
		"a gateway of nonsense in it":  {"", with("", `{"address":"10.1.0.5/24","gateway":"x"}`)},
		"a number for a string":        {"", with("", `{"address":10}`)},
		"leading zeros":                {"", with("", `{"address":"010.1.0.5/24"}`)},
		"a length that is too long":    {"", with("", `{"address":"10.1.0.5/33"}`)},
		"addresses that are no list":   {"", `"ipam":{"addresses":{}}`},
		"host bits of the subnet kept": {"", with("", `{"address":"fd00::5:5/32"}`, `{"address":"10.1.2.3/8"}`)},
	} {
		for _, version := range []string{"0.2.0", "0.3.1", "0.4.0", "1.0.0"} {
			t.Run(name+" "+version, func(t *testing.T) {
				conf := `{"cniVersion":"` + version + `","name":"net","type":"x",` + tc.conf + `}`
				a, b := call(t, "/proc/self/exe", "ADD", tc.args, conf), call(t, program, "ADD", tc.args, conf)
				if a.status != b.status {
					t.Fatalf("ours      %s\nreference %s", a, b)
				}
				if a.status == 0 && !reflect.DeepEqual(result(t, a.out), result(t, b.out)) {
					t.Errorf("ours      %s\nreference %s", a.out, b.out)
				}
			})
		}
	}
}

// Where the reference is wrong we are not.
// clause: K5 K12 K13 P14
func TestBetterThanTheReference(t *testing.T) {
	for name, tc := range map[string]struct{ args, conf, want string }{
		// The reference refuses what the conventions allow.
		"the length of a configured subnet": {"", with(`,"runtimeConfig":{"ips":["10.1.0.9","fd00::9"]}`, four, six), "10.1.0.9/24 10.1.0.1, fd00::9/64 fd00::1"},
		"… by args":                         {"", with(`,"args":{"cni":{"ips":["fd00::9"]}}`, four, six), "fd00::9/64 fd00::1"},
		"… by CNI_ARGS": {"IP=10.1.0.9", with("", four, six),
			"10.1.0.5/24 10.1.0.1, fd00::5/64 fd00::1, 10.1.0.9/24 10.1.0.1"},
		// It drops a gateway for an address that has none, for it looks too early.
		"a gateway for a configured address": {"GATEWAY=10.1.0.254,fd00::ff", with("", `{"address":"10.1.0.5/24"}`, six), "10.1.0.5/24 10.1.0.254, fd00::5/64 fd00::1"},
		// Of one key it does not take another spelling.
		"a key in another case": {"", with("", `{"Address":"fd00::5/64","GATEWAY":"fd00::1"}`), "fd00::5/64 fd00::1"},
		// It gives an address twice, and the kernel takes it once.
		"an address twice": {"IP=10.1.0.5/24", with("", four, six, six), "10.1.0.5/24 10.1.0.1, fd00::5/64 fd00::1"},
	} {
		t.Run(name, func(t *testing.T) {
			got := call(t, "/proc/self/exe", "ADD", tc.args, `{"cniVersion":"1.1.0","name":"net","type":"x",`+tc.conf+`}`)
			res, err := spec.DecodeResult(got.out, spec.V110)
			if err != nil || got.status != 0 {
				t.Fatal(err, got)
			}
			var ips []string
			for _, ip := range res.IPs {
				ips = append(ips, ip.Address.String()+" "+ip.Gateway.String())
			}
			if s := strings.Join(ips, ", "); s != tc.want {
				t.Errorf("got %s\nwant %s", s, tc.want)
			}
		})
	}
}

// A refusal names the path, the value and what would be right.
// clause: P5 P7 P8 K13
func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		args, conf string
		code       int
		msg        string
	}{
		{"", `"x":1`, 7, "ipam: is missing"},
		{"", with("", four, `{"address":"10.1.0.5"}`), 7, `ipam.addresses[1].address: "10.1.0.5": want a prefix`},
		{"", with("", `{"gateway":"10.1.0.1"}`), 7, `ipam.addresses[0].address: is missing`},
		{"", with("", `{"address":"10.1.0.5/24","gateway":"fd00::1"}`), 7, `ipam.addresses[0].gateway: fd00::1 is not of the family of 10.1.0.5/24`},
		{"", with("", `{"address":"fd00::5/64","gateway":"10.1.0.1"}`), 7, `ipam.addresses[0].gateway: 10.1.0.1 is not of the family of fd00::5/64`},
		{"", with("", `{"address":"0.0.0.0/24"}`), 7, `ipam.addresses[0].address: 0.0.0.0/24 is no address`},
		{"", with("", `{"address":"ff02::1/64"}`), 7, `ipam.addresses[0].address: ff02::1/64 is a group's (multicast)`},
		{"", with(`,"runtimeConfig":{"ips":["10.1.0.9/24","10.9.0.9"]}`, four), 7, `runtimeConfig.ips[1]: "10.9.0.9" has no prefix length, and no subnet of ipam.addresses contains it: write it as 10.9.0.9/24`},
		{"", with(`,"args":{"cni":{"ips":["fd09::9"]}}`, six), 7, `args.cni.ips[0]: "fd09::9" has no prefix length, and no subnet of ipam.addresses contains it: write it as fd09::9/96`},
		{"IP=fd00::9%eth0", with("", six), 7, `CNI_ARGS: IP: "fd00::9%eth0": want an address`},
		{"GATEWAY=10.9.0.1", with("", four, six), 7, `CNI_ARGS: GATEWAY: 10.9.0.1 is not in the subnet of any address`},
		{"IP=fd00::9/64;GATEWAY=fd01::1", with(""), 7, `CNI_ARGS: GATEWAY: fd01::1 is not in the subnet of any address`},
		{"GATEWAY=x", with("", four), 7, `CNI_ARGS: GATEWAY: "x": want an address`},
		// The reference answers with a destination of "<nil>".
		{"", `"ipam":{"addresses":[` + four + `],"routes":[{"gw":"10.1.0.1"}]}`, 7, `ipam.routes[0]: {"gw":"10.1.0.1"}: dst: is missing`},
		{"MAC=02:00:00:00:00:01", with("", four), 4, `it knows ["IP" "GATEWAY"]`},
	} {
		got := call(t, "/proc/self/exe", "ADD", tc.args, `{"cniVersion":"1.1.0","name":"net","type":"x",`+tc.conf+`}`)
		var doc struct {
			Code int
			Msg  string
		}
		if err := json.Unmarshal(got.out, &doc); err != nil || got.status == 0 || doc.Code != tc.code ||
			!strings.Contains(doc.Msg, tc.msg) {
			t.Errorf("%s %s:\ngot  %d %q\nwant %d %q", tc.args, tc.conf, doc.Code, doc.Msg, tc.code, tc.msg)
		}
	}
	for channel, tc := range map[string]struct{ args, conf string }{
		"ipam.addresses[0].address": {"", with("", `{"address":"%s"}`)},
		"runtimeConfig.ips[0]":      {"", with(`,"runtimeConfig":{"ips":["%s"]}`)},
		"args.cni.ips[0]":           {"", with(`,"args":{"cni":{"ips":["%s"]}}`)},
		"CNI_ARGS: IP":              {"IP=%s", with("")},
	} {
		for address, want := range map[string]string{
			"127.0.0.5/8": "is the host's", "127.255.255.255/32": "is the host's", "0.0.0.0/0": "stands for none", "10.1.0.0/24": "is the address of the subnet 10.1.0.0/24 itself",
			"10.1.0.255/24": "is the broadcast address of 10.1.0.0/24", "10.1.0.7/30": "is the broadcast address of 10.1.0.4/30", "255.255.255.255/32": "is for all hosts", "224.0.0.5/24": "is a group's",
			"::/64": "stands for none", "::1/128": "is the host's", "ff02::1/64": "is a group's", "::ffff:10.1.0.5/64": "write 10.1.0.5", "::ffff:10.1.0.255/120": "is the broadcast address",
			"10.1.0.5/32": "", "10.1.0.4/31": "", "10.1.0.5/31": "", "0.0.0.5/24": "", "240.0.0.5/24": "", "169.254.1.1/16": "", "fe80::5/64": "", "fd00::/64": "", "fd00::/127": "", "::ffff:10.1.0.5/120": "", // as the reference, and Linux, takes them
		} {
			got := call(t, "/proc/self/exe", "ADD", strings.Replace(tc.args, "%s", address, 1), `{"cniVersion":"1.1.0","name":"net","type":"x",`+strings.Replace(tc.conf, "%s", address, 1)+`}`)
			var doc struct {
				Code int
				Msg  string
			}
			err := json.Unmarshal(got.out, &doc)
			if want == "" && got.status != 0 || want != "" &&
				(err != nil || doc.Code != 7 || !strings.HasPrefix(doc.Msg, channel+": ") || !strings.Contains(doc.Msg, want) ||
					!strings.Contains(doc.Msg, ": want a") && !strings.Contains(doc.Msg, ": write ")) {
				t.Errorf("%s %s: %s, want %q", channel, address, got, want)
			}
		}
	}
	old := call(t, "/proc/self/exe", "ADD", "", `{"cniVersion":"0.2.0","name":"net","type":"x",`+with("", six, `{"address":"fd00::6/64"}`)+`}`)
	if !strings.Contains(string(old.out), "fd00::5/64 and fd00::6/64: cniVersion 0.2.0 allows only one address per family") {
		t.Errorf("two of a family in 0.2.0: %s", old)
	}
}

// CHECK misses what is not there; DEL, GC and STATUS have nothing to do.
// clause: P12 P13 P14 P21 P22
func TestVerbs(t *testing.T) {
	conf := func(extra string) string {
		return `{"cniVersion":"1.1.0","name":"net","type":"x",` + with("", four, six) + extra + `}`
	}
	const (
		ip4 = `{"address":"10.1.0.5/24","gateway":"10.1.0.1"}`
		ip6 = `{"address":"fd00::5/64","gateway":"fd00::1"}`
	)
	for _, tc := range []struct{ args, ips, say string }{
		{"", ip4 + "," + ip6, ""},
		{"", `{"address":"10.9.0.5/24"},` + ip6 + "," + ip4, ""}, // another plugin's is none of ours
		{"", ip4, "address fd00::5/64: is missing in prevResult"},
		{"", ip6, "address 10.1.0.5/24: is missing in prevResult"},
		{"", ip4 + `,{"address":"fd00::5/48","gateway":"fd00::1"}`, "address fd00::5/64: is missing in prevResult"},
		{"", `{"address":"10.1.0.5/24","gateway":"10.1.0.2"},` + ip6, "address 10.1.0.5/24: its gateway is 10.1.0.2 in prevResult, want 10.1.0.1"},
		{"", ip4 + `,{"address":"fd00::5/64"}`, "address fd00::5/64: its gateway is none in prevResult, want fd00::1"},
		{"IP=10.1.0.9/24", ip4 + "," + ip6, "address 10.1.0.9/24: is missing in prevResult"},
		{"IP=10.1.0.9/24", ip4 + "," + ip6 + `,{"address":"10.1.0.9/24"}`, ""},
	} {
		got := call(t, "/proc/self/exe", "CHECK", tc.args, conf(`,"prevResult":{"cniVersion":"1.1.0","ips":[`+tc.ips+`]}`))
		if (got.status == 0) != (tc.say == "") || !strings.Contains(string(got.out), tc.say) {
			t.Errorf("CHECK with %s: %s, want %q", tc.ips, got, tc.say)
		}
	}
	for _, tc := range []struct{ verb, conf string }{
		{"STATUS", conf("")},
		{"DEL", conf("")},
		{"DEL", `{"cniVersion":"1.1.0","name":"net","type":"x","ipam":{"addresses":[{"address":"x"}]}}`},
		{"DEL", `{"cniVersion":"1.1.0","name":"net","type":"x"}`},
		{"GC", conf(`,"cni.dev/valid-attachments":[]`)},
	} {
		if got := call(t, "/proc/self/exe", tc.verb, "MAC=x", tc.conf); got.status != 0 || len(got.out) > 0 ||
			got.stderr != "" {
			t.Errorf("%s: %s", tc.verb, got)
		}
	}
	for verb, conf := range map[string]string{"STATUS": strings.Replace(conf(""), "10.1.0.5", "x", 1), "GC": conf("")} {
		if got := call(t, "/proc/self/exe", verb, "", conf); got.status == 0 {
			t.Errorf("%s succeeded with %s", verb, conf)
		}
	}
}
