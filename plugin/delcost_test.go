package plugin_test

import (
	"fmt"
	"maps"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// TestDelCost counts what a DEL that has nothing to remove asks of the kernel: it is the same beside one attachment and
// beside eight, it runs no program, and it is not more than a look-up by key for each kind that the plugin declares.
//
// clause: P12
func TestDelCost(t *testing.T) {
	most := map[string]int{"bridge": 10, "portmap": 5, "firewall": 8, "tuning": 2}
	r := newRunner(t, chain{name: "cost", plugins: []string{
		`"type":"bridge","bridge":"br-cost","isGateway":true,"ipMasq":true,"macspoofchk":true,` + hostLocal,
		`"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":PORT,"containerPort":80}]}`,
		`"type":"firewall","ingressPolicy":"same-bridge"`, `"type":"tuning","sysctl":{"net.core.somaxconn":"500"}`}})
	templates := append([]string(nil), r.chain.plugins...)
	add := func(n int) {
		for i, p := range templates {
			r.chain.plugins[i] = strings.ReplaceAll(p, "PORT", fmt.Sprint(8000+n))
		}
		r.must("ADD", r.add(&attachment{id: fmt.Sprint("other", n), netns: nstest.NewNS(t)}))
	}
	nobody := &attachment{id: "nobody", netns: nstest.NewNS(t)}
	cost := func() map[string]int {
		t.Helper()
		of := map[string]int{}
		for i, p := range r.chain.plugins {
			typ := strings.Split(p, `"`)[3]
			r.start = func(cmd *exec.Cmd) error {
				return nstest.WithFaults(cmd, func(s nstest.Syscall) unix.Errno {
					if s.Name == "sendto" {
						of[typ]++
					}
					return 0
				}, "sendto")
			}
			_, err := r.run(i, "DEL", nobody, "")
			r.start = nil
			r.must("DEL of "+typ, err)
		}
		return of
	}
	add(0)
	first := cost()
	for typ, n := range first {
		if n > most[typ] {
			t.Errorf("DEL of nothing by %s sends %d messages to the kernel, want at most %d", typ, n, most[typ])
		}
	}
	for n := 1; n < 8; n++ {
		add(n)
	}
	if now := cost(); !maps.Equal(now, first) {
		t.Errorf("DEL of nothing sends %v messages beside one attachment, and %v beside eight", first, now)
	}
}

// TestChainCheckCost counts what CHECK asks of the kernel: a chain reads what always stands in our table, and how the
// links on the host are, once, where each plugin of a list reads it.
func TestChainCheckCost(t *testing.T) {
	messages := func(c chain) (n int) {
		r := newRunner(t, c)
		a := &attachment{id: c.name, netns: nstest.NewNS(t)}
		r.must("ADD", r.add(a))
		r.start = func(cmd *exec.Cmd) error {
			return nstest.WithFaults(cmd, func(s nstest.Syscall) unix.Errno {
				if s.Name == "sendto" {
					n++
				}
				return 0
			}, "sendto")
		}
		r.must("CHECK", r.check(a))
		r.start = nil
		r.must("DEL", r.del(a))
		return n
	}
	list := chain{name: "together", plugins: []string{
		`"type":"bridge","bridge":"br-cost","isGateway":true,"ipMasq":true,` + hostLocal,
		`"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}]}`, `"type":"firewall"`}}
	apart, together := messages(list), messages(asChain(list))
	t.Logf("CHECK of a list sends %d messages, and of a chain %d", apart, together)
	const table, links = 10, 6 // to read them takes more: the rules of each chain are asked for, and each link by itself
	if want := apart - 2*(table+links); together > want {
		t.Errorf("CHECK of a chain sends %d messages to the kernel, want at most %d, for a list sends %d", together, want,
			apart)
	}
}
