package plugin_test

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// dhcpBridge makes a bridge with a server on it, and the daemon.
func dhcpBridge(t *testing.T) {
	server := nstest.NewNS(t)
	nstest.Run(t, "sh", "-ec",
		"ip link add br-dhcp type bridge; sysctl -qw net.ipv6.conf.br-dhcp.disable_ipv6=1; ip link set br-dhcp up; ip link add srv0 type veth peer name wire netns "+
			filepath.Base(server)+"; sysctl -qw net.ipv6.conf.srv0.disable_ipv6=1; ip link set srv0 master br-dhcp up")
	t.Cleanup(func() { nstest.Run(t, "ip", "link", "del", "srv0") })
	nstest.RunIn(t, server, "sh", "-ec", "ip link set lo up; ip link set wire up; ip addr add 10.77.0.1/24 dev wire")
	dhcpServer(t, server, "wire", "10.77.0")
}

// dhcpUplink gives the host a network card whose LAN has a server, and the daemon.
func dhcpUplink(t *testing.T) {
	uplink("macvlan")(t)
	dhcpServer(t, strings.TrimSpace(nstest.Run(t, "sh", "-c",
		"ls -t /run/netns/* | while read -r n; do nsenter --net=$n ip link show wire >/dev/null 2>&1 && echo $n && break; done")), "wire", "10.77.0")
}

// dhcpServer starts a server of addresses prefix.10 to prefix.90 on a link of a namespace, and the daemon.
func dhcpServer(t *testing.T, ns, link, prefix string) {
	nstest.NeedProgram(t, "dnsmasq")
	background(t, "started", exec.Command("nsenter", "--net="+ns, "dnsmasq", "--keep-in-foreground", "--log-facility=-",
		"--conf-file=/dev/null", "--user=root", "--pid-file=",
		"--port=0", "--interface="+link, "--bind-interfaces", "--no-ping", "--leasefile-ro", "--dhcp-range="+prefix+".10,"+
			prefix+".90,255.255.255.0,10m", "--dhcp-option=option:router,"+prefix+".1"))
	cmd := exec.Command("/proc/self/exe", "daemon")
	cmd.Args[0] = "dhcp"
	background(t, "msg=ready", cmd)
}

// background runs a program for as long as the test does, and waits until it has said those words.
func background(t *testing.T, words string, cmd *exec.Cmd) {
	t.Helper()
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // the signal comes when the thread ends that made the child
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			w.CloseWithError(fmt.Errorf("it ended: %v", cmd.Wait()))
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
	})
	said := make(chan error, 1)
	go func() {
		lines := bufio.NewReader(r)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				said <- err
				return
			}
			if strings.Contains(line, words) {
				break
			}
		}
		said <- nil
		io.Copy(io.Discard, lines)
	}()
	select {
	case err := <-said:
		if err != nil {
			t.Fatalf("%s: %v", cmd.Args, err)
		}
	case <-nstest.Context(t).Done():
		t.Fatalf("%s has not said %q", cmd.Args, words)
	}
}

// giveBack has the daemon give an attachment's lease back behind everybody's back.
func giveBack(t *testing.T, a *attachment) {
	ctx := nstest.Context(t)
	conf := fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":%q,"type":"x","ipam":{"type":"dhcp"}}`, a.network)
	if err := rpc.Call(ctx, rpc.DefaultSocket, rpc.Release, rpc.Args{ContainerID: a.id, IfName: "eth0", StdinData: conf},
		&struct{}{}); err != nil {
		t.Fatal(err)
	}
}
