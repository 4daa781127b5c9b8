package policy_test

import (
	"bufio"
	"context"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestClosedLaw(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	for _, mode := range []string{policy.Isolated, policy.Strict} {
		// The mark of a strict network's packets stays in the table, as all that is shared there.
		c := policy.FailClosed{Owner: contract.Owner, Policy: mode,
			To: []netip.Prefix{contract.Prefix("10.1.2.5/24"), contract.Prefix("fd00::5/64")}}
		contract.Terms{State: func(t testing.TB) string { return filtertest.FailClosedState(t, w) }}.Test(t, w, c,
			contract.Break("rule gone", func(t *testing.T) { contract.Host(t, w, "ip rule del priority 31901") },
				"31901: fwmark 0x0/0x1000 iif veth1 lookup 64250 is missing"),
			contract.Break("rule for IPv6 gone", func(t *testing.T) {
				contract.Host(t, w,
					"ip -6 rule del priority 31901")
			},
				"31901: fwmark 0x0/0x1000 iif veth1 lookup 64250 is missing"),
			contract.Break("prohibition gone", func(t *testing.T) { contract.Host(t, w, "ip route flush table 64250") },
				"prohibit 10.1.2.5/32"))
	}
	strict := policy.FailClosed{Owner: contract.Owner, Policy: policy.Strict,
		To: []netip.Prefix{contract.Prefix("10.1.2.5/24"), contract.Prefix("fd00::5/64")}}
	contract.Ensure(t, w, strict)
	contract.Host(t, w, "ip -6 rule del priority 31900 iif lo")
	if err := strict.Verify(t.Context(), w); err == nil ||
		!strings.Contains(err.Error(), "31900: to fd00::5/128 iif lo lookup 254 is missing") {
		t.Errorf("exemption gone: %v", err)
	}
	isolated := strict
	isolated.Policy = policy.Isolated
	if err := isolated.Verify(t.Context(), w); err == nil ||
		!strings.Contains(err.Error(), "31902: to 10.1.2.5/32 fwmark 0x0/0x4001000 prohibit is too much") {
		t.Errorf("closed as by another policy: %v", err)
	}
}

// reach has the host reach prefixes by a link.
func reach(t testing.TB, w *kernel.World, link string, prefixes ...string) {
	t.Helper()
	contract.Host(t, w, "ip link set %s up", link)
	for _, p := range prefixes {
		contract.Host(t, w, "ip route add %s dev %s", p, link)
	}
}

// TestClosedTags has several links closed that have the same subnet, or the same link: each goes by itself.
func TestClosedTags(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Host(t, w, "ip link add br7 type bridge")
	reach(t, w, "br7", "10.7.0.0/24", "10.8.0.0/24")
	of := func(network, subnet string) policy.FailClosed {
		o := spec.Owner{Network: network, ContainerID: "c1", IfName: "eth0"}
		return policy.FailClosed{Owner: o, Link: "br7", Policy: policy.Strict,
			To: []netip.Prefix{contract.Prefix(subnet)}}
	}
	a, b := of("a", "10.7.0.2/24"), of("b", "10.7.0.2/24")
	contract.Ensure(t, w, a)
	before := filtertest.FailClosedState(t, w)
	contract.Ensure(t, w, b)
	contract.Verify(t, w, a)
	if err := policy.RemoveProhibitions(w, policy.NetworkOwner("b", "br7")); err != nil {
		t.Error(err)
	}
	if s := filtertest.FailClosedState(t, w); s != before {
		t.Error(contract.Difference(before, s))
	}
	// What nobody made any more, as an earlier version or a flush of the rules leaves it, goes with a sweep.
	contract.Host(t, w, "ip rule add priority 31902 to 10.9.0.0/24 fwmark 0/0x1000 prohibit protocol 250")
	contract.Host(t, w, "ip route add prohibit 10.9.0.0/24 table 64250 metric 7 proto 250")
	contract.Host(t, w, "ip route add prohibit 10.10.0.0/24 table 64250 proto 250")
	if err := filtertest.Sweep(t.Context(), w, "c", nil); err != nil {
		t.Error(err)
	}
	if s := filtertest.FailClosedState(t, w); s != before {
		t.Error(contract.Difference(before, s))
	}
}

// TestClosedOfNetwork follows a bridge's policy, and goes with the bridge.
//
// clause: P22
func TestClosedOfNetwork(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	contract.Host(t, w, "ip link add br7 type bridge")
	contract.Host(t, w, "ip link set veth1 master br7")
	contract.Host(t, w, "ip addr flush dev veth1")
	reach(t, w, "br7", "10.1.2.0/24", "10.1.3.0/24")
	c := func(mode, subnet string) policy.FailClosed {
		return policy.FailClosed{Owner: contract.Owner, Link: "br7", Policy: mode,
			To: []netip.Prefix{contract.Prefix(subnet)}}
	}
	contract.Ensure(t, w, c(policy.Isolated, "10.1.2.5/24"))
	contract.Ensure(t, w, c(policy.Strict, "10.1.3.5/24")) // another range of the same network
	contract.Verify(t, w, c(policy.Strict, "10.1.2.5/24"))
	contract.Remove(t, w, c(policy.Strict, "10.1.2.5/24"))
	contract.Verify(t, w, c(policy.Strict, "10.1.2.5/24"))
	if err := c(policy.Open, "10.1.2.5/24").Verify(t.Context(), w); err == nil {
		t.Error("no drift under another policy")
	}
	contract.Ensure(t, w, c(policy.Isolated, "10.1.2.5/24"))
	if s := filtertest.FailClosedState(t, w); strings.Contains(s, "iif lo") || strings.Contains(s, "31902") {
		t.Errorf("left of strict:\n%s", s)
	}
	contract.Ensure(t, w, c(policy.Open, "10.1.2.5/24"))
	if s := filtertest.FailClosedState(t, w); s != "" {
		t.Errorf("left of isolated:\n%s", s)
	}
	contract.Ensure(t, w, c(policy.Strict, "10.1.2.5/24"))
	sweep := func(used bool, want int) {
		t.Helper()
		err := policy.SweepNetwork(t.Context(), w, "net", used)
		if s := filtertest.FailClosedState(t, w); err != nil || (s != "") != (want > 0) {
			t.Errorf("sweep: %v, %v", s, err)
		}
	}
	sweep(false, 1) // somebody has a port there
	contract.Host(t, w, "ip link set veth1 nomaster")
	sweep(true, 1)
	contract.Verify(t, w, c(policy.Strict, "10.1.2.5/24"))
	sweep(false, 0)
	if s := filtertest.FailClosedState(t, w); s != "" {
		t.Errorf("left by GC:\n%s", s)
	}
}

// TestClosedOrder: at no time is a link prohibited more than it will be. What exempts stands before what prohibits, and
// goes after it.
func TestClosedOrder(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Wire(t, w)
	c := policy.FailClosed{Owner: contract.Owner, Policy: policy.Strict,
		To: []netip.Prefix{contract.Prefix("10.1.2.5/24"), contract.Prefix("fd00::5/64")}}
	order := func(what string, do func()) (events []string) {
		t.Helper()
		ctx, cancel := context.WithCancel(nstest.Context(t))
		defer cancel()
		monitor := exec.CommandContext(ctx, "nsenter", "--net="+w.Host.Path, "ip", "monitor", "rule")
		out, err := monitor.StdoutPipe()
		if err == nil {
			err = monitor.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		defer monitor.Wait()
		defer cancel()
		// It listens as soon as it prints a rule that is made for that. The last rule ends it.
		lines := make(chan string, 100)
		go func() {
			defer close(lines)
			for in := bufio.NewScanner(out); in.Scan(); {
				lines <- in.Text()
			}
		}()
		for heard := false; !heard; {
			contract.Host(t, w, "ip rule add priority 7 lookup 7")
			contract.Host(t, w, "ip rule del priority 7 lookup 7")
			select {
			case <-lines:
				heard = true
			case <-time.After(10 * time.Millisecond):
			}
			if ctx.Err() != nil {
				t.Fatal("nothing is heard of rules")
			}
		}
		do()
		contract.Host(t, w, "ip rule add priority 8 lookup 8")
		contract.Host(t, w, "ip rule del priority 8 lookup 8")
		for line := range lines {
			if strings.Contains(line, "lookup 8") || strings.HasPrefix(line, "8:") {
				break
			}
			if strings.Contains(line, "proto 250") {
				events = append(events, line)
			}
		}
		return events
	}
	// in is whether the exemption of each family comes before the prohibition, or after it.
	in := func(events []string, first string) bool {
		return !slices.ContainsFunc([]string{"10.1.2.5", "fd00::5"}, func(to string) bool {
			of := slices.DeleteFunc(slices.Clone(events),
				func(line string) bool { return !strings.Contains(line, "to "+to+" ") })
			return len(of) != 2 || !strings.Contains(of[0], first)
		})
	}
	made := order("Ensure", func() { contract.Ensure(t, w, c) })
	if !in(made, "31900:") {
		t.Errorf("made in this order:\n%s", strings.Join(made, "\n"))
	}
	gone := order("Remove", func() { contract.Remove(t, w, c) })
	if !in(gone, "31902:") || len(gone) != len(made) {
		t.Errorf("removed in this order:\n%s", strings.Join(gone, "\n"))
	}
}

// TestClosedAtOnce has attachments with addresses of many ranges come at once: what is remembered of the bridge has all
// of them, so that nothing is left.
//
// clause: P20
func TestClosedAtOnce(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Host(t, w, "ip link add br7 type bridge")
	reach(t, w, "br7", "10.7.0.0/16")
	const n = 16
	errs := make(chan error)
	for i := range n {
		c := policy.FailClosed{Owner: contract.Owner, Link: "br7", Policy: policy.Strict,
			To: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 7, byte(i), 2}), 24)}}
		own := *w
		var err error
		if own.Host, err = kernel.Open(w.Host.Path); err != nil { // each call is a process of its own
			t.Fatal(err)
		}
		t.Cleanup(own.Host.Close)
		go func() {
			_, err := c.Ensure(t.Context(), &own)
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if s := filtertest.FailClosedState(t, w); strings.Count(s, "prohibit 10.7.") != n ||
		strings.Count(s, "iif br7") != 2 {
		t.Errorf("made:\n%s", s)
	}
	if err := policy.RemoveProhibitions(w, policy.NetworkOwner(contract.Owner.Network, "br7")); err != nil {
		t.Error(err)
	}
	if s := filtertest.FailClosedState(t, w); s != "" {
		t.Errorf("left:\n%s", s)
	}
}
