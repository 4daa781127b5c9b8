package hostlocal

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
)

// subnets are what a test runs with: IPv4, IPv6, and both.
var subnets = map[string]string{
	"IPv4": `"ranges":[[{"subnet":"10.1.0.0/24"}]]`,
	"IPv6": `"ranges":[[{"subnet":"fd00::/64"}]]`,
	"both": `"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00::/64"}]]`,
}

// given is an ADD's addresses by their ends.
func given(t *testing.T, a answer) string {
	t.Helper()
	res, err := spec.DecodeResult(a.out, spec.V110)
	if err != nil || a.status != 0 || len(res.IPs) == 0 {
		t.Fatalf("%v: %s", err, a)
	}
	end := ""
	for _, ip := range res.IPs {
		s := ip.Address.Addr().String()
		if s = s[strings.LastIndexAny(s, ".:")+1:]; end != "" && end != s {
			t.Fatalf("ends in %s and %s", end, s)
		}
		end = s
	}
	return end
}

// The key comes from where the conventions have such things.
// clause: K11 K12 P5 C12
func TestStickyKey(t *testing.T) {
	type call struct{ id, args, extra, want string }
	for name, tc := range map[string]struct {
		key   string
		calls []call // each is an ADD, and a DEL
	}{
		"CNI_ARGS": {`["NAMESPACE","NAME"]`, []call{
			{"a", "NAMESPACE=x;NAME=web", "", "2"}, {"b", "NAMESPACE=y;NAME=web", "", "3"},
			{"c", "NAME=web;NAMESPACE=x", "", "2"}, {"d", "IgnoreUnknown=1;UID=7;NAMESPACE=x;NAME=web", "", "2"},
			{"e", "NAME=web", "", "4"}, {"f", "", "", "5"}, {"g", "NAME=web;NAMESPACE=", "", "6"}, // who lacks a part has no key
		}},
		"args": {`["NAME"]`, []call{
			{"a", "", `,"args":{"cni":{"NAME":"web"}}`, "2"}, {"b", "", "", "3"},
			{"c", "NAME=db", `,"args":{"cni":{"NAME":"web"}}`, "2"}, {"d", "NAME=web", `,"args":{"cni":{"NAME":7}}`, "2"},
			{"f", "", `,"args":{"cni":{"NAME":["web"]}}`, "4"},
		}},
		"labels": {`["labels.app.kubernetes.io/name","labels.tier"]`, []call{
			{"a", "", `,"args":{"cni":{"labels":[{"key":"tier","value":"1"},{"key":"app.kubernetes.io/name","value":"web"}]}}`, "2"},
			{"b", "", `,"args":{"cni":{"labels":[{"key":"tier","value":"1"}]}}`, "3"},
			{"c", "", `,"args":{"cni":{"labels":{}}}`, "4"},
			{"d", "", `,"args":{"cni":{"labels":[{"key":"app.kubernetes.io/name","value":"web"},{"key":"tier","value":"1"}]}}`, "2"},
		}},
	} {
		for family, ranges := range subnets {
			t.Run(name+" "+family, func(t *testing.T) {
				dir := t.TempDir()
				for _, c := range tc.calls {
					conf := `{"cniVersion":"1.1.0","name":"net","type":"x","ipam":{"type":"host-local","dataDir":"` + dir + `",` + ranges +
						`,"sticky":{"key":` + tc.key + `,"ttl":"1h"}}` + c.extra + `}`
					got := ours(t, "ADD", c.id, c.args, conf)
					if end := given(t, got); end != c.want {
						t.Errorf("%s: %s: got one that ends in %s, want %s", c.id, c.args+c.extra, end, c.want)
					}
					if got := ours(t, "DEL", c.id, c.args, conf); got.status != 0 {
						t.Errorf("DEL: %s", got)
					}
				}
			})
		}
	}
}

