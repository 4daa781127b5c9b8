package sdk_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/sdk/sdktest"
	"github.com/fairlead-cni/fairlead/spec"
)

// A mark is a line in a file that tells the order of repair.
type mark struct{ name string }

const marks = "/run/marks"

func (m mark) String() string { return "mark " + m.name }

func (m mark) there() bool {
	b, _ := os.ReadFile(marks)
	return strings.Contains(string(b), m.name+"\n")
}

func (m mark) Ensure(context.Context, *kernel.World) (bool, error) {
	if m.there() {
		return false, nil
	}
	b, _ := os.ReadFile(marks)
	return true, os.WriteFile(marks, append(b, m.name+"\n"...), 0o600)
}

func (m mark) Verify(context.Context, *kernel.World) error {
	if !m.there() {
		return errors.New("is missing")
	}
	return nil
}

type closing struct{ mark }

func (closing) Traits() resource.Traits { return resource.Traits{Effect: resource.Closes} }

type opening struct{ mark }

func (opening) Traits() resource.Traits { return resource.Traits{Effect: resource.Opens} }

type fixing struct{ mark }

func (m fixing) Traits() resource.Traits { return resource.Traits{Fix: m.Ensure} }

// markPlugin wants a resource of each sort that repair knows, and one that it does not fix.
func markPlugin() sdk.Plugin {
	return sdk.Chained("marks", "makes marks", func(struct{}, *sdk.Request) (sdk.Answer, error) {
		return sdk.Answer{Plan: plan.Plan{fixing{mark{"link"}}, opening{mark{"open"}}, mark{"hopeless"},
			closing{mark{"close"}}}}, nil
	}, nil)
}

// TestRepairVerb is what a plugin of another program answers to FAIRLEAD_REPAIR: in which order it repairs, and what it
// leaves alone.
func TestRepairVerb(t *testing.T) {
	t.Setenv("TOY", "1")
	netns := nstest.NewNS(t)
	x := extra.Ask(t.Context(), filepath.Join(sdktest.Plugins(t, "marks"), "marks"), invoke.Call{})
	if !x.Plans() || !x.Repairs() {
		t.Fatalf("it offers %+v", x)
	}
	missing := func(names ...string) (lines []string) {
		for _, n := range names {
			lines = append(lines, "mark "+n+": is missing")
		}
		return lines
	}
	for _, tt := range []struct {
		name  string
		q     extra.RepairRequest
		did   string // in its order
		wrong []string
		fixes int // of what is wrong
	}{
		{"dry run", extra.RepairRequest{DryRun: true}, "", missing("close", "link", "open", "hopeless"), 3},
		{"what keeps packets out", extra.RepairRequest{Closes: true}, "close", nil, 0},
		{"rules alone", extra.RepairRequest{Firewall: true}, "close open", nil, 0},
		{"all", extra.RepairRequest{}, "close link open", missing("hopeless"), 0},
	} {
		_ = os.Remove(marks)
		tt.q.Conf = json.RawMessage(conf("1.1.0", prev))
		o := spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}
		a, err := x.Repair(t.Context(), o, netns, nil, tt.q)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		var wrong []string
		fixes := 0
		for _, w := range a.Wrong {
			wrong = append(wrong, w.Resource+": "+w.Text)
			if w.Repair == spec.ByRepair {
				fixes++
			}
		}
		b, _ := os.ReadFile(marks)
		did := strings.Join(strings.Fields(string(b)), " ")
		if did != tt.did || strings.Join(wrong, "\n") != strings.Join(tt.wrong, "\n") || fixes != tt.fixes ||
			len(a.Plan) != 4 || len(a.Repaired) != len(strings.Fields(tt.did)) {
			t.Errorf("%s: did %q, want %q; wrong %q, want %q; %d fix, want %d; %+v", tt.name, did, tt.did, wrong,
				tt.wrong,
				fixes, tt.fixes, a)
		}
	}
}

// TestPlanVerb is what a plugin of another program answers to FAIRLEAD_PLAN: what ADD would make and return, and why there
// would be none.
func TestPlanVerb(t *testing.T) {
	t.Setenv("TOY", "1")
	x := extra.Ask(t.Context(), filepath.Join(sdktest.Plugins(t, "toy"), "toy"), invoke.Call{})
	o := spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}
	ip := spec.IP{Address: netip.MustParsePrefix("192.0.2.9/32")}
	links := []resource.HostLink{{Name: "br0", Kind: "bridge"}}
	a, err := x.Foresee(t.Context(), o, "/run/netns/none", nil, extra.PlanRequest{Conf: json.RawMessage(conf("1.1.0", `,"lable":1,"ipam":{"type":"toyipam"}`)),
		IPAM: &spec.Result{IPs: []spec.IP{ip}}, HostLinks: links})
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Resources) != 2 || !strings.Contains(a.Resources[1], "192.0.2.9/32") || len(a.HostLinks) != 1 || a.HostLinks[0].Name != "br0" ||
		len(a.Notes) != 1 || a.Notes[0].Unknown != "lable" || len(a.Unmet) > 0 {
		t.Errorf("%+v", a)
	}
	if r := a.Result; r == nil || len(r.IPs) != 1 || r.IPs[0].Address != ip.Address || *r.IPs[0].Interface != 0 ||
		len(r.Interfaces) != 1 || r.Interfaces[0].Name != "eth0" || r.Interfaces[0].Sandbox != "/run/netns/none" {
		t.Errorf("the next plugin would get %+v", r)
	}
	needy := extra.Ask(t.Context(), filepath.Join(sdktest.Plugins(t, "needy"), "needy"), invoke.Call{})
	a, err = needy.Foresee(t.Context(), o, "/run/netns/none", nil, extra.PlanRequest{Conf: json.RawMessage(conf("1.1.0", ""))})
	if err != nil || len(a.Unmet) != 1 || !strings.Contains(a.Unmet[0], "this kernel has no marks") {
		t.Errorf("of what the kernel lacks: %+v, %v", a, err)
	}
	odd := [][2]string{{"IPP", "192.0.2.9"}}
	a, err = needy.Foresee(t.Context(), o, "/run/netns/none", odd, extra.PlanRequest{Conf: json.RawMessage(conf("1.1.0", ""))})
	if err == nil || !strings.Contains(err.Error(), "IPP") {
		t.Errorf("with an argument that it does not know: %+v, %v", a, err)
	}
	for text, want := range map[string]string{conf("1.1.0", `,"fail":true`): "asked to", conf("2.0.0", ""): "2.0.0", `{"name":5}`: "name: is the number 5"} {
		if a, err := x.Foresee(t.Context(), o, "", nil, extra.PlanRequest{Conf: json.RawMessage(text)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", text, a, err)
		}
	}
}

// TestVerbsNotOffered: an IPAM plugin offers nothing, and refuses what it has not offered, as it refuses other words.
func TestVerbsNotOffered(t *testing.T) {
	t.Setenv("TOY", "1")
	path := filepath.Join(sdktest.Plugins(t, "toyipam"), "toyipam")
	if x := extra.Ask(t.Context(), path, invoke.Call{}); x.Plans() || x.Repairs() {
		t.Errorf("it offers %+v", x)
	}
	for _, verb := range []string{"FAIRLEAD_PLAN", "FAIRLEAD_REPAIR", "FAIRLEAD_OTHER"} {
		a := ask(t, "toyipam", conf("1.1.0", ""), env(verb)...)
		if a.status == 0 || a.doc["code"] != float64(spec.CodeEnvironment) {
			t.Errorf("%s: %+v", verb, a)
		}
	}
}
