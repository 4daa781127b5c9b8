package plugin_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// A called is a line of a journal in JSON.
type called struct {
	Time   time.Time
	Took   string
	Env    map[string]string
	Stdin  map[string]json.RawMessage
	Result json.RawMessage
	Error  *spec.Error
}

func journal(t *testing.T, file string) (all []called) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var c called
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all = append(all, c)
	}
	return all
}

const debugBridge = `"type":"bridge","bridge":"br-debug","isGateway":true,` + hostLocal4

// TestDebug: every verb is written down, with what it was asked and answered; the result goes on as it came.
//
// clause: P1 P18
func TestDebug(t *testing.T) {
	withoutBridges(t)
	allowCommands(t)
	file := filepath.Join(t.TempDir(), "calls")
	debug := fmt.Sprintf(`"type":"debug","cniOutput":%q,"format":"json"`, file)
	allowCommands(t)
	r := newRunner(t, chain{"debug", []string{debugBridge, debug}, nil})
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	r.must("status", r.status())
	r.must("add", r.add(a))
	r.must("check", r.check(a))
	r.must("gc", r.gc("c1"))
	r.must("del", r.del(a))
	if _, err := r.run(1, "ADD", &attachment{id: "c1", netns: a.netns}, ""); err == nil {
		t.Error("an ADD without a previous result succeeded")
	}
	var verbs []string
	all := journal(t, file)
	for _, c := range all {
		verbs = append(verbs, c.Env["CNI_COMMAND"])
		if took, err := time.ParseDuration(c.Took); err != nil || took <= 0 || time.Since(c.Time) > time.Hour {
			t.Errorf("at %v, took %s: %v", c.Time, c.Took, err)
		}
		if len(c.Stdin["cniOutput"]) == 0 {
			t.Errorf("%s: stdin is %s", c.Env["CNI_COMMAND"], c.Stdin)
		}
	}
	if got := fmt.Sprint(verbs); got != "[STATUS ADD CHECK GC DEL ADD]" {
		t.Fatal(got)
	}
	add, failed := all[1], all[5]
	if add.Env["CNI_CONTAINERID"] != "c1" || add.Env["CNI_NETNS"] != a.netns || add.Env["CNI_IFNAME"] != "eth0" ||
		add.Error != nil {
		t.Errorf("%+v", add)
	}
	if prev := add.Stdin["prevResult"]; !sameJSON(t, add.Result, string(prev)) {
		t.Errorf("the result is\n%s\nthe one before was\n%s", add.Result, prev)
	}
	if failed.Error == nil || failed.Error.Code != spec.CodeConfig ||
		!strings.Contains(failed.Error.Msg, "prevResult is missing") || failed.Result != nil {
		t.Errorf("%+v", failed.Error)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: want a file that nobody else reads", st.Mode(), err)
	}
}

// The lines for people begin as those of the reference's plugin do, in its order.
func TestDebugText(t *testing.T) {
	allowCommands(t)
	file := filepath.Join(t.TempDir(), "calls")
	r := newRunner(t, chain{"debug-text", []string{fmt.Sprintf(`"type":"debug","cniOutput":%q`, file)}, nil})
	a := &attachment{id: "c1", netns: nstest.NewNS(t), prev: json.RawMessage(`{"cniVersion":"1.1.0","vendor":[1]}`)}
	if _, err := r.run(0, "DEL", a, ""); err != nil {
		t.Fatal(err)
	}
	out, err := r.run(0, "ADD", a, "")
	if err != nil || !sameJSON(t, out, string(a.prev)) {
		t.Errorf("%s, %v", out, err)
	}
	b, _ := os.ReadFile(file)
	records := strings.Split(string(b), "----------------------\n")
	if len(records) != 3 || !strings.HasPrefix(records[0], "CmdDel\n") || !strings.HasPrefix(records[1], "CmdAdd\n") {
		t.Fatalf("%s", b)
	}
	at := 0
	for _, name := range []string{"Time: 2", "ContainerID: c1\n", "Netns: " + a.netns, "IfName: eth0\n", "Args: \n",
		"Path: " + r.dir, "StdinData: {", "Result: {", "Took: "} {
		i := strings.Index(records[1][at:], "\n"+name)
		if i < 0 {
			t.Fatalf("no %q in its place in\n%s", name, records[1])
		}
		at += i
	}
}

// allowCommands lets configurations execute programs and write files on this host.
func allowCommands(t *testing.T) {
	t.Helper()
	if err := errors.Join(os.MkdirAll("/etc/cni", 0o755),
		os.WriteFile("/etc/cni/fairlead.json", []byte(`{"debugCommands": true}`), 0o644)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove("/etc/cni/fairlead.json") })
}

