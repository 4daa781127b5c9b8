package plugin_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/txtar"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// FuzzPlan: a configuration of any content, with any CNI_ARGS, has a plan, and each time the same, or an error of the
// protocol. Planning changes neither the configuration nor the previous result, and DEL and GC take what ADD refuses.
func FuzzPlan(f *testing.F) {
	goldens, err := filepath.Glob("*/testdata/*.txtar")
	if err != nil || len(goldens) == 0 {
		f.Fatalf("no goldens: %v", err)
	}
	for _, golden := range goldens {
		archive, err := txtar.ParseFile(golden)
		if err != nil {
			f.Fatal(err)
		}
		conf, args := archive.Parts()["conf"], ""
		for line := range strings.Lines(archive.Parts()["call"]) {
			if given, ok := strings.CutPrefix(strings.TrimSpace(line), "args "); ok {
				args = given
			}
		}
		if conf != "" {
			f.Add([]byte(conf), args)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, args string) {
		pairs, err := spec.ParseArgs(args)
		if err != nil {
			return
		}
		parsed := func() *spec.Conf {
			conf, err := spec.ParseConf(text)
			if err != nil {
				return nil
			}
			return conf
		}
		conf := parsed()
		if conf == nil {
			return
		}
		i := slices.IndexFunc(plugin.All(), func(p sdk.Plugin) bool { return p.Name == conf.Type })
		if i < 0 {
			return
		}
		p := plugin.All()[i]
		for _, verb := range []string{"ADD", "CHECK", "STATUS"} {
			once, first := planned(p, verb, conf, pairs)
			twice, second := planned(p, verb, conf, pairs)
			anew, third := planned(p, verb, parsed(), pairs)
			if once != twice || once != anew || said(first) != said(second) || said(first) != said(third) {
				t.Errorf("%s of %s is planned as\n%s%v\nthen as\n%s%v\nand anew as\n%s%v", verb, text, once, first, twice,
					second, anew, third)
			}
			var e *spec.Error
			if first != nil && (!errors.As(first, &e) || e.Code == 0 || e.Code == spec.CodeInternal || said(first) == "") {
				t.Errorf("%s of %s: %#v", verb, text, first)
			}
		}
		for _, verb := range []string{"DEL", "GC"} {
			if _, err := p.NewRequest(verb, owner, "", conf, pairs); err != nil {
				t.Errorf("%s of %s: %v", verb, text, err)
			}
			p.Kinds(conf)
		}
	})
}

var owner = spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}

func planned(p sdk.Plugin, verb string, conf *spec.Conf, args [][2]string) (string, error) {
	r, err := p.NewRequest(verb, owner, "/run/netns/c1", conf, args)
	if err != nil {
		return "", err
	}
	want, _, err := p.Plan(conf, r)
	if err != nil {
		return "", err
	}
	return want.Plan.String(), nil
}

func said(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
