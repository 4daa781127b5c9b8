package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// inProcess is a runtime that is all plugins itself, and a list. Nothing can be executed by it: the test's program is
// no plugin.
func inProcess(t *testing.T, list string) (*attach.Runtime, *spec.List) {
	t.Helper()
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range plugin.All() {
		if err := os.Symlink(exe, filepath.Join(dir, p.Name)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := spec.ParseList([]byte(list))
	if err != nil {
		t.Fatal(err)
	}
	return &attach.Runtime{PluginDirs: []string{dir}, Stderr: io.Discard, Run: sdk.Here(plugin.All(), nil)}, l
}

const listHere = `{"cniVersion":"1.1.0","name":"here","plugins":[
	{"type":"bridge","bridge":"br-here","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.77.0.0/24"}]]}},
	{"type":"portmap","capabilities":{"portMappings":true}},{"type":"firewall","backend":"nftables","ingressPolicy":"isolated"},
	{"type":"tuning","sysctl":{"net.core.somaxconn":"501"}}]}`

// whatIsLeft are links and elements of sets that belong to containers.
func whatIsLeft(t *testing.T) string {
	t.Helper()
	return nstest.Run(t, "sh", "-c",
		`ip -br link | grep veth || true; nft list ruleset | grep '[0-9a-f]\{12\} [0-9a-f]\{16\} [^/]*/[^/]' || true; ls /var/lib/cni/networks/here | grep ^10 || true`)
}

// TestHere attaches many containers at once by plugins in this process, as a list and as a chain, and detaches them.
//
// clause: R1 R2 R3 R6 R9 R11 P20
func TestHere(t *testing.T) {
	l, err := spec.ParseList([]byte(listHere))
	if err != nil {
		t.Fatal(err)
	}
	doc, _, err := l.Chain()
	if err != nil {
		t.Fatal(err)
	}
	for name, list := range map[string]string{"list": listHere, "chain": string(doc)} {
		nstest.Apart(t, name, func(t *testing.T) {
			rt, l := inProcess(t, list)
			const n = 12
			var all [n]attach.Attachment
			var errs [n]error
			var results [n]*spec.Result
			each := func(what string, do func(i int) error) {
				t.Helper()
				var wg sync.WaitGroup
				for i := range all {
					wg.Go(func() { errs[i] = do(i) })
				}
				wg.Wait()
				if err := errors.Join(errs[:]...); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
			}
			ctx := context.Background()
			for i := range all {
				all[i] = attach.Attachment{ContainerID: fmt.Sprint("c", i), Netns: nstest.NewNS(t), IfName: "eth0",
					Capabilities: map[string]any{"portMappings": []any{map[string]any{"hostPort": 8000 + i, "containerPort": 80,
						"protocol": "tcp"}}}}
			}
			each("add", func(i int) (err error) { results[i], err = rt.Add(ctx, l, all[i]); return err })
			seen := map[string]bool{}
			for i, res := range results {
				addr := res.IPs[0].Address.Addr().String()
				if out := nstest.RunIn(t, all[i].Netns, "ip", "-br", "-4", "addr", "show", "dev", "eth0"); seen[addr] ||
					!strings.Contains(out, addr) {
					t.Errorf("%s: has %s twice, or not: %s", all[i].ContainerID, addr, out)
				}
				seen[addr] = true
			}
			each("check", func(i int) error { return rt.Check(ctx, l, all[i]) })
			if err := rt.Status(ctx, l); err != nil {
				t.Error(err)
			}
			keep := []spec.Attachment{}
			for _, a := range all {
				keep = append(keep, spec.Attachment{ContainerID: a.ContainerID, IfName: a.IfName})
			}
			if err := rt.GC(ctx, l, keep); err != nil {
				t.Error(err)
			}
			each("check after gc", func(i int) error { return rt.Check(ctx, l, all[i]) })
			each("del", func(i int) error { return rt.Del(ctx, l, all[i]) })
			if left := whatIsLeft(t); left != "" {
				t.Errorf("left: %s", left)
			}
			if here, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || here != hostNamespace(t) {
				t.Errorf("this process is in %s now, %v", here, err)
			}
			nstest.Run(t, "ip", "link", "del", "br-here")
		})
	}
}

func hostNamespace(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(nstest.Run(t, "readlink", "/proc/self/ns/net"))
}

// TestCachedAlike: what is remembered of an attachment is the same of a list and of a chain, and either detaches the
// other's.
//
// clause: R2 R6
func TestCachedAlike(t *testing.T) {
	list := strings.Replace(listHere, `"subnet":"10.77.0.0/24"`, `"subnet":"10.77.0.0/24","rangeStart":"10.77.0.9","rangeEnd":"10.77.0.9"`, 1)
	rt, written := inProcess(t, list)
	doc, _, err := written.Chain()
	if err != nil {
		t.Fatal(err)
	}
	_, inside := inProcess(t, string(doc))
	a := attach.Attachment{ContainerID: "c1", Netns: nstest.NewNS(t), IfName: "eth0",
		Capabilities: map[string]any{"portMappings": []any{map[string]any{"hostPort": 8000, "containerPort": 80}}}}
	var first map[string]any
	for _, way := range [][2]*spec.List{{written, inside}, {inside, written}} {
		if _, err := rt.Add(context.Background(), way[0], a); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile("/var/lib/cni/results/here-c1-eth0")
		now := map[string]any{}
		if err != nil || json.Unmarshal(b, &now) != nil {
			t.Fatal(err, string(b))
		}
		delete(now, "config") // of the list that attached
		if first == nil {
			first = now
		}
		if now["result"] == nil || !reflect.DeepEqual(now, first) {
			t.Errorf("remembered is\n%v\nand\n%v", first, now)
		}
		if err := errors.Join(rt.Check(context.Background(), way[1], a),
			rt.Del(context.Background(), way[1], a)); err != nil {
			t.Error(err)
		}
		if left := whatIsLeft(t); left != "" {
			t.Errorf("left: %s", left)
		}
	}
	nstest.Run(t, "ip", "link", "del", "br-here")
}

// TestHereFails: what a plugin in this process says is what it would have said in one of its own, and an ADD whose time
// is out is taken back.
//
// clause: I2 P7 P8 P11 R5 R12
func TestHereFails(t *testing.T) {
	rt, l := inProcess(t, strings.Replace(listHere, "net.core.somaxconn", "net.core.nosuch", 1))
	a := attach.Attachment{ContainerID: "c1", Netns: nstest.NewNS(t), IfName: "eth0"}
	_, err := rt.Add(context.Background(), l, a)
	var ran *invoke.ExecError
	var doc *spec.Error
	if !errors.As(err, &ran) || !errors.As(err, &doc) || !strings.Contains(doc.Msg, "net.core.nosuch") ||
		!strings.Contains(err.Error(), "(plugin tuning ADD network here container c1 interface eth0; "+rt.PluginDirs[0]+
			"/tuning)") {
		t.Errorf("add says %v", err)
	}
	if left := whatIsLeft(t); left != "" {
		t.Errorf("left: %s", left)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	late := errors.New("too late")
	cancel(late)
	if _, err := rt.Add(ctx, l, a); !errors.Is(err, late) {
		t.Errorf("an ADD without time says %v", err)
	}
	if left := whatIsLeft(t); left != "" {
		t.Errorf("left: %s", left)
	}
	if _, err := rt.Versions(context.Background(), l); err != nil {
		t.Error(err)
	}
	nstest.Run(t, "sh", "-c", "ip link del br-here 2>/dev/null || true")
}

// onlyVersion is a plugin that says of which release it is, and fails otherwise. It counts how often it is run.
const onlyVersion = `package main

import (
	"fmt"
	"os"
)

func main() {
	runs, _ := os.OpenFile(os.Getenv("RUNS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	fmt.Fprint(runs, "x")
	if os.Getenv("CNI_COMMAND") != "VERSION" {
		fmt.Print(` + "`" + `{"cniVersion":"1.1.0","code":99,"msg":"executed"}` + "`" + `)
		os.Exit(1)
	}
	fmt.Print(` + "`" + `{"cniVersion":"1.1.0","supportedVersions":["1.1.0"],"fairlead":{"release":"v1.2.3"}}` + "`" + `)
}
`

// TestSameRelease: a plugin whose program is of the same release is not executed, and neither is the IPAM plugin that it
// delegates to. Another project's program and a script are executed, whatever they say.
func TestSameRelease(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	source := write("main.go", onlyVersion)
	ours, foreign := filepath.Join(dir, "ours"), filepath.Join(dir, "foreign")
	nstest.Run(t, "go", "build", "-o", foreign, source)
	main, err := filepath.Abs("../../../cmd/cni/main.go")
	if err != nil {
		t.Fatal(err)
	}
	overlay := write("overlay.json", fmt.Sprintf(`{"Replace":{%q:%q}}`, main, source))
	nstest.Run(t, "go", "build", "-overlay", overlay, "-o", ours, "../../../cmd/cni")
	script := write("script", "#!/bin/sh\nexec "+ours+"\n")

	l, err := spec.ParseList([]byte(`{"cniVersion":"1.1.0","name":"same","plugins":[{"type":"ptp",
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.78.0.0/24"}]]}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, file, version string
		executed            bool
	}{
		{"same", ours, "v1.2.3", false},
		{"other", ours, "v1.2.4", true},
		{"foreign", foreign, "v1.2.3", true},
		{"script", script, "v1.2.3", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plugins := t.TempDir()
			for _, name := range []string{"ptp", "host-local"} {
				if err := os.Link(tc.file, filepath.Join(plugins, name)); err != nil {
					t.Fatal(err)
				}
			}
			runs := filepath.Join(plugins, "runs")
			t.Setenv("RUNS", runs)
			run := netconf.Runner(&app.App{Version: tc.version}, io.Discard)
			rt := &attach.Runtime{PluginDirs: []string{plugins}, Stderr: io.Discard, Run: run}
			a := attach.Attachment{ContainerID: "c", Netns: nstest.NewNS(t), IfName: "eth0"}
			_, err := rt.Add(context.Background(), l, a)
			if executed := err != nil; executed != tc.executed {
				t.Fatalf("executed: %v (%v)", executed, err)
			}
			if tc.executed {
				return
			}
			err = rt.Del(context.Background(), l, a)
			if asked, readErr := os.ReadFile(runs); err != nil || readErr != nil || len(asked) != 1 {
				t.Errorf("run %d times, want 1: %v, %v", len(asked), err, readErr)
			}
		})
	}
}
