package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/kernel/record"
)

// startLimit limits how long a daemon may take until it listens.
const startLimit = 10 * time.Second

// Start starts this program as the daemon if none listens on the socket, and waits until it listens. If several
// processes call Start at the same time, one daemon starts. The daemon continues when the caller ends, and writes its
// log to a file.
func Start(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	unlock, err := record.Lock(ctx, "dhcp-daemon")
	if err != nil {
		return err
	}
	defer unlock()
	if conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket); err == nil { // another process was faster
		return conn.Close()
	}
	logName := filepath.Join(record.RunDir, "dhcp-daemon.log")
	log, err := os.OpenFile(logName, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	// An abstract socket, as systemd listens on: the daemon says when it is ready.
	ready, err := net.ListenUnixgram("unixgram",
		&net.UnixAddr{Net: "unixgram", Name: fmt.Sprintf("@fairlead-dhcp-%d", os.Getpid())})
	if err != nil {
		return err
	}
	defer ready.Close()
	defer context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Unix(1, 0)) })()
	cmd := exec.Command("/proc/self/exe", "daemon", "-socketpath", socket)
	cmd.Args[0] = "dhcp"
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "NOTIFY_SOCKET=" + ready.LocalAddr().String()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the DHCP daemon: %w", err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		ready.SetReadDeadline(time.Unix(1, 0))
	}()
	if _, err := ready.Read(make([]byte, 64)); err == nil {
		return nil
	}
	select {
	case err = <-ended:
		if err == nil {
			err = errors.New("the daemon ended")
		}
	default:
		err = ctx.Err()
	}
	return fmt.Errorf("start the DHCP daemon: %w (its log is %s)", err, logName)
}
