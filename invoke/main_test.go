package invoke_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/invoke"
)

// TestMain lets this binary be every plugin of the tests: plugin makes a link to it, and the name of the
// link says how it behaves.
func TestMain(m *testing.M) {
	if behave, ok := behaviours()[filepath.Base(os.Args[0])]; ok {
		os.Exit(behave())
	}
	os.Exit(m.Run())
}

func behaviours() map[string]func() int {
	say := func(stdout, stderr string, status int) func() int {
		return func() int {
			fmt.Print(stdout)
			fmt.Fprint(os.Stderr, stderr)
			return status
		}
	}
	die := func(s syscall.Signal) func() int {
		return func() int {
			fmt.Fprintln(os.Stderr, "about to die")
			_ = syscall.Kill(os.Getpid(), s)
			select {}
		}
	}
	return map[string]func() int{
		"fine":     say(`{"cniVersion":"1.1.0"}`, "a log line\n", 0),
		"refuses":  say(`{"cniVersion":"1.0.0","code":11,"msg":"no address left","details":"10.1.0.0/24"}`, "looked everywhere\n", 1),
		"twice":    say(`{"cniVersion":"1.0.0","ips":[]}{"code":8,"msg":"the namespace is the host's"}`, "", 1),
		"liar":     say(`{"cniVersion":"1.1.0","ips":[]}`, "", 1),
		"garbage":  say("Segmentation fault, nearly\n", "", 0),
		"mute":     say("", "", 0),
		"silent":   say("", "", 3),
		"talker":   say("", "panic: something\n", 2),
		"text":     say("usage: text FILE\n", "", 64),
		"ancient":  say(`{"code":4,"msg":"unknown CNI_COMMAND: VERSION"}`, "", 1),
		"old":      say(`{"cniVersion":"0.2.0"}`, "", 0),
		"modern":   say(`{"cniVersion":"1.1.0","supportedVersions":["0.4.0","1.0.0","1.1.0"]}`, "", 0),
		"vague":    say(`{"cniVersion":"1.0.0"}`, "", 0),
		"killed":   die(syscall.SIGKILL),
		"crashed":  die(syscall.SIGTERM),
		"environ":  environ,
		"chatty":   chatty,
		"endless":  endless,
		"orderly":  func() int { return wait(true) },
		"stubborn": func() int { return wait(false) },
		"family":   family,
		"leaver":   leaver,
		"runtime": func() int {
			_, err := invoke.Run(context.Background(), filepath.Join(filepath.Dir(os.Args[0]), "orderly"),
				invoke.Call{Stderr: os.Stderr})
			fmt.Fprintln(os.Stderr, err)
			return 1
		},
		"group": func() int {
			fmt.Printf(`{"pid":%d,"group":%d}`, os.Getpid(), syscall.Getpgrp())
			return 0
		},
	}
}

// environ answers with its environment and stdin.
func environ() int {
	stdin, _ := io.ReadAll(os.Stdin)
	var b strings.Builder
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, "CNI_") || strings.HasPrefix(e, "TRACE") {
			fmt.Fprintln(&b, e)
		}
	}
	fmt.Printf("%q", b.String()+string(stdin))
	return 0
}

func chatty() int {
	line := bytes.Repeat([]byte("x"), 1<<10)
	for range 4 << 10 {
		os.Stderr.Write(line)
	}
	fmt.Print(`{"code":100,"msg":"said all"}`)
	return 1
}

func endless() int {
	line := bytes.Repeat([]byte(" "), 1<<20)
	for range 17 {
		os.Stdout.Write(line)
	}
	return 0
}

// wait says that it is ready and waits for SIGTERM; only an orderly one obeys. While it lives it holds
// the pipe that ALIVE names open.
func wait(orderly bool) int {
	if name := os.Getenv("ALIVE"); name != "" {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return 9
		}
		defer f.Close()
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	fmt.Fprintln(os.Stderr, "ready")
	<-term
	if !orderly {
		fmt.Fprintln(os.Stderr, "I will not")
		select {}
	}
	fmt.Print(`{"code":101,"msg":"cleaned up"}`)
	return 1
}

// family runs a stubborn delegate, as a plugin runs its IPAM plugin, and obeys SIGTERM itself.
func family() int {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	child := exec.Command(filepath.Join(filepath.Dir(os.Args[0]), "stubborn"))
	child.Stderr = os.Stderr
	if err := child.Start(); err != nil {
		return 9
	}
	<-term
	return 1
}

// leaver succeeds and leaves a daemon behind, which keeps its stdout and stderr open.
func leaver() int {
	child := exec.Command(filepath.Join(filepath.Dir(os.Args[0]), "stubborn"))
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		return 9
	}
	fmt.Print(`{"cniVersion":"1.1.0"}`)
	return 0
}

// plugin makes a plugin directory with the plugins of these names.
func plugin(t testing.TB, names ...string) (dir string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for _, name := range names {
		if behaviours()[name] == nil {
			t.Fatalf("no behaviour %q", name)
		}
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
