package agent

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/internal/contract"
)

// The ways change with the mode, and nodes with different modes are told apart. What a mode needs goes with it.
func TestTunnelMode(t *testing.T) {
	a, b := newTunnels(t, "192.0.2.1", "192.0.2.2")
	a.must("WireGuard", 100, b.addresses()...)
	remode := func(h *tunneled, m Mode) {
		t.Helper()
		h.stop()
		h.agent = h.newTunnelAgent(h.agent.Tunnel.KeyFile)
		h.agent.Mode = m
		h.begin()
	}
	remode(b, VXLAN)
	if b.node.Tunnel.Key != "" {
		t.Errorf("published %v; want that there is no key any more", b.node.Tunnel)
	}
	a.settle(a.node, b.node)
	b.settle(a.node, b.node)
	for h, want := range map[*tunneled]string{a: "node n2 has published no WireGuard key, and node n1 has --mode wireguard",
		b: "node n1 has published a WireGuard key, so it has --mode wireguard, and node n2 has --mode vxlan"} {
		if got := h.problems(); !strings.HasPrefix(got, want) {
			t.Errorf("n%d: %q; want %q", h.i, got, want)
		}
		out := h.shell(h.w.Host.Path, "ip route show proto 118; ip -6 route show proto 118")
		isRefused := strings.Count(out, "prohibit") == 2 && strings.Count(out, "\n") == 2
		if h == a && !isRefused || h == b && out != "" {
			t.Errorf("n%d: there is a way to a node of another mode: %s", h.i, out)
		}
	}
	remode(a, VXLAN)
	a.settle(a.node, b.node)
	b.settle(a.node, b.node)
	a.must("VXLAN", 1450, b.addresses()...)
	for _, h := range []*tunneled{a, b} {
		if out := h.shell(h.w.Host.Path, "ip link show type wireguard"); out != "" {
			t.Errorf("n%d: the mode is VXLAN, and there is %s", h.i, out)
		}
	}
	remode(a, WireGuard)
	remode(b, WireGuard)
	a.settle(a.node, b.node)
	b.settle(a.node, b.node)
	a.must("WireGuard again", 1420, b.addresses()...)
	for _, h := range []*tunneled{a, b} {
		contract.Verify(t, h.w, h.agent.portFilter(h.node, []directory.Node{a.node, b.node}))
		if out := h.shell(h.w.Host.Path, "ip link show type vxlan"); out != "" {
			t.Errorf("n%d: the mode is WireGuard, and there is %s", h.i, out)
		}
	}

	h := a
	h.stop()
	if err := h.agent.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if out := h.shell(h.w.Host.Path, "ip link show type wireguard; ip route show proto 118"); out != "" {
		t.Errorf("after --remove there is %s", out)
	}
	if _, err := os.Stat(h.agent.Tunnel.KeyFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after --remove there is the key: %v", err)
	}
}
