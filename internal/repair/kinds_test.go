package repair_test

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/internal/repair"
)

// Whatever a plugin of ours has in the packet filter, of whichever variant, is back after all of it was flushed. A
// kind whose resource.Traits do not say what its rules do is found here.
//
// clause: P14 P15
func TestEveryKindIsRestored(t *testing.T) {
	const pool = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.9.0.0/24"}],[{"subnet":"fd00:9::/64"}]]}`
	bridge := func(more string) string {
		return `{"type":"bridge","bridge":"lan","isDefaultGateway":true,` + more + pool + `}`
	}
	portmap := func(more string) string {
		return `{"type":"portmap",` + more + `"capabilities":{"portMappings":true}}`
	}
	nstest.Run(t, "ip", "addr", "add", "192.0.2.77/32", "dev", "lo")
	t.Cleanup(func() { nstest.Run(t, "ip", "addr", "del", "192.0.2.77/32", "dev", "lo") })
	for name, c := range map[string]struct {
		plugins []string
		ports   []string
	}{
		"masquerade":          {plugins: []string{bridge(`"ipMasq":true,"masqExcept":["10.0.0.0/8"],`)}},
		"masquerade iptables": {plugins: []string{bridge(`"ipMasq":true,"ipMasqBackend":"iptables",`)}},
		"spoof check":         {plugins: []string{bridge(`"macspoofchk":true,`)}},
		"ports":               {[]string{bridge(""), portmap("")}, []string{"8080:80", "127.0.0.1:8081:81"}},
		"ports allowFrom":     {[]string{bridge(""), portmap("")}, []string{`{"hostPort":8080,"containerPort":80,"allowFrom":["192.0.2.0/24","2001:db8::/32"]}`}},
		"ports ranges": {[]string{bridge(""), portmap("")}, []string{
			`{"hostPort":8000,"hostPortEnd":8100,"containerPort":8000}`, `{"hostPort":9000,"hostPortEnd":9003,"containerPort":80,"allowFrom":["192.0.2.0/24"]}`}},
		"snatTo":            {plugins: []string{bridge(`"ipMasq":true,"masqForce":["10.9.8.0/24"],"snatTo":["192.0.2.77"],`)}},
		"ports conditions":  {[]string{bridge(""), portmap(`"conditionsV4":["-s","192.0.2.0/24"],`)}, []string{"8080:80"}},
		"ports iptables":    {[]string{bridge(""), portmap(`"backend":"iptables",`)}, []string{"8080:80"}},
		"open":              {plugins: []string{bridge(""), `{"type":"firewall"}`}},
		"same-bridge":       {plugins: []string{bridge(""), `{"type":"firewall","ingressPolicy":"same-bridge"}`}},
		"isolated":          {plugins: []string{bridge(""), `{"type":"firewall","ingressPolicy":"isolated"}`}},
		"strict":            {plugins: []string{bridge(""), `{"type":"firewall","ingressPolicy":"strict"}`}},
		"accepts":           {plugins: []string{bridge(""), `{"type":"firewall","backend":"iptables"}`}},
		"isolated iptables": {plugins: []string{bridge(""), `{"type":"firewall","backend":"iptables","ingressPolicy":"isolated"}`}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			l := s.list(`{"cniVersion":"1.1.0","name":"lan","plugins":[` + strings.Join(c.plugins, ",") + `]}`)
			a, b := s.add(l, "a", c.ports...), s.add(l, "b")
			before := nstest.Run(t, "nft", "list", "ruleset")
			nstest.Run(t, "nft", "flush", "ruleset")
			nstest.Run(t, "sh", "-ec", `for p in iptables-legacy ip6tables-legacy; do for t in $(cat /proc/net/ip*_tables_names 2>/dev/null); do $p -w -t $t -F; $p -w -t $t -X; done; done`)
			if err := s.Check(bounded(t), l, a.Attachment); err == nil {
				t.Errorf("CHECK misses nothing of\n%s", before)
			}
			if r := s.repair(); !r.OK() || !strings.Contains(states(r), string(repair.Repaired)) {
				t.Errorf("%s: %v %+v", states(r), r.Problems, r.Findings)
			}
			s.whole("repaired", a, b)
			if r := s.repair(); !r.OK() || strings.Contains(states(r), string(repair.Repaired)) {
				t.Errorf("a second repair: %s, %+v", states(r), r.Findings)
			}
		})
	}
}
