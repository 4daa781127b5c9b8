package repair_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// The test binary is the plugins: called by the name of one, it is that one, in a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv("CNI_COMMAND") != "" {
		os.Exit(sdk.Serve(plugin.All(), filepath.Base(os.Args[0]), "test"))
	}
	if os.Getenv(repairVar) != "" {
		os.Exit(repairHere())
	}
	nstest.Main(m)
}

// A site is a throw-away host with networks, and what is attached to them.
type site struct {
	testing.TB
	*attach.Runtime
	stderr bytes.Buffer
	count  int
}

// newSite clears the host that all tests of this package share.
func newSite(t testing.TB) *site {
	t.Helper()
	nstest.Run(t, "nft", "flush", "ruleset")
	nstest.Run(t, "sh", "-c", `
		for l in $(ip -br link | sed 's/[@ ].*//'); do test $l = lo || ip link del $l 2>/dev/null; done
		for f in 4 6; do ip -$f route flush table 64250 2>/dev/null; ip -$f rule | grep -v 'lookup \(local\|main\|default\)$' | while IFS=: read n rest; do ip -$f rule del pref $n; done; done
		rm -rf /var/lib/cni/* /run/cni/*`)
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range plugin.All() {
		if err := os.Symlink(exe, filepath.Join(dir, p.Name)); err != nil {
			t.Fatal(err)
		}
	}
	s := &site{TB: t}
	s.Runtime = &attach.Runtime{PluginDirs: []string{dir}, Stderr: &s.stderr}
	return s
}

// network is a list of bridge, host-local and portmap on a bridge called like it, and what more is said of each.
func (s *site) network(name, subnet string, plugins ...string) *spec.List {
	s.Helper()
	all := append([]string{fmt.Sprintf(`{"type":"bridge","bridge":%q,"isDefaultGateway":true,"ipMasq":true,"ipam":{"type":"host-local","subnet":%q}}`, name, subnet),
		`{"type":"portmap","capabilities":{"portMappings":true}}`}, plugins...)
	return s.list(`{"cniVersion":"1.1.0","name":"` + name + `","plugins":[` + strings.Join(all, ",") + `]}`)
}

func (s *site) list(text string) *spec.List {
	s.Helper()
	l, err := spec.ParseList([]byte(text))
	if err != nil {
		s.Fatal(err)
	}
	return l
}

// A box is an attached container.
type box struct {
	attach.Attachment
	list *spec.List
	ip   string
}

// add attaches a new container; ports are "8080:80" or "127.0.0.1:8080:80".
func (s *site) add(l *spec.List, id string, ports ...string) *box {
	s.Helper()
	return s.addTo(l, id, nstest.NewNS(s), ports...)
}

// udp is add, for ports of UDP.
func (s *site) udp(l *spec.List, id string, ports ...string) *box {
	s.Helper()
	for i := range ports {
		ports[i] += ":udp"
	}
	return s.add(l, id, ports...)
}

func (s *site) addTo(l *spec.List, id, netns string, ports ...string) *box {
	s.Helper()
	b := &box{Attachment: attach.Attachment{ContainerID: id, Netns: netns, IfName: "eth0"}, list: l}
	var mappings []map[string]any
	for _, p := range ports {
		m := map[string]any{"protocol": "tcp"}
		if strings.HasPrefix(p, "{") { // the mapping itself
			if err := json.Unmarshal([]byte(p), &m); err != nil {
				s.Fatal(err)
			}
			mappings = append(mappings, m)
			continue
		}
		f := strings.Split(p, ":")
		if last := len(f) - 1; f[last] == "udp" {
			m["protocol"], f = "udp", f[:last]
		}
		if len(f) == 3 {
			m["hostIP"] = f[0]
			f = f[1:]
		}
		m["hostPort"], m["containerPort"] = json.Number(f[0]), json.Number(f[1])
		mappings = append(mappings, m)
	}
	if mappings != nil {
		b.Capabilities = map[string]any{"portMappings": mappings}
	}
	res, err := s.Add(bounded(s), l, b.Attachment)
	if err != nil {
		s.Fatalf("add %s: %v", id, err)
	}
	b.ip = res.IPs[0].Address.Addr().String()
	return b
}

// whole fails the test unless CHECK finds an attachment as it should be.
func (s *site) whole(when string, boxes ...*box) {
	s.Helper()
	if err := s.check(boxes...); err != nil {
		s.Errorf("%s: %v", when, err)
	}
}

// check is what CHECK says of each.
func (s *site) check(boxes ...*box) error {
	var errs []error
	for _, b := range boxes {
		errs = append(errs, s.Check(bounded(s), b.list, b.Attachment))
	}
	return errors.Join(errs...)
}

// repair runs a repair, of the packet filter alone.
func (s *site) repair() *repair.Report {
	s.Helper()
	return s.run(&repair.Repairer{Firewall: true})
}

func (s *site) run(r *repair.Repairer) *repair.Report {
	s.Helper()
	r.Runtime, r.Plugins = s.Runtime, plugin.All()
	report, err := r.Run(bounded(s))
	if err != nil {
		s.Fatalf("repair: %v", err)
	}
	return report
}

// nextID is a container ID that no other has.
func (s *site) nextID() string {
	s.count++
	return fmt.Sprint("other", s.count)
}

func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithDeadline(context.Background(), nstest.Deadline(t)) // also when the test is over
	t.Cleanup(cancel)
	return ctx
}

// states is "net/c1/eth0 repaired; …".
func states(r *repair.Report) string {
	var s []string
	for _, f := range r.Findings {
		s = append(s, f.Owner.String()+" "+string(f.State))
	}
	return strings.Join(s, "; ")
}
