package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/spec"
)

// podman 4 is of before CNI 1.1.0, as containerd 1.6 is: it fails where a plugin answers in that version. Every list in
// docs/examples is one that it takes, loads, and puts a container on. Where this kernel has no links of the kind, it
// comes as far as the kernel's own words. The list of one chain publishes a port as well.
//
// The script is a host of its own: the uplinks that the examples name, a DHCP server on one of them, and nothing of the
// machine's podman. The container has a root directory instead of an image, so there is no registry, and no cgroup.
//
// clause: K9 V10
func TestPodmanExamples(t *testing.T) {
	nstest.NeedRoot(t, "podman with CNI plugins")
	nstest.NeedProgram(t, "podman", "crun", "dnsmasq", "busybox", "nft", "unshare")
	bin, dir := program(t), t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "net.d"), os.DirFS("../../../docs/examples")); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lists, problems := spec.LoadDir("../../../docs/examples")
	if len(lists) < 20 || len(problems) > 0 {
		t.Errorf("%d lists, %v", len(lists), problems)
	}
	// podman takes half a second of a processor for each
	run := nstest.Some(t, 4, lists)
	var names strings.Builder
	for _, l := range run {
		fmt.Fprintln(&names, l.Name)
	}
	write("names", names.String())
	write("net.d/newest.conflist", `{"cniVersion":"1.1.0","name":"newest","plugins":[{"type":"bridge","bridge":"newest0"}]}`)
	write("storage.conf", "[storage]\ndriver = \"vfs\"\ngraphroot = \""+dir+"/store\"\nrunroot = \""+dir+"/state\"\n")
	write("containers.conf", `
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "crun"
tmp_dir = "`+dir+`/tmp"
[containers]
log_driver = "k8s-file"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[network]
network_backend = "cni"
cni_plugin_dirs = ["`+dir+`/cni"]
network_config_dir = "`+dir+`/net.d"
`)
	if err := os.Mkdir(filepath.Join(dir, "cni"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range plugin.All() {
		if err := os.Symlink(bin, filepath.Join(dir, "cni", p.Name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("unshare", "--net", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc", "sh",
		"-euc", podmanScript)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", "FAIRLEAD="+bin,
		"CONTAINERS_CONF="+dir+"/containers.conf", "CONTAINERS_STORAGE_CONF="+dir+"/storage.conf")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	said := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, "out", name))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	if got := said("newest"); !strings.Contains(got, `unsupported CNI result version "1.1.0"`) {
		t.Errorf("a list of 1.1.0 alone is the one that fails, and docs/troubleshooting.md has the message: %s", got)
	}
	if got := said("left"); got != "" {
		t.Errorf("left of containers that are gone: %s", got)
	}
	if got := said("published"); got != "answered\n" {
		t.Errorf("a port that a chain publishes: %s\n%s", got, said("publishing"))
	}
	for _, name := range []string{"pod-web.apps.internal", "www.apps.internal"} {
		if got := said("resolving"); !regexp.MustCompile("Name:\\s+" + name + "\nAddress: 10\\.95\\.0\\.").MatchString(got) {
			t.Errorf("a container does not find %s:\n%s%s", name, got, said("resolved"))
		}
	}
	if got := said("listed"); !regexp.MustCompile(`(?m)^apps +[0-9a-f]{12} +pod-web +eth0 `).MatchString(got) {
		t.Errorf("ls does not name podman's container: %s", got)
	}
	if got := said("inspected"); !regexp.MustCompile(`^pod-web, container [0-9a-f]{12}, .*, alive\n`).MatchString(got) ||
		!strings.Contains(got, "name servers ") {
		t.Errorf("inspect of podman's container: %s", got)
	}
	for _, l := range run {
		t.Run(l.Name, func(t *testing.T) {
			if l.CNIVersion != spec.V100 || !slices.Equal(l.CNIVersions, []spec.Version{spec.V100, spec.V110}) {
				t.Errorf("cniVersion %s, cniVersions %s: podman 4 and containerd 1.6 want the first to be 1.0.0", l.CNIVersion,
					l.CNIVersions)
			}
			got := said(l.Name)
			lacks := slices.ContainsFunc(strings.Fields(said("lacking")), func(kind string) bool {
				return slices.ContainsFunc(l.Plugins, func(p *spec.Conf) bool { return p.Type == kind })
			})
			switch {
			case l.Plugins[0].Type == "ovs": // which TestOVS attaches by, with daemons of its own
				if !strings.Contains(got, "start ovsdb-server") {
					t.Errorf("%s\nwant the plugin's words, without Open vSwitch", got)
				}
			case lacks && !strings.Contains(got, "operation not supported"):
				t.Errorf("%s\nwant the kernel's words, which lacks the kind", got)
			case lacks:
				t.Logf("loaded, and as far as this kernel goes: %s", got)
			case !strings.Contains(got, "\nworks") || l.Plugins[0].Type != "loopback" && !strings.Contains(got, ": eth0"):
				t.Error(got)
			}
		})
	}
}

// The host-device is another example's master, so it is taken when that one is done.
const podmanScript = `
mount -t tmpfs cgroup /sys/fs/cgroup
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t tmpfs cni /var/lib/cni
mkdir -p /run/netns /run/lock /run/cni /run/fairlead/cluster out root/bin root/etc root/proc root/sys root/dev root/tmp root/run
cp "$(command -v busybox)" root/bin/busybox
printf '{"cluster":"c","node":"n","boot":"%s","ranges":["10.244.1.0/24"]}' $(cat /proc/sys/kernel/random/boot_id) >/run/fairlead/cluster/pods.json
ip link set lo up
ip netns add wire
for nic in ens3 ens4; do
	ip link add $nic type veth peer name $nic netns wire
	ip link set $nic up
	ip -n wire link set $nic up
done
ip -n wire addr add 10.9.0.1/24 dev ens3
for kind in dummy ipvlan vlan vrf; do
	case $kind in vlan) more='id 5' ;; vrf) more='table 5' ;; *) more= ;; esac
	case $kind in vlan|ipvlan) on='link ens3' ;; *) on= ;; esac
	ip link add $on name lack0 type $kind $more 2>/dev/null && ip link del lack0 || echo $kind
done > out/lacking
ip netns exec wire dnsmasq --conf-file=/dev/null --user=root --pid-file= --port=0 --interface=ens3 --bind-interfaces --no-ping --leasefile-ro --dhcp-range=10.9.0.10,10.9.0.50,255.255.255.0,10m
$FAIRLEAD dhcp daemon 2>daemon.log &
$FAIRLEAD dns 2>dns.log &
timeout 600 sh -c 'until test -S /run/cni/fairlead/dns.sock; do :; done'
timeout 600 sh -c 'until $FAIRLEAD dhcp ls >/dev/null 2>&1; do :; done'
cat > one <<'END'
timeout -k 1 600 podman run --rm --cgroups=disabled --network $1 --rootfs $PWD/root /bin/busybox sh -c 'busybox ip -o link; echo works' >out/$1 2>&1 || true
END
podman network ls >/dev/null # it makes its state once
grep -vx card names | xargs -P 4 -n 1 sh one
sh one newest
! grep -qx card names || sh one card
published() {
	timeout -k 1 600 podman run --rm --cgroups=disabled --network chained -p 8085:80 --rootfs $PWD/root \
		/bin/busybox nc -l -p 80 -e /bin/busybox echo answered
}
published >out/publishing 2>&1 &
chained=$!
timeout 600 sh -c 'until timeout 2 busybox nc 127.0.0.1 8085 </dev/null | grep answered; do :; done' >out/published || true
wait $chained || true
resolving() {
	timeout -k 1 600 podman run --rm --cgroups=disabled --network apps "$@"
}
resolving --name pod-web --network-alias www --rootfs $PWD/root /bin/busybox sh -c 'echo ready; until [ -e /tmp/stop ]; do busybox sleep 0.1; done' >out/resolved 2>&1 &
web=$!
timeout 600 sh -c 'until grep -q ready out/resolved; do :; done' || true
resolving --rootfs $PWD/root /bin/busybox sh -c 'cat /etc/resolv.conf; for n in pod-web www pod-web.apps.internal; do echo "== $n"; busybox nslookup $n; done' >out/resolving 2>&1 || true
$FAIRLEAD ls --container pod-web >out/listed 2>&1 || true
$FAIRLEAD inspect pod-web >out/inspected 2>&1 || true
touch root/tmp/stop
wait $web || true
ls /var/lib/cni/results > out/left
nft list table inet fairlead | grep 8085 >> out/left || true
`
