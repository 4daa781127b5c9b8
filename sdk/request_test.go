package sdk

import (
	"errors"
	"testing"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// The container's veth says by which link its packets come, or else the links that the previous plugins listed.
func TestGatewayLink(t *testing.T) {
	bridge, gateway := resource.HostLink{Name: "br0", Kind: "bridge"}, resource.HostLink{Name: "br0.7", Kind: "veth"}
	veth, port := resource.HostLink{Name: "veth0", Kind: "veth"}, resource.HostLink{Name: "veth0", Kind: "veth", Master: "br0"}
	for name, tc := range map[string]struct {
		links      Links
		link, port string
	}{
		"nothing":                    {Links{}, "", ""},
		"a bridge":                   {Links{HostLinks: []resource.HostLink{bridge}}, "br0", ""},
		"a port of a bridge":         {Links{HostLinks: []resource.HostLink{bridge, port}}, "br0", "veth0"},
		"a port, without its bridge": {Links{HostLinks: []resource.HostLink{port}}, "br0", "veth0"},
		"a link of its own":          {Links{HostLinks: []resource.HostLink{veth}}, "veth0", "veth0"},
		"a link beside a bridge":     {Links{HostLinks: []resource.HostLink{bridge, veth}}, "br0", ""},
		"the gateway of a VLAN":      {Links{HostLinks: []resource.HostLink{bridge, gateway, port}}, "br0.7", "veth0"},
		"the other end is a port":    {Links{Peer: &port}, "br0", "veth0"},
		"the other end, in a VLAN":   {Links{Peer: &port, HostLinks: []resource.HostLink{bridge, gateway}}, "br0.7", "veth0"},
		"the other end":              {Links{Peer: &veth, HostLinks: []resource.HostLink{bridge}}, "veth0", "veth0"},
		"the other end, by a policy": {Links{Peer: &veth, Policed: "br0.7"}, "br0.7", "veth0"},
	} {
		if link, port := (&Request{Links: tc.links}).GatewayLink(); link != tc.link || port != tc.port {
			t.Errorf("%s: %q, %q, want %q, %q", name, link, port, tc.link, tc.port)
		}
	}
}

// What only a runtime can give refuses an ADD and a CHECK, and STATUS, which no runtime gives it to, does not ask for it.
func TestLackingValue(t *testing.T) {
	missing := errors.New("runtimeConfig.mac: is missing")
	p := Interface("mynet", "", func(struct{}, *Request) (Answer, error) {
		return Answer{Plan: plan.Plan{plan.Lacking(missing)}}, nil
	}, nil)
	conf, err := spec.ParseConf([]byte(`{"cniVersion":"1.1.0","name":"net","type":"mynet"}`))
	if err != nil {
		t.Fatal(err)
	}
	for verb, want := range map[string]error{"ADD": missing, "CHECK": missing, "STATUS": nil} {
		r, err := p.NewRequest(verb, spec.Owner{Network: "net", ContainerID: "c", IfName: "eth0"}, "", conf, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := p.Plan(conf, r); !errors.Is(err, want) || err != nil && want == nil {
			t.Errorf("%s: %v, want %v", verb, err, want)
		}
	}
}