// A configuration executes nothing unless the node allows it: ADD and STATUS say so, and the calls that end something do
// their work.
func TestDebugCommandsNeedConsent(t *testing.T) {
	said := filepath.Join(t.TempDir(), "said")
	run := `["sh","-c","echo run >>` + said + `"]`
	prev := json.RawMessage(`{"cniVersion":"1.1.0"}`)
	for name, settings := range map[string]string{"no file": "", "another key": `{"log": "off"}`,
		"forbidden": `{"debugCommands": false}`, "a mistake": `{"debugCommands": "true"}`} {
		os.Remove("/etc/cni/fairlead.json")
		if settings != "" {
			allowCommands(t)
			if err := os.WriteFile("/etc/cni/fairlead.json", []byte(settings), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, conf := range []string{`"command":` + run, `"addHooks":[` + run + `],"statusHooks":[` + run + `]` +
			`,"checkHooks":[` + run + `],"delHooks":[` + run + `],"gcHooks":[` + run + `]`} {
			r := newRunner(t, chain{"debug-consent", []string{`"type":"debug",` + conf}, nil})
			a := &attachment{id: "c1", netns: nstest.NewNS(t), prev: prev}
			for verb, fails := range map[string]bool{"ADD": true, "STATUS": true, "CHECK": false, "DEL": false, "GC": false} {
				extra := ""
				if verb == "GC" {
					extra = `,"cni.dev/valid-attachments":[]`
				}
				out, err := r.run(0, verb, a, extra)
				if (err != nil) != fails {
					t.Errorf("%s: %s of %s: %v", name, verb, conf, err)
				}
				if fails && !strings.Contains(fmt.Sprint(string(out), err), "/etc/cni/fairlead.json") {
					t.Errorf("%s: %s: %s %v does not name the file that allows it", name, verb, out, err)
				}
			}
		}
	}
	if text, err := os.ReadFile(said); err == nil {
		t.Errorf("commands ran: %s", text)
	}
}

// Without the node's consent a configuration names only a file of its own, /var/log/cni-*: root can write any other.
func TestDebugFilesNeedConsent(t *testing.T) {
	nstest.Run(t, "mount", "-t", "tmpfs", "tmpfs", "/var/log")
	named := filepath.Join(t.TempDir(), "cron")
	prev := json.RawMessage(`{"cniVersion":"1.1.0"}`)
	for _, file := range []string{named, "/var/log/cni-/../auth.log", "/var/log/cni-x/calls", "/var/log/auth.log"} {
		r := newRunner(t, chain{"debug-file", []string{fmt.Sprintf(`"type":"debug","cniOutput":%q`, file)}, nil})
		a := &attachment{id: "c1", netns: nstest.NewNS(t), prev: prev}
		for verb, fails := range map[string]bool{"ADD": true, "STATUS": true, "CHECK": false, "DEL": false} {
			out, err := r.run(0, verb, a, "")
			if (err != nil) != fails {
				t.Errorf("%s: %s: %v", file, verb, err)
			}
			if said := fmt.Sprint(string(out), err); fails &&
				(!strings.Contains(said, "/etc/cni/fairlead.json") || !strings.Contains(said, file)) {
				t.Errorf("%s: %s: %s does not name the file and what allows it", file, verb, said)
			}
		}
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s is written", file)
		}
	}
	nstest.Run(t, "sh", "-ec", "cd /var/log; echo kept >victim; ln victim cni-hard; ln -s victim cni-soft; ln -s made cni-dangling")
	for _, file := range []string{"cni-calls", "cni-hard", "cni-soft", "cni-dangling"} {
		r := newRunner(t, chain{"debug-file", []string{`"type":"debug","cniOutput":"/var/log/` + file + `"`}, nil})
		r.must("check", r.check(&attachment{id: "c1", netns: nstest.NewNS(t), prev: prev}))
	}
	if _, err := os.Stat("/var/log/cni-calls"); err != nil {
		t.Error(err)
	}
	if kept, err := os.ReadFile("/var/log/victim"); err != nil || string(kept) != "kept\n" {
		t.Errorf("a link was followed: %s, %v", kept, err)
	}
	if _, err := os.Stat("/var/log/made"); err == nil {
		t.Error("a dangling link was followed")
	}
}

// What cannot be written, and a command that fails or hangs, fails no call, and is said.
func TestDebugNeverFails(t *testing.T) {
	allowCommands(t)
	dir := t.TempDir()
	nstest.Run(t, "sh", "-ec", "cd "+dir+"; mkdir is-a-dir; mkfifo pipe; ln -s /proc/self/nothing dangling")
	prev := json.RawMessage(`{"cniVersion":"1.1.0"}`)
	for name, conf := range map[string]string{
		"no directory":     `"cniOutput":"/nowhere/at/all"`,
		"a directory":      `"cniOutput":"` + dir + `/is-a-dir"`,
		"a pipe":           `"cniOutput":"` + dir + `/pipe"`,
		"a dangling link":  `"cniOutput":"` + dir + `/dangling"`,
		"a full disk":      `"cniOutput":"/dev/full"`,
		"no program":       `"command":["/nowhere/prog"],"addHooks":[["nowhere-prog"]],"delHooks":[["nowhere-prog"]]`,
		"a failing one":    `"command":["sh","-c","echo sorry >&2; exit 3"],"addHooks":[["false"]],"checkHooks":[["false"]],"gcHooks":[["false"]],"statusHooks":[["false"]]`,
		"one that hangs":   `"command":["sleep","100000"],"timeout":1`,
		"a hook that does": `"addHooks":[["sh","-c","sleep 100000 & sleep 100000"]],"delHooks":[["sh","-c","trap '' TERM; sleep 100000"]],"timeout":1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRunner(t, chain{"debug-fails", []string{`"type":"debug",` + conf}, nil})
			a := &attachment{id: "c1", netns: nstest.NewNS(t), prev: prev}
			for _, verb := range []string{"STATUS", "ADD", "CHECK", "DEL", "GC"} {
				extra := ""
				if verb == "GC" {
					extra = `,"cni.dev/valid-attachments":[]`
				}
				if _, err := r.run(0, verb, a, extra); err != nil {
					t.Errorf("%s: %v", verb, err)
				}
			}
		})
	}
}

// Hooks run in the container's network namespace with the environment of the call, or not at all; those of GC and
// STATUS, and the command, run on the host.
func TestDebugHooks(t *testing.T) {
	allowCommands(t)
	dir := t.TempDir()
	said := filepath.Join(dir, "said")
	say := func(what string) string {
		return fmt.Sprintf(`[["sh","-c","echo %s $CNI_COMMAND $CNI_IFNAME $(readlink /proc/self/ns/net) >> %s"]]`, what, said)
	}
	r := newRunner(t, chain{"debug-hooks", []string{debugBridge, `"type":"debug","addHooks":` + say("add") + `,"delHooks":` + say("del") + `,"checkHooks":` + say("check") +
		`,"gcHooks":` + say("gc") + `,"statusHooks":` + say("status") + `,"command":["sh","-c","grep -c StdinData >> ` + dir + `/counts; readlink /proc/self/ns/net >> ` + dir + `/where"]`}, nil})
	withoutBridges(t)
	a := &attachment{id: "c1", netns: nstest.NewNS(t)}
	r.must("status", r.status())
	r.must("add", r.add(a))
	r.must("check", r.check(a))
	r.must("gc", r.gc("c1"))
	r.must("del", r.del(a))
	r.must("del without a namespace", r.del(&attachment{id: "c1"}))
	host := strings.TrimSpace(nstest.Run(t, "readlink", "/proc/self/ns/net"))
	cont := strings.TrimSpace(nstest.RunIn(t, a.netns, "readlink", "/proc/self/ns/net"))
	got, _ := os.ReadFile(said)
	var words []string
	for line := range strings.Lines(string(got)) {
		words = append(words, strings.Join(strings.Fields(line), " "))
	}
	want := []string{"status STATUS " + host, "add ADD eth0 " + cont, "check CHECK eth0 " + cont, "gc GC " + host,
		"del DEL eth0 " + cont}
	if fmt.Sprint(words) != fmt.Sprint(want) {
		t.Errorf("is %q\nwant %q", words, want)
	}
	counts, _ := os.ReadFile(dir + "/counts")
	where, _ := os.ReadFile(dir + "/where")
	if string(counts) != strings.Repeat("1\n", 6) || string(where) != strings.Repeat(host+"\n", 6) {
		t.Errorf("the command counted %q at %q", counts, where)
	}
}

// The file has a bound, and many calls at a time lose no record and mix none.
func TestDebugSize(t *testing.T) {
	allowCommands(t)
	file := filepath.Join(t.TempDir(), "calls")
	conf := fmt.Sprintf(`"type":"debug","format":"json","cniOutput":%q,"maxSize":`, file)
	prev := json.RawMessage(`{"cniVersion":"1.1.0"}`)
	netns := nstest.NewNS(t)
	burst := func(size string, n int) {
		r := newRunner(t, chain{"debug-size", []string{conf + size}, nil})
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				if _, err := r.run(0, "CHECK", &attachment{id: fmt.Sprint("c", i), netns: netns, prev: prev}, ""); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	burst("0", 16)
	if n := len(journal(t, file)); n != 16 {
		t.Errorf("%d records, want 16", n)
	}
	st, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	// 16 more do not fit, and there is one change of files: the old one keeps all that it had.
	burst(fmt.Sprint(st.Size()*5/4), 16)
	seen := map[string]int{}
	for _, f := range []string{file, file + ".1"} {
		for _, c := range journal(t, f) {
			seen[c.Env["CNI_CONTAINERID"]]++
		}
		if st2, err := os.Stat(f); err != nil || st2.Size() > st.Size()*5/4+8192 {
			t.Errorf("%s has %v bytes, %v", f, st2.Size(), err)
		}
	}
	for i := range 16 {
		if id := fmt.Sprint("c", i); seen[id] != 2 {
			t.Errorf("%s was written %d times, want 2", id, seen[id])
		}
	}
	burst("4096", 40)
	if entries, err := os.ReadDir(filepath.Dir(file)); err != nil || len(entries) != 2 {
		t.Errorf("%v, %v: want two files", entries, err)
	}
}
