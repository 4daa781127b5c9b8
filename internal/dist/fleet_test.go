package dist

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// One command makes a fleet of a host with systemd and an etcd: the agent runs, confined, and containers get addresses. It
// runs again after a boot.
func TestFleetLive(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	nstest.NeedProgram(t, "etcd", "ip", "ping")
	bin, tree := build(t), t.TempDir()
	run(t, "make", "--no-print-directory", "-C", "../..", "BIN="+bin, "DESTDIR="+tree, "install")
	run(t, "go", "-C", "../../cluster", "build", "-trimpath", "-o", filepath.Join(tree, agentProgram), "./cmd/fairlead-agent")
	const units = "usr/lib/systemd/system"
	run(t, "cp", "../../packaging/systemd/fairlead-agent.service", filepath.Join(tree, units))
	for path, text := range map[string]string{
		"etc/machine-id": strings.Repeat("fa1e", 8) + "\n",
		"etc/fstab":      "",
		units + "/uplink.service": `[Unit]
Before=network-online.target
[Service]
Type=oneshot
ExecStart=/bin/sh -ec 'ip link add uplink type veth peer name wire; ip link set wire up; ip link set uplink up; \
	ip addr add 192.0.2.1/24 dev uplink; ip route add default via 192.0.2.254'
[Install]
WantedBy=multi-user.target
`,
		units + "/store.service": `[Service]
Type=notify
ExecStart=/usr/bin/etcd --data-dir=/var/lib/store --logger=zap --log-level=error
[Install]
WantedBy=multi-user.target
`,
	} {
		write(t, filepath.Join(tree, path), text)
	}
	h.put(tree)
	attaches := func() {
		t.Helper()
		h.until("test -e /etc/cni/net.d/10-pods.conflist && fairlead status pods")
		h.sh(`ip netns add c1
fairlead add pods c1
ip netns exec c1 ping -c 1 -W 5 192.0.2.1
fairlead del pods c1
ip netns del c1
systemctl is-enabled fairlead-agent
systemctl is-active fairlead-agent
fairlead cluster nodes | grep member`)
	}

	h.boot()
	h.sh("systemctl enable --now uplink store")
	h.sh("fairlead cluster init --etcd http://127.0.0.1:2379 --pool main=10.64.0.0/24")
	attaches()
	h.shutdown()
	h.boot()
	attaches()
}
