package sdk_test

import (
	"testing"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

type drivenConf struct {
	Device string `json:"device"`

	driver string
}

func (c *drivenConf) ReadHost() { c.driver = "driver-of-" + c.Device }

// TestHostReader: what the host says is asked with the configuration decoded, and before the plan.
func TestHostReader(t *testing.T) {
	p := sdk.Interface("driven", "", func(c drivenConf, _ *sdk.Request) (sdk.Answer, error) {
		return sdk.Answer{Plan: plan.Plan{link.Up{Link: c.driver}}}, nil
	}, nil)
	conf, err := spec.ParseConf([]byte(`{"cniVersion":"1.1.0","name":"net","type":"driven","device":"ens4"}`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.NewRequest("ADD", spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}, "/run/netns/c1", conf, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, notes, err := p.Plan(conf, r)
	if want := (link.Up{Link: "driver-of-ens4"}).String() + "\n"; err != nil || got.Plan.String() != want || len(notes) > 0 {
		t.Errorf("the plan is %q, %v, %v; want %q", got.Plan, notes, err, want)
	}
}
