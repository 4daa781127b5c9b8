package dist

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// A container of containerd's that starts with every boot, as an administrator writes it.
const webUnit = `[Unit]
Requires=containerd.service
After=containerd.service
[Service]
ExecStop=/usr/bin/ctr tasks kill -s KILL web
ExecStartPre=-/usr/bin/ctr containers rm web
ExecStart=/usr/bin/ctr run --rm --cni --null-io --runc-binary /srv/run --rootfs /srv/root web /bin/busybox httpd -f -p 80 -h /
[Install]
WantedBy=multi-user.target
`

// A real runtime under systemd, by the unit of its package: after a boot its container gets its network, and the sweep
// has removed what the one of the last boot had before the runtime started.
func TestRuntimeLive(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	nstest.NeedProgram(t, "containerd", "ctr", "crun", "busybox", "dbus-daemon")
	bin, tree := build(t), t.TempDir()
	run(t, "make", "--no-print-directory", "-C", "../..", "BIN="+bin, "DESTDIR="+tree, "install")
	unit, err := os.ReadFile("/lib/systemd/system/containerd.service")
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		"etc/machine-id": strings.Repeat("fa1e", 8) + "\n",
		"etc/fstab":      "",
		"usr/lib/systemd/system/containerd.service": string(unit),
		"usr/lib/systemd/system/web.service":        webUnit,
		"etc/containerd/config.toml":                "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[debug]\nlevel = \"warn\"\n",
		"srv/run":                                   "#!/bin/sh\nexec crun --cgroup-manager=disabled \"$@\"\n",
		"srv/root/works":                            "works\n",
		"etc/cni/net.d/10-lan.conflist": `{"cniVersion": "1.0.0", "name": "lan", "plugins": [
			{"type": "bridge", "bridge": "lan0", "isDefaultGateway": true, "ipMasq": true,
			 "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}, {"type": "firewall"}]}`,
	} {
		write(t, filepath.Join(tree, path), text)
	}
	run(t, "chmod", "755", filepath.Join(tree, "srv/run"))
	run(t, "sh", "-euc", `mkdir -p "$0/bin"; cp "$(command -v busybox)" "$0/bin/busybox"`, filepath.Join(tree, "srv/root"))
	h.put(tree)

	const answers = "timeout 2 busybox wget -q -O- http://$(ls /var/lib/cni/networks/lan | grep ^10)/works | grep works"
	h.boot()
	h.sh("systemctl enable fairlead-gc fairlead-repair-watch cni-dhcp.socket")
	h.sh("systemctl enable --now containerd web")
	h.until(answers)
	h.shutdown()
	// A container whose DEL never came.
	write(t, h.path("var/lib/cni/networks/lan/10.1.0.77"), "dead\r\neth0")

	h.boot()
	h.until("[ $(ls /var/lib/cni/networks/lan | grep -c ^10) = 1 ]")
	h.until(answers)
	at := func(unit, property string) int {
		n, err := strconv.Atoi(h.sh("systemctl show -P " + property + "Monotonic " + unit))
		if err != nil || n == 0 {
			t.Errorf("%s of %s: %d, %v", property, unit, n, err)
		}
		return n
	}
	if swept, started := at("fairlead-gc", "ExecMainExitTimestamp"), at("containerd", "ExecMainStartTimestamp"); swept > started {
		t.Errorf("the sweep ended %d µs after the runtime started", swept-started)
	}
	if got := h.sh("fairlead check -o json >/dev/null && fairlead ls"); strings.Count(got, "alive") != 1 {
		t.Errorf("attached: %s", got)
	}
	h.sh("systemctl restart containerd && systemctl is-active containerd fairlead-gc")
	h.until(answers)
	h.shutdown()
}
