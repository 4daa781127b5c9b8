package sdk_test

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// dry prints the plan of a plugin for a configuration, without a kernel.
func dry(p sdk.Plugin, conf string, ips ...spec.IP) {
	c, err := spec.ParseConf([]byte(conf))
	if err != nil {
		panic(err)
	}
	r, err := p.NewRequest("ADD", spec.Owner{Network: c.Name, ContainerID: "web", IfName: "eth0"}, "/run/netns/web", c, nil)
	if err != nil {
		panic(err)
	}
	r.IPs = ips
	answer, notes, err := p.Plan(c, r)
	for _, note := range notes {
		fmt.Println("warning:", note.Text)
	}
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	fmt.Print(answer.Plan)
}

// The main function of a plugin of one's own. Runtimes execute it with the verb in the environment.
func ExampleServe() {
	main := func() {
		self := sdk.Interface("mynet", "an interface that leads nowhere", nullWant, nil)
		os.Exit(sdk.Serve([]sdk.Plugin{self}, self.Name, "v1.0.0"))
	}
	_ = main
	// Output:
}

type nullConf struct {
	MTU int `json:"mtu" want:"0|68..65535 bytes"`
}

func nullWant(c nullConf, r *sdk.Request) (sdk.Answer, error) {
	p := plan.Plan{link.Dummy{Inside: link.Inside{
		Owner: r.Owner, Name: r.IfName, MTU: c.MTU, MAC: "02:00:00:00:00:01"}}}
	return sdk.Answer{Plan: append(p, r.Addressing(sdk.Addressing{Link: r.IfName, NoDAD: true})...)}, nil
}

// A plugin that makes the container's interface: the plan function says what should exist, and has the addresses of the
// IPAM plugin where one is configured. Wrong values and unknown keys are found by the tags of the configuration.
func ExampleInterface() {
	self := sdk.Interface("mynet", "an interface that leads nowhere", nullWant,
		func(nullConf) []plan.Kind { return []plan.Kind{link.ContainerLink("dummy")} })

	dry(self, `{"cniVersion": "1.1.0", "name": "lan", "type": "mynet", "mtu": 1400, "ipam": {"type": "host-local"}}`,
		spec.IP{Address: netip.MustParsePrefix("10.1.2.3/24")})
	dry(self, `{"cniVersion": "1.1.0", "name": "lan", "type": "mynet", "mtu": 10}`)
	dry(self, `{"cniVersion": "1.1.0", "name": "lan", "type": "mynet", "mut": 1400}`)
	// Output:
	// link cont/eth0 type dummy mtu 1400 address 02:00:00:00:00:01
	// addr cont/eth0 10.1.2.3/24
	// announce 10.1.2.3 on cont/eth0
	// error: mtu: 10: want 68 to 65535 bytes
	// warning: unknown key "mut", did you mean "mtu"?
	// link cont/eth0 type dummy address 02:00:00:00:00:01
}

// A plugin that adds to the interface that those before it made, which the previous result has.
func ExampleChained() {
	type conf struct {
		To netip.Prefix `json:"to" lacks:"the destination of the route"`
	}
	self := sdk.Chained("myroute", "adds a route", func(c conf, r *sdk.Request) (sdk.Answer, error) {
		for _, ip := range r.ContainerIPs() {
			if ip.Address.Addr().Is4() == c.To.Addr().Is4() {
				return sdk.Answer{Plan: plan.Plan{addr.Route{Link: r.IfName, Dst: c.To, Via: ip.Gateway}}}, nil
			}
		}
		return sdk.Answer{}, spec.Errorf(spec.CodeConfig, "to: %v: the container has no address of that family", c.To)
	}, nil)

	const prev = `"prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/run/netns/web"}],
		"ips": [{"address": "10.1.2.3/24", "gateway": "10.1.2.1", "interface": 0}]}`
	dry(self, `{"cniVersion": "1.1.0", "name": "lan", "type": "myroute", "to": "192.0.2.0/24", `+prev+`}`)
	dry(self, `{"cniVersion": "1.1.0", "name": "lan", "type": "myroute", "to": "2001:db8::/32", `+prev+`}`)
	// Output:
	// route 192.0.2.0/24 via 10.1.2.1 dev cont/eth0
	// error: to: 2001:db8::/32: the container has no address of that family
}
