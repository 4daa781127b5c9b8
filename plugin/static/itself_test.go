package static

import (
	"os"
	"strings"
	"testing"
)

// An address is nobody's way out. In a file, where the reference takes it and it does no harm without a route, that is
// warned of; who names it for one container is told.
//
// clause: K12
func TestAnAddressIsNotItsOwnGateway(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const itself = `{"address":"10.1.0.5/24","gateway":"10.1.0.5"}`
	for name, tc := range map[string]struct{ args, conf, say string }{
		"CNI_ARGS": {"IP=192.0.2.79/24;GATEWAY=192.0.2.79", with(""),
			"CNI_ARGS: GATEWAY: 192.0.2.79 is the container's own address: want another address of 192.0.2.0/24"},
		"IPv6 by CNI_ARGS":       {"IP=fd00::7/64;GATEWAY=fd00::7", with(""), "want another address of fd00::/64"},
		"for the file's address": {"GATEWAY=10.1.0.5", with("", `{"address":"10.1.0.5/24"}`), "CNI_ARGS: GATEWAY: 10.1.0.5"},
		"CNI_ARGS, as in the file": {"IP=10.1.0.1", with("", four),
			"is the gateway of 10.1.0.0/24: want another address"},
		"runtimeConfig":                {"", with(`,"runtimeConfig":{"ips":["10.1.0.1"]}`, four), "runtimeConfig.ips[0]: "},
		"args":                         {"", with(`,"args":{"cni":{"ips":["10.1.0.9/24","10.1.0.1"]}}`, four), "args.cni.ips[1]: "},
		"another's gateway by the way": {"IP=192.0.2.79/24;GATEWAY=192.0.2.1", with(""), ""},
		"the file has one already":     {"GATEWAY=10.1.0.5", with("", four), ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := call(t, self, "ADD", tc.args, `{"cniVersion":"1.1.0","name":"n","type":"static",`+tc.conf+"}")
			if tc.say == "" {
				if a.status != 0 {
					t.Error(a)
				}
			} else if a.status == 0 || !strings.Contains(string(a.out), tc.say) {
				t.Errorf("%s, want %q", a, tc.say)
			}
		})
	}
	for conf, warns := range map[string]bool{itself: true, four: false} {
		for _, verb := range []string{"ADD", "STATUS"} {
			a := call(t, self, verb, "", `{"cniVersion":"1.1.0","name":"n","type":"static",`+with("", conf)+"}")
			if a.status != 0 || strings.Contains(a.stderr, "its own gateway") != (warns && verb == "ADD") {
				t.Errorf("%s %s: %s", verb, conf, a)
			}
		}
	}
}
