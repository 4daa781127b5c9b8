package plugin_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
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
		_, err := rtnl.IndexOf(host, "beyond8")
		return err != nil, nil
	}
	if err := rtnl.Await(host, t.Context(), nstest.Patience(t), []uint{rtnl.LinkEvents}, gone); err != nil {
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
		if s := err.Error(); strings.Count(s, "no links of type "+kind) != 1 || strings.Contains(s, "takes no VLAN") ||
			strings.Contains(s, "add link") {
			t.Errorf("%s: %s", kind, s)
		}
	}
}

// A bridge has one gateway of a family. A network that would need another one is not ready, unless it may replace it.
//
// clause: P23
func TestStatusGatewayTaken(t *testing.T) {
	host := nstest.NewNS(t)
	at := func(name, conf string) *runner {
		r := newRunner(t, chain{name, []string{`"type":"bridge","bridge":"br5","isGateway":true,` + conf}, nil})
		r.host = host
		return r
	}
	first := at("gw1", `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.85.0.0/24"}],[{"subnet":"fd85::/64"}]]}`)
	others := map[string]struct {
		conf, say string
		ready     bool
	}{
		"another subnet":   {`"ipam":{"type":"host-local","subnet":"10.86.0.0/24"}`, "br5 already has 10.85.0.1/24, and its gateway is to be 10.86.0.1/24", false},
		"another prefix":   {`"ipam":{"type":"host-local","subnet":"10.85.0.0/16","gateway":"10.85.0.1"}`, "br5 already has 10.85.0.1/24", false},
		"overlapping IPv6": {`"ipam":{"type":"host-local","subnet":"fd85::/32"}`, "br5 already has fd85::1/64", false},
		"static":           {`"ipam":{"type":"static","addresses":[{"address":"10.86.0.9/24"}]}`, "10.86.0.1/24", false},
		"forced":           {`"forceAddress":true,"ipam":{"type":"host-local","subnet":"10.86.0.0/24"}`, "", true},
		"one of two fits":  {`"ipam":{"type":"host-local","ranges":[[{"subnet":"10.86.0.0/24"},{"subnet":"10.85.0.0/24","rangeStart":"10.85.0.99"}]]}`, "", true},
		"the same":         {`"ipam":{"type":"host-local","subnet":"10.85.0.0/24"}`, "", true},
		"other IPv6":       {`"ipam":{"type":"host-local","subnet":"fd86::/64"}`, "", true},
		"no gateway":       {`"isGateway":false,"ipam":{"type":"host-local","subnet":"10.86.0.0/24"}`, "", true},
	}
	for what, o := range others {
		r := at("gw2", o.conf)
		r.must(what+": before there is a bridge", r.status())
	}
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	first.must("add", first.add(a))
	first.must("status of who is there", first.status())
	for what, o := range others {
		r := at("gw2", o.conf)
		err := r.status()
		if o.ready {
			r.must(what, err)
			continue
		}
		wantCode(t, what, err, spec.CodeUnavailable, o.say)
		b := &attachment{id: "c2", netns: nstest.NewNS(t)}
		if err := r.add(b); err == nil || !strings.Contains(err.Error(), o.say) {
			t.Errorf("%s: add: %v, want %q", what, err, o.say)
		}
	}
	first.must("del", first.del(a))
}

// A passthru is alone on its master. Who is in the way, in whichever container, STATUS and ADD name.
//
// clause: P23 P11
func TestPassthruIsAlone(t *testing.T) {
	nstest.Need(t, "macvlan")
	host := nstest.NewNS(t)
	nstest.RunIn(t, host, "sh", "-ec", "ip link add ens6 up type veth peer name beyond6; ip link set beyond6 up")
	at := func(name, mode string) *runner {
		r := newRunner(t, chain{name, []string{`"type":"macvlan","master":"ens6","mode":"` + mode + `"`}, nil})
		r.host = host
		return r
	}
	shared, alone, another := at("shared", "bridge"), at("alone", "passthru"), at("another", "passthru")
	all := map[string]*runner{"shared": shared, "alone": alone, "another": another}
	for _, r := range all {
		r.must("status while nobody is there", r.status())
	}
	for name, say := range map[string]string{
		"shared": "a macvlan, eth0 of life-shared/c1/eth0",
		"alone":  "a passthru, eth0 of life-alone/c1/eth0",
	} {
		r := all[name]
		a := &attachment{id: "c1", netns: nstest.NewNS(t)}
		r.must("add", r.add(a))
		for other, o := range all {
			err := o.status()
			if other == name {
				o.must(name+": own status", err)
				continue
			}
			wantCode(t, name+": status of "+other, err, spec.CodeUnavailable, say)
			b := &attachment{id: "c2", netns: nstest.NewNS(t)}
			wantCode(t, name+": add of "+other, o.add(b), spec.CodeConfig, say)
			o.must("del", o.del(b))
		}
		r.must("check", r.check(a))
		r.must("del", r.del(a))
	}
}
