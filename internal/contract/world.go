package contract

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// Owner is the attachment that most tests are about.
var Owner = spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}

// NewWorld is a throw-away host and a container, each a namespace of its own, with lo up in both.
func NewWorld(t testing.TB) *kernel.World {
	t.Helper()
	w := &kernel.World{Host: OpenNS(t), Container: OpenNS(t), Store: record.Store{Dir: t.TempDir()}}
	Host(t, w, "ip link set lo up")
	Container(t, w, "ip link set lo up")
	return w
}

func OpenNS(t testing.TB) *kernel.NS {
	t.Helper()
	ns, err := kernel.Open(nstest.NewNS(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	return ns
}

// Host runs a command line on the host and returns what it printed. It is split at spaces, and knows no quotes.
func Host(t testing.TB, w *kernel.World, format string, args ...any) string {
	t.Helper()
	f := strings.Fields(fmt.Sprintf(format, args...))
	return nstest.RunIn(t, w.Host.Path, f[0], f[1:]...)
}

// Container is Host in the container.
func Container(t testing.TB, w *kernel.World, format string, args ...any) string {
	t.Helper()
	f := strings.Fields(fmt.Sprintf(format, args...))
	return nstest.RunIn(t, w.Container.Path, f[0], f[1:]...)
}

// Sysctl reads a sysctl from inside ns.
func Sysctl(t testing.TB, ns *kernel.NS, key string) string {
	t.Helper()
	var b []byte
	err := ns.Do(func() (err error) {
		b, err = os.ReadFile("/proc/sys/" + key)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// IPBatch runs many ip(8) commands in one process.
func IPBatch(t testing.TB, ns, lines string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "batch")
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	nstest.RunIn(t, ns, "ip", "-batch", file)
}

// Must ensures each resource.
func Must(t testing.TB, w *kernel.World, p ...plan.Resource) {
	t.Helper()
	for _, r := range p {
		if _, err := r.Ensure(context.Background(), w); err != nil {
			t.Fatalf("%v: %v", r, err)
		}
	}
}

// On makes a breaker's action of command lines on the host, in of ones in the container.
func On(w *kernel.World, lines ...string) func(*testing.T) {
	return func(t *testing.T) {
		for _, l := range lines {
			Host(t, w, "%s", l)
		}
	}
}

func In(w *kernel.World, lines ...string) func(*testing.T) {
	return func(t *testing.T) {
		for _, l := range lines {
			Container(t, w, "%s", l)
		}
	}
}

var (
	Default4 = netip.MustParsePrefix("0.0.0.0/0")
	Default6 = netip.MustParsePrefix("::/0")
)

func Prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// Wire makes a veth pair between host and container, with one subnet of each family on it.
func Wire(t testing.TB, w *kernel.World) {
	t.Helper()
	name := strings.TrimPrefix(w.Container.Path, "/run/netns/")
	Host(t, w, "ip link add veth1 type veth peer name eth0 netns %s", name)
	Host(t, w, "ip addr add 10.1.2.1/24 dev veth1")
	Host(t, w, "ip addr add fd00::1/64 dev veth1 nodad")
	Host(t, w, "ip link set veth1 up")
	Container(t, w, "ip addr add 10.1.2.5/24 dev eth0")
	Container(t, w, "ip addr add fd00::5/64 dev eth0 nodad")
	Container(t, w, "ip link set eth0 up")
	Container(t, w, "ip route add default via 10.1.2.1")
	Container(t, w, "ip route add default via fd00::1")
}

// NewHost is a host alone; its world has no container, so nothing tells that an owner is dead.
func NewHost(t testing.TB) *kernel.World {
	t.Helper()
	return &kernel.World{Host: OpenNS(t), Store: record.Store{Dir: t.TempDir()}}
}

func Ensure(t testing.TB, w *kernel.World, r plan.Resource) {
	t.Helper()
	if _, err := r.Ensure(t.Context(), w); err != nil {
		t.Fatal(err)
	}
}

func Remove(t testing.TB, w *kernel.World, r plan.Remover) {
	t.Helper()
	if err := r.Remove(t.Context(), w); err != nil {
		t.Fatal(err)
	}
}

func Verify(t testing.TB, w *kernel.World, r plan.Requirement) {
	t.Helper()
	if err := r.Verify(t.Context(), w); err != nil {
		t.Error(err)
	}
}

func Addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// RuleState is what ip(8) shows of the rules of both namespaces.
func RuleState(w *kernel.World) func(testing.TB) string {
	return func(t testing.TB) string {
		t.Helper()
		return Host(t, w, "ip -4 rule") + Host(t, w, "ip -6 rule") + "in the container:\n" +
			Container(t, w, "ip -4 rule") +
			Container(t, w, "ip -6 rule")
	}
}
