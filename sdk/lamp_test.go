package sdk_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/sdk/sdktest"
	"github.com/fairlead-cni/fairlead/spec"
)

// This is what the author of the example with a resource of its own tests, by the public test kit alone.

func TestLampContract(t *testing.T) {
	holdLamp(t, nil)
}

// holdLamp holds a lamp to the contract, or what spoil makes of it.
func holdLamp(t *testing.T, spoil func(lamp) (plan.Resource, plan.Kind)) {
	w := sdktest.NewWorld(t)
	l := lamp{Owner: spec.Owner{Network: "lan", ContainerID: "c1", IfName: "eth0"}, MTU: 1400}
	var r plan.Resource = l
	k := lampKind()
	if spoil != nil {
		r, k = spoil(l)
	}
	sdktest.Contract{World: w, Kind: k, Owner: l.Owner}.Test(t, r,
		sdktest.Damage{Name: "mtu", Want: "mtu is 1300, want 1400", Do: func(t *testing.T) {
			sdktest.Run(t, w.Host.Path, "ip", "link", "set", l.name(), "mtu", "1300")
		}},
		sdktest.Damage{Name: "gone", Want: "link does not exist", Do: func(t *testing.T) {
			sdktest.Run(t, w.Host.Path, "ip", "link", "del", l.name())
		}})
}

func lampLife() sdktest.Life {
	return sdktest.Life{
		Plugins: []string{`{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.1.2.0/24"}}`, `{"type": "lamp", "mtu": 1400}`},
		Breaks: []sdktest.Break{
			{Name: "mtu", Want: "mtu is 1300, want 1400", Fix: true, Do: func(t *testing.T, a *sdktest.Attachment) {
				sdktest.Run(t, "", "sh", "-ec", "ip link set $(ip -br link show type ifb | cut -d' ' -f1) mtu 1300")
			}},
			{Name: "gone", Want: "link does not exist", Fix: true, Do: func(t *testing.T, a *sdktest.Attachment) {
				sdktest.Run(t, "", "sh", "-ec", "ip link del $(ip -br link show type ifb | cut -d' ' -f1)")
			}},
		},
	}
}

func TestLampLife(t *testing.T) {
	t.Setenv("TOY", "1")
	lampLife().Test(t)
}

func TestLampKilled(t *testing.T) {
	t.Setenv("TOY", "1")
	lampLife().TestKilled(t)
}

// What is wrong with lamps below: Remove leaves it, Verify never finds anything, Ensure makes it twice, the kind finds
// nothing, the kind takes everybody's.
type (
	leaking   struct{ lamp }
	blind     struct{ lamp }
	restless  struct{ lamp }
	forgetful struct{ plan.Kind }
	greedy    struct{ plan.Kind }
)

func (leaking) Remove(context.Context, *kernel.World) error { return nil }
func (blind) Verify(context.Context, *kernel.World) error   { return nil }

func (r restless) Ensure(ctx context.Context, w *kernel.World) (bool, error) { return r.fix(ctx, w) }

func (forgetful) Owners(context.Context, *kernel.World, string) ([]plan.Tag, error) { return nil, nil }

func (g greedy) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	links, err := rtnl.Links(w.Host)
	for _, l := range links {
		if l.Kind == "ifb" {
			err = errors.Join(err, rtnl.DelLink(w.Host, l.Index))
		}
	}
	return err
}

// TestContractBites: the kit finds what is wrong with a resource and with a kind.
func TestContractBites(t *testing.T) {
	const which = "FAIRLEAD_TEST_SPOILT"
	spoilt := map[string]func(lamp) (plan.Resource, plan.Kind){
		"leaking":   func(l lamp) (plan.Resource, plan.Kind) { return leaking{l}, lampKind() },
		"blind":     func(l lamp) (plan.Resource, plan.Kind) { return blind{l}, lampKind() },
		"restless":  func(l lamp) (plan.Resource, plan.Kind) { return restless{l}, lampKind() },
		"forgetful": func(l lamp) (plan.Resource, plan.Kind) { return l, forgetful{lampKind()} },
		"greedy":    func(l lamp) (plan.Resource, plan.Kind) { return l, greedy{lampKind()} },
	}
	if spoil := spoilt[os.Getenv(which)]; spoil != nil {
		holdLamp(t, spoil)
		return
	}
	for name, want := range map[string]string{
		"leaking": "state after remove", "blind": "verify before ensure: no error", "restless": "changed true, error",
		"forgetful": "owners do not name", "greedy": "remove took another attachment's",
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestContractBites$", "-test.parallel=1")
			cmd.Env = append(os.Environ(), which+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("%v, want %q:\n%s", err, want, out)
			}
		})
	}
}
