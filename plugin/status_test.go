package plugin_test

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// A virtual device ends with the container that has it. Nobody gets it any more, so neither the network that it was for
// nor another one is ready.
//
// clause: P23
func TestStatusDeviceGone(t *testing.T) {
	nstest.Run(t, "ip", "link", "add", "ens8", "type", "veth", "peer", "name", "beyond8")
	host, err := kernel.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	const conf = `"type":"host-device","device":"ens8"`
	h1, h2 := newRunner(t, chain{"h1", []string{conf}, nil}), newRunner(t, chain{"h2", []string{conf}, nil})
	a := &attachment{id: "c5", netns: nstest.NewNS(t)}
	h1.must("add", h1.add(a))
	h1.must("status while it is in use", h1.status())
	wantCode(t, "status of another network", h2.status(), spec.CodeUnavailable, "life-h1/c5/eth0 has it")
	if err := nstest.RemoveNS(a.netns); err != nil {
		t.Fatal(err)
	}
	gone := func() (bool, error) {
		_, err := host.Index("beyond8")
		return err != nil, nil
	}
	if err := host.Await(t.Context(), 10*time.Second, []uint{kernel.LinkEvents}, gone); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*runner{h1, h2} {
		wantCode(t, "status when it is gone", r.status(), spec.CodeUnavailable, `device: "ens8": no such device on the host`)
	}
	h1.must("del", h1.del(a))
}

// Where the kernel keeps no VLANs apart, no container gets into one.
//
// clause: P23
func TestStatusBridgeVLANs(t *testing.T) {
	ns := nstest.NewNS(t)
	_, probe := nstest.Output(ns, exec.Command("ip", "link", "add", "br9", "type", "bridge", "vlan_filtering", "1"))
	for _, keys := range []string{`"access":20`, `"vlan":20`, `"vlanTrunk":[]`, `"vlanFiltering":true`, `"access":20,"removeWhenEmpty":true`} {
		r := newRunner(t, chain{"status-vlan", []string{`"type":"bridge","bridge":"br-none",` + keys}, nil})
		r.host = nstest.NewNS(t)
		err := r.status()
		if probe == nil {
			r.must(keys, err)
			continue
		}
		wantCode(t, keys, err, spec.CodeUnavailable, "CONFIG_BRIDGE_VLAN_FILTERING")
		if out := nstest.RunIn(t, r.host, "ip", "-br", "link"); strings.Contains(out, "br-none") {
			t.Errorf("%s: status made\n%s", keys, out)
		}
	}
	r := newRunner(t, chain{"status-plain", []string{`"type":"bridge","bridge":"br-none"`}, nil})
	r.host = nstest.NewNS(t)
	r.must("without VLANs", r.status())
}

// What the kernel lacks is said once.
func TestNoKindIsSaidOnce(t *testing.T) {
	for kind, conf := range map[string]string{"vlan": `"type":"vlan","master":"ens7","vlanId":7`, "ipvlan": `"type":"ipvlan","master":"ens7"`, "dummy": `"type":"dummy"`} {
		r := newRunner(t, chain{"said-once-" + kind, []string{conf}, nil})
		r.host = nstest.NewNS(t)
		nstest.RunIn(t, r.host, "ip", "link", "add", "ens7", "up", "type", "veth", "peer", "name", "beyond7")
		a := &attachment{id: "c1", netns: nstest.NewNS(t)}
		err := r.add(a)
		if err == nil { // this kernel has it
			r.must("del", r.del(a))
			continue
		}
		if s := err.Error(); strings.Count(s, "no links of type "+kind) != 1 || strings.Contains(s, "takes no VLAN") || strings.Contains(s, "add link") {
			t.Errorf("%s: %s", kind, s)
		}
	}
}