// Addresses that the configuration reserves are given by name, in each of the three ways, and not else.
// clause: K5 K11 K12
func TestReserved(t *testing.T) {
	for family, ranges := range subnets {
		t.Run(family, func(t *testing.T) {
			dir := t.TempDir()
			conf := func(extra string) string {
				return `{"cniVersion":"1.1.0","name":"net","type":"x","ipam":{"type":"host-local","dataDir":"` + dir + `",` + ranges +
					`,"reserved":["10.1.0.0/30","10.1.0.5","fd00::/126","fd00::5"]}` + extra + `}`
			}
			list := func(end int) string {
				return map[string]string{"IPv4": fmt.Sprintf(`"10.1.0.%d"`, end), "IPv6": fmt.Sprintf(`"fd00::%d/64"`, end), "both": fmt.Sprintf(`"10.1.0.%d","fd00::%d"`, end, end)}[family]
			}
			for _, c := range []struct{ id, args, extra, want string }{
				{"a", "", "", "4"}, {"b", "", "", "6"}, {"c", "", "", "7"},
				{"d", "", `,"runtimeConfig":{"ips":[` + list(5) + `]}`, "5"},
				{"e", "", `,"args":{"cni":{"ips":[` + list(2) + `]}}`, "2"},
				{"f", "IP=" + map[string]string{"IPv4": "10.1.0.3", "IPv6": "fd00::3", "both": "fd00::3"}[family], map[string]string{"both": `,"runtimeConfig":{"ips":["10.1.0.3"]}`}[family], "3"},
				{"g", "", "", "8"},
			} {
				got := ours(t, "ADD", c.id, c.args, conf(c.extra))
				if end := given(t, got); end != c.want {
					t.Errorf("%s: got one that ends in %s, want %s", c.id, end, c.want)
				}
			}
		})
	}
}

// Two containers whose names have the separator in different places are two; and who had an address under the key of
// former days has it still, by a record as by a reservation.
func TestStickyKeyOfParts(t *testing.T) {
	for family, ranges := range subnets {
		t.Run(family, func(t *testing.T) {
			dir := t.TempDir()
			conf := func(key string) string {
				return `{"cniVersion":"1.1.0","name":"net","type":"x","ipam":{"type":"host-local","dataDir":"` + dir + `",` + ranges + `,"sticky":{"key":` + key + `,"ttl":"1h"}}}`
			}
			for _, c := range []struct{ key, args, want string }{
				{`["A"]`, "A=old/name/x", "2"}, {`["A"]`, "A=50%/x", "3"}, // as the keys of two parts were
				{`["A","B"]`, "A=old/name;B=x", "2"}, {`["A","B"]`, "A=old;B=name/x", "4"}, {`["A","B"]`, "A=old/name;B=x", "2"}, {`["A","B"]`, "A=old;B=name/x", "4"},
				{`["A","B"]`, "A=50%;B=x", "3"}, {`["A","B"]`, "A=50%25;B=x", "5"}, {`["A","B"]`, "A=50%;B=x", "3"}, {`["A","B"]`, "A=50%25;B=x", "5"},
				{`["A","B"]`, "A=a/b;B=c", "6"}, {`["A","B"]`, "A=a%2Fb;B=c", "7"}, {`["A","B"]`, "A=a;B=b/c", "8"}, {`["A","B"]`, "A=a/b;B=c", "6"},
				{`["A","B"]`, "A=default;B=web-0", "9"}, {`["A"]`, "A=default/web-0", "9"}, // an ordinary one is as it was
			} {
				got := ours(t, "ADD", "c", c.args, conf(c.key))
				if end := given(t, got); end != c.want {
					t.Errorf("%s: %s: got one that ends in %s, want %s", c.key, c.args, end, c.want)
				}
				if got := ours(t, "DEL", "c", c.args, conf(c.key)); got.status != 0 {
					t.Errorf("DEL: %s", got)
				}
			}
		})
	}
}
