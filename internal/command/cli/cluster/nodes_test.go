package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
)

// Of 1,000 nodes those with a problem are listed, and all are counted.
func TestThousandNodes(t *testing.T) {
	inside := func(small, full agentstatus.Result, mtu int) *agentstatus.Path {
		return &agentstatus.Path{Tested: time.Now(), Agents: agentstatus.Passed,
			Inside: []agentstatus.Inside{{Family: "IPv4", Small: small, Full: full, Size: 1450, MTU: mtu}}}
	}
	whole := inside(agentstatus.Passed, agentstatus.Passed, 0)
	nodes := []agentstatus.Node{{Name: "self", Way: agentstatus.Here}}
	for i := 1; i < 1000; i++ {
		nodes = append(nodes, agentstatus.Node{Name: fmt.Sprint("n", i), Way: agentstatus.VXLAN, Path: whole})
	}
	nodes[17].Path = inside(agentstatus.Passed, agentstatus.LostThere, 1400)
	nodes[500].Path = inside(agentstatus.LostBack, agentstatus.LostBack, 0)
	nodes[600].Path = inside(agentstatus.Lost, agentstatus.Lost, 0)
	nodes[700] = agentstatus.Node{Name: "n700", Way: agentstatus.None}
	nodes[800].Path = &agentstatus.Path{Agents: agentstatus.LostThere, Inside: whole.Inside}

	printed := func(all bool) string {
		file, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		printNodes(&app.App{Stdout: file}, nodes, all)
		text, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	out := printed(false)
	var got []string
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		got = append(got, strings.Join(words[:min(len(words), 6)], " "))
	}
	want := []string{"NODE WAY ENDPOINT MTU PATH TESTED", "n17 vxlan - - short: 1400", "n500 vxlan - - lost back",
		"n600 vxlan - - silent 0s", "n700 none - - - -", "n800 vxlan - - agent silent", "1000 nodes: 994 ok, 1 agent"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if want := "1000 nodes: 994 ok, 1 agent silent, 1 lost back, 1 no way, 1 short: 1400, 1 silent, 1 this node\n"; !strings.HasSuffix(out, want) {
		t.Error(out)
	}
	if n := strings.Count(printed(true), "\n"); n != 1002 {
		t.Errorf("--all prints %d lines", n)
	}
}
