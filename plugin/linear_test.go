package plugin_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// TestLinear: what the owner of a pod, or a runtime, writes in quantity costs CPU time in proportion to its length, and
// fills no log. Five times as many members take five times as long in linear time and 25 times in quadratic; the CPU
// time of a process without a garbage collector does not depend on load.
//
// clause: C12 P22
func TestLinear(t *testing.T) {
	r := newRunner(t, chain{name: "linear", plugins: []string{""}})
	many := func(format, sep string) func(int) string {
		return func(n int) string {
			var b strings.Builder
			for i := range n {
				if i > 0 {
					b.WriteString(sep)
				}
				fmt.Fprintf(&b, format, i)
			}
			return b.String()
		}
	}
	keys := many(`"k%d":1`, ",")
	ipam := `"ipam":{"type":"host-local","subnet":"10.0.0.0/8"}`
	for name, tt := range map[string]struct {
		verb string
		conf func(n int) string
	}{
		"unknown keys":       {"STATUS", func(n int) string { return `"type":"bridge",` + ipam + "," + keys(n) }},
		"runtimeConfig":      {"STATUS", func(n int) string { return `"type":"bridge",` + ipam + `,"runtimeConfig":{` + keys(n) + "}" }},
		"args.cni":           {"STATUS", func(n int) string { return `"type":"bridge",` + ipam + `,"args":{"cni":{` + keys(n) + "}}" }},
		"args.cni of tuning": {"STATUS", func(n int) string { return `"type":"tuning","args":{"cni":{` + keys(n) + "}}" }},
		"args.cni.sysctl": {"STATUS", func(n int) string {
			return `"type":"tuning","args":{"cni":{"sysctl":{` + many(`"net.ipv4.k%d":"1"`, ",")(n) + "}}}"
		}},
		"keys of ipam": {"STATUS", func(n int) string {
			return `"type":"bridge","ipam":{"type":"host-local","subnet":"10.0.0.0/8",` + keys(n) + "}"
		}},
		"one long key": {"STATUS", func(n int) string { return `"type":"bridge",` + ipam + `,"x` + strings.Repeat("isGateway", n) + `":1` }},
		"valid attachments": {"GC", func(n int) string {
			return `"type":"bridge",` + ipam + `,"cni.dev/valid-attachments":[` + many(`{"containerID":"c%d","ifname":"eth0"}`, ",")(n) + "]"
		}},
		"valid attachments twice": {"GC", func(n int) string {
			list := "[" + many(`{"containerID":"c%d","ifname":"eth0"}`, ",")(n) + "]"
			return `"type":"portmap","cni.dev/valid-attachments":` + list + `,"cni.dev/attachments":` + list
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cost := func(n int) time.Duration {
				conf := `{"cniVersion":"1.1.0","name":"linear",` + tt.conf(n) + "}"
				_, typ, _ := strings.Cut(conf, `"type":"`)
				typ, _, _ = strings.Cut(typ, `"`)
				cmd := exec.Command(filepath.Join(r.dir, typ))
				cmd.Stdin = strings.NewReader(conf)
				cmd.Env = append(os.Environ(), "CNI_COMMAND="+tt.verb, "CNI_PATH="+r.dir, "GOGC=off")
				var out, stderr bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &stderr
				if err := nstest.In(r.host, cmd.Run); err != nil || stderr.Len() > 16<<10 {
					t.Fatalf("%d: %v, %s, %d bytes on stderr", n, err, out.String(), stderr.Len())
				}
				return cmd.ProcessState.UserTime()
			}
			const n = 8000
			cost(1)
			few, more := cost(n), cost(5*n)
			if few = max(few, 20*time.Millisecond); more > 12*few {
				t.Errorf("%d take %v of CPU, and %d take %v", n, few, 5*n, more)
			}
		})
	}
}

// TestUnknownKeysBounded: of many unknown keys the log has some, and how many more there are.
//
// clause: C12
func TestUnknownKeysBounded(t *testing.T) {
	r := newRunner(t, chain{name: "bounded", plugins: []string{`"type":"bridge","bridge":"br-bound","ipam":{"type":"host-local","subnet":"10.76.0.0/24"}`}})
	var keys strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&keys, `,"%s%d":1`, strings.Repeat("k", 100), i)
	}
	a := &attachment{id: "b", netns: nstest.NewNS(t)}
	_, err := r.run(0, "ADD", a, `,"strict":true`+keys.String())
	if err == nil || !strings.Contains(err.Error(), "and 4980 more unknown keys") || len(err.Error()) > 16<<10 {
		t.Errorf("ADD with unknown keys: %d bytes: %.300v", len(fmt.Sprint(err)), err)
	}
}
