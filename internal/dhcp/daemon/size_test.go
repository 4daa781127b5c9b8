package daemon_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
)

// A configuration as large as plugins take one reaches the daemon, in every verb.
func TestGreatConfiguration(t *testing.T) {
	l := newLAN(t)
	srv := l.dnsmasq(t)
	d := startDaemon(t)
	great := overBridge + `,"args":{"cni":{"labels":"` + strings.Repeat("x", 16<<20-8<<10) + `"}}` // and room for prevResult
	a := newAttachment(t, "c1", great)
	for _, verb := range []string{"STATUS", "ADD", "CHECK", "GC", "DEL"} {
		if verb == "GC" {
			a.conf += `,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`
		}
		a.must(t, verb)
	}
	srv.says(t, "DHCPRELEASE", 1)

	// More routes than a container gets are refused, and DEL succeeds all the same.
	routes := strings.Repeat(`{"dst":"10.3.0.0/16"},`, 200_000)
	b := newAttachment(t, "c2", over("bridge", `"routes":[`+strings.TrimSuffix(routes, ",")+"]"))
	b.raw = a.raw
	for _, verb := range []string{"ADD", "CHECK"} {
		if err := b.call(t, verb); code(err) != spec.CodeConfig ||
			!strings.Contains(err.Error(), "routes: want at most 1024") {
			t.Errorf("%s says %v", verb, err)
		}
	}
	b.must(t, "DEL")

	// The most routes are kept, and found again.
	var list []string
	for i := range 1024 {
		list = append(list, fmt.Sprintf(`{"dst":"10.3.0.0/16","gw":"10.9.0.254","mtu":1400,"advmss":1200,"table":500,"scope":253,"priority":%d}`, 1000+i))
	}
	c := newAttachment(t, "c3", over("bridge", `"routes":[`+strings.Join(list, ",")+"]"))
	c.must(t, "ADD")
	d.end(syscall.SIGKILL)
	d = startDaemon(t)
	c.must(t, "CHECK")
	c.must(t, "DEL")
	if strings.Contains(d.text(), "a connection was refused") || len(files(t)) != 0 {
		t.Errorf("after DEL there is %q", files(t))
	}
}
