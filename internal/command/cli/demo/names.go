package demo

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/internal/command/cli/resolv"
)

// resolvable reports whether a container can get a resolv.conf, which is mounted over the host's.
func resolvable() bool {
	_, err := os.Stat(resolv.EtcResolv)
	return err == nil
}

// nameService is the demo's `fairlead dns`.
type nameService struct{ cmd *exec.Cmd }

// serveNames starts the demo's name server and waits until it is ready. It returns nil if no container could use it.
func (d *demo) serveNames() (*nameService, error) {
	if !resolvable() {
		return nil, nil
	}
	n := &nameService{exec.Command("/proc/self/exe", "dns")}
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := n.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	timer := time.AfterFunc(demoTime, func() { n.cmd.Process.Kill() })
	defer timer.Stop()
	var said strings.Builder
	for lines := bufio.NewScanner(io.TeeReader(out, &said)); lines.Scan(); {
		if strings.HasSuffix(lines.Text(), "msg=ready") {
			go io.Copy(io.Discard, out)
			return n, nil
		}
	}
	return nil, fmt.Errorf("the name server ended: %v: %s", n.cmd.Wait(), strings.TrimSpace(said.String()))
}

func (n *nameService) stop() {
	if n != nil {
		n.cmd.Process.Signal(syscall.SIGTERM)
		n.cmd.Wait()
	}
}
