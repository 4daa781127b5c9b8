package plugin_test

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// onBridge is a host of its own with a bridge, and containers on it of which the first calls itself a router
// from the moment it has an interface.
func onBridge(t *testing.T, more string) (r *runner, host *kernel.NS, router *attachment) {
	r = newRunner(t, chain{name: "ra", plugins: []string{
		`"type":"bridge","bridge":"br-ra","isGateway":true,"ipam":{"type":"host-local","subnet":"10.84.0.0/24"}` + more}})
	r.host = nstest.NewNS(t)
	nstest.RunIn(t, r.host, "ip", "link", "set", "lo", "up")
	host, err := kernel.Open(r.host)
	r.must("open", err)
	t.Cleanup(func() { host.Close() })
	router = &attachment{id: "router", netns: nstest.NewNS(t)}
	cont, err := kernel.Open(router.netns)
	r.must("open", err)
	t.Cleanup(func() { cont.Close() })
	nstest.RunIn(t, router.netns, "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
	stop, sent := make(chan struct{}), make(chan struct{})
	go advertiseAlways(cont, stop, sent)
	t.Cleanup(func() { close(stop) })
	// The router's own list says nothing of IPv6: it needs it.
	own := newRunner(t, chain{name: "ra", plugins: []string{strings.ReplaceAll(r.chain.plugins[0], more, "")}})
	own.host = r.host
	r.must("add", own.add(router))
	for range 20 {
		select {
		case <-sent:
		case <-nstest.Context(t).Done():
			t.Fatal("nothing is sent")
		}
	}
	return r, host, router
}

// believes is what a namespace has learnt from advertisements.
func believes(t *testing.T, netns string) string {
	t.Helper()
	return nstest.RunIn(t, netns, "sh", "-c", "ip -6 route show proto ra; ip -6 addr show to 2001:db8:bad::/64")
}

// awaitBelief fails the test unless a namespace learns from the advertisements after all: they are good, and it was
// the protection that kept them out.
func awaitBelief(t *testing.T, ns *kernel.NS, netns string) {
	t.Helper()
	err := rtnl.Await(ns, t.Context(), 10e9, []uint{rtnl.IPv6RouteEvents, rtnl.IPv6AddrEvents}, func() (bool, error) {
		return strings.Contains(believes(t, netns), "2001:db8:bad:"), nil
	})
	if err != nil {
		t.Errorf("without the protection nothing is believed either, so the test shows nothing: %v", err)
	}
}

// CVE-2020-10749: a container on a bridge sends router advertisements, and the host takes it for its router.
func TestAdvisoryCVE202010749(t *testing.T) {
	r, host, router := onBridge(t, "")
	nstest.RunIn(t, router.netns, "busybox", "ping", "-q", "-c", "1", "10.84.0.1") // comes after them
	if s := believes(t, r.host); s != "" {
		t.Errorf("the host believes its container:\n%s", s)
	}
	r.must("check", r.check(router))
	nstest.RunIn(t, r.host, "sysctl", "-qw", "net.ipv6.conf.br-ra.accept_ra=2")
	if err := r.check(router); err == nil || !strings.Contains(err.Error(), "accept_ra is 2") {
		t.Errorf("check without the protection: %v", err)
	}
	awaitBelief(t, host, r.host)
	r.must("del", r.del(router))
}

// CVE-2024-32473: a container of a network without IPv6 gets it from whoever advertises on its bridge.
func TestAdvisoryCVE202432473(t *testing.T) {
	r, _, router := onBridge(t, `,"ipv6":"off"`)
	a := &attachment{id: "a", netns: nstest.NewNS(t)}
	r.must("add", r.add(a))
	nstest.RunIn(t, a.netns, "busybox", "ping", "-q", "-c", "1", "10.84.0.1")
	if s := nstest.RunIn(t, a.netns, "sh", "-c", "ip -6 addr show dev eth0; ip -6 route"); s != "" {
		t.Errorf("IPv6 with ipv6 off:\n%s", s)
	}
	r.must("check", r.check(a))
	nstest.RunIn(t, a.netns, "sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6=0")
	if err := r.check(a); err == nil || !strings.Contains(err.Error(), "disable_ipv6 is 0") {
		t.Errorf("check without the protection: %v", err)
	}
	cont, err := kernel.Open(a.netns)
	r.must("open", err)
	defer cont.Close()
	awaitBelief(t, cont, a.netns)
	r.must("del", r.del(a))
	r.must("del", r.del(router))
}
