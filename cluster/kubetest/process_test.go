//go:build kube

package kubetest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// A process is a program that runs until the end of the test, and says what it does.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	said chan string // its lines, one after the other
	end  chan error
}

// start starts a program. Its lines go to said until somebody waits for one of them, and to the test's log.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(name, args...), said: make(chan string, 1<<16), end: make(chan error, 1)}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = in, in
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			p.said <- lines.Text()
		}
		io.Copy(io.Discard, out)
		close(p.said)
		p.end <- p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	return p
}

// wait waits for the end of a program whose lines all were read.
func (p *process) wait() error {
	err := <-p.end
	p.end = nil
	return err
}

// kill ends the program and waits for its end.
func (p *process) kill() {
	if p.end != nil {
		p.cmd.Process.Kill()
		for range p.said {
		}
		<-p.end
		p.end = nil
	}
}

// log writes what the program says to the test's log.
func (p *process) log() {
	for line := range p.said {
		fmt.Fprintln(p.t.Output(), line)
	}
}

// says waits until the program writes a line with text.
func (p *process) says(text string) {
	p.t.Helper()
	var before []string
	for {
		select {
		case line, ok := <-p.said:
			if strings.Contains(line, text) {
				return
			}
			if before = append(before, line); !ok {
				p.t.Fatalf("%v ended without saying %q:\n%s", p.cmd, text, strings.Join(before, "\n"))
			}
		case <-time.After(nstest.Patience(p.t)):
			p.t.Fatalf("%v did not say %q:\n%s", p.cmd, text, strings.Join(before, "\n"))
		}
	}
}
