package main

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// serveNames starts our name server, the program beside the directory of our plugins, for as long as the host is there.
// The worker's first thread, which starts it, ends with the host.
func (h host) serveNames() error {
	cmd := exec.Command(filepath.Join(filepath.Dir(h.dir), "fairlead"), "dns")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var said strings.Builder
	for lines := bufio.NewScanner(io.TeeReader(out, &said)); lines.Scan(); {
		if strings.HasSuffix(lines.Text(), "msg=ready") {
			go io.Copy(io.Discard, out)
			return nil
		}
	}
	return fmt.Errorf("fairlead dns ended: %v: %s", cmd.Wait(), said.String())
}
