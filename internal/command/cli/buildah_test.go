package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/plugin"
)

// A step of a build is on a network that our plugins alone make, in a directory that `fairlead install` filled, and
// leaves nothing of itself there. The script is a host of its own, without cgroups; the image has one file.
func TestBuildah(t *testing.T) {
	nstest.NeedRoot(t, "buildah with CNI plugins")
	nstest.NeedProgram(t, "buildah", "crun", "busybox", "unshare")
	bin, dir := program(t), t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "from"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range plugin.All() {
		if err := os.Link(bin, filepath.Join(dir, "from", p.Name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("unshare", "--net", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc", "sh",
		"-eu", "-c", buildahScript)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", "FAIRLEAD="+bin, "D="+dir,
		"CONTAINERS_CONF="+dir+"/containers.conf", "CONTAINERS_STORAGE_CONF="+dir+"/storage.conf")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"eth0    inet 10.5.0.2/24", "left:\n", "links:\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("want %q in:\n%s", want, out)
		}
	}
}

const buildahScript = `
mount -t tmpfs cgroup /sys/fs/cgroup
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t tmpfs cni /var/lib/cni
mkdir -p /run/netns /run/lock /run/cni net.d root/bin
cp "$(command -v busybox)" root/bin/busybox
ip link set lo up
cat >storage.conf <<END
[storage]
driver = "vfs"
graphroot = "$D/store"
runroot = "$D/state"
END
cat >containers.conf <<END
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[network]
network_backend = "cni"
cni_plugin_dirs = ["$D/cni"]
network_config_dir = "$D/net.d"
END
cat >net.d/lan.conflist <<END
{"cniVersion": "1.0.0", "name": "lan", "plugins": [
  {"type": "bridge", "bridge": "lan0", "isGateway": true, "ipMasq": true, "ipam": {"type": "host-local", "subnet": "10.5.0.0/24"}},
  {"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "firewall"}, {"type": "tuning"}]}
END
$FAIRLEAD install --from from --dir cni
c=$(buildah from scratch)
buildah copy $c root /
timeout -k 1 600 buildah run --isolation oci --runtime crun --runtime-flag cgroup-manager=disabled --network lan $c /bin/busybox ip -o addr
echo left: $(ls /var/lib/cni/results /var/lib/cni/networks/lan 2>/dev/null | grep -E '^(lan|10)')
echo links: $(ip -o link show type veth)
`
