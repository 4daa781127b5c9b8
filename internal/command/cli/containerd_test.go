package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// containerd with our directory as its only one: `ctr run --cni`, and a pod by CRI, whose port is published, stopped
// twice and removed. A list is written out, and as one entry of the plugin chain. Nothing of either is left.
//
// The script is a host of its own, without cgroups. The image has one file.
func TestContainerd(t *testing.T) {
	nstest.NeedRoot(t, "containerd")
	nstest.NeedProgram(t, "containerd", "ctr", "crun", "busybox", "unshare")
	bin := program(t)
	for name, list := range clientLists("10.5.0.0/24") {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "lan.conflist"), []byte(list), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(nstest.Context(t))
			defer cancel()
			cmd := exec.CommandContext(ctx, bin, "host", "--", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
				"sh", "-eu", "-c", containerdScript)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", "FAIRLEAD="+bin, "D="+dir,
				"ARCH="+runtime.GOARCH)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			fail := func(why ...any) {
				t.Helper()
				cancel()
				cmd.Wait()
				log, _ := os.ReadFile(filepath.Join(dir, "containerd.log"))
				t.Fatalf("%s%s\n%s", fmt.Sprintln(why...), stderr.Bytes(), log[max(0, len(log)-6000):])
			}
			lines := bufio.NewScanner(out)
			until := func(mark string) (text string) {
				for lines.Scan() {
					if lines.Text() == mark {
						return text
					}
					text += lines.Text() + "\n"
				}
				fail("the script ends before it says ", mark, ":\n", text)
				return ""
			}
			if got := until("ready"); !strings.Contains(got, "eth0    inet 10.5.0.2/24") || !strings.Contains(got, "left:\n") {
				t.Errorf("ctr run --cni: %s", got)
			}
			cri := criClient(filepath.Join(dir, "sock"))
			pod := field(1, field(1, "web"), field(2, "uid"), field(3, "default"))
			port := field(5, "\x10\x50", "\x18\x90\x3f") // containerPort 80, hostPort 8080
			id, err := cri(ctx, "RunPodSandbox", field(1, pod, field(2, "web"), port, field(8)))
			if err != nil {
				fail(err)
			}
			fmt.Fprintln(in, "runs")
			if got := until("asked"); !strings.Contains(got, "port:\nworks") || !strings.Contains(got, "default/web") {
				t.Errorf("the pod: %s", got)
			}
			// What RunPodSandbox answers with is the ID in field 1, which is what these ask with.
			for _, method := range []string{"StopPodSandbox", "StopPodSandbox", "RemovePodSandbox"} {
				if _, err := cri(ctx, method, id); err != nil {
					fail(err)
				}
			}
			fmt.Fprintln(in, "removed")
			if got := until("done"); got != "left:\nlinks:\nports:\n" {
				t.Errorf("of the pod is left: %s", got)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v\n%s", err, stderr.Bytes())
			}
		})
	}
}

// clientLists are the lists that clients attach by: bridge, portmap and firewall, written out and in one process.
func clientLists(subnet string) map[string]string {
	const head = `{"cniVersion": "1.0.0", "name": "lan", "plugins": [`
	inner := `{"type": "bridge", "bridge": "lan0", "isDefaultGateway": true, "ipMasq": true,
			"ipam": {"type": "host-local", "subnet": "` + subnet + `"}},
		{"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "firewall"}]}`
	return map[string]string{"list": head + inner,
		"chain": head + `{"type": "chain", "capabilities": {"portMappings": true}, "plugins": [` + inner + `]}`}
}

// field is a field of a message of Protocol Buffers: a string, or a message of fields.
func field(number byte, parts ...string) string {
	content := strings.Join(parts, "")
	return string(binary.AppendUvarint([]byte{number<<3 | 2}, uint64(len(content)))) + content
}

// criClient asks the runtime service of CRI. gRPC is a POST by HTTP/2, with the message after five bytes; its own
// status is in the trailer.
func criClient(socket string) func(ctx context.Context, method string, request string) (string, error) {
	tr := &http.Transport{Protocols: new(http.Protocols),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}
	tr.Protocols.SetUnencryptedHTTP2(true)
	return func(ctx context.Context, method string, request string) (string, error) {
		body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request))), request...)
		r, err := http.NewRequestWithContext(ctx, "POST", "http://containerd/runtime.v1.RuntimeService/"+method,
			bytes.NewReader(body))
		if err != nil {
			return "", err
		}
		r.Header.Set("Content-Type", "application/grpc")
		r.Header.Set("TE", "trailers")
		answer, err := tr.RoundTrip(r)
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		if err != nil {
			return "", err
		}
		status, said := answer.Trailer.Get("Grpc-Status"), answer.Trailer.Get("Grpc-Message")
		if status == "" { // an answer of a header alone
			status, said = answer.Header.Get("Grpc-Status"), answer.Header.Get("Grpc-Message")
		}
		if status != "0" || len(b) < 5 {
			return "", fmt.Errorf("%s: status %s: %s", method, status, said)
		}
		return string(b[5:]), nil
	}
}

const containerdScript = `
mount -t tmpfs cgroup /sys/fs/cgroup
[ ! -d /usr/lib/cni ] || mount -t tmpfs cni /usr/lib/cni
mkdir -p /opt/cni/bin /etc/cni/net.d root/bin
cp "$(command -v busybox)" root/bin/busybox
echo works >root/works
for plugin in $($FAIRLEAD plugins); do ln -s $FAIRLEAD /opt/cni/bin/$plugin; done
cp lan.conflist /etc/cni/net.d/
ip netns add wire
ip link add uplink type veth peer name eth0 netns wire
ip addr add 10.9.0.254/24 dev uplink
ip link set uplink up
ip -n wire addr add 10.9.0.1/24 dev eth0
ip -n wire link set eth0 up

printf '#!/bin/sh\nexec crun --cgroup-manager=disabled "$@"\n' >run
chmod 755 run
tar -C root -cf layer.tar .
cat >config.json <<END
{"architecture": "$ARCH", "os": "linux", "config": {"Entrypoint": ["/bin/busybox", "httpd", "-f", "-p", "80", "-h", "/"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$(sha256sum layer.tar | cut -d' ' -f1)"]}}
END
echo '[{"Config": "config.json", "RepoTags": ["local/web:1"], "Layers": ["layer.tar"]}]' >manifest.json
tar -cf web.tar manifest.json config.json layer.tar
cat >containerd.toml <<END
version = 2
root = "$D/containerd"
state = "/run/containerd"
[grpc]
address = "$D/sock"
[plugins."io.containerd.internal.v1.opt"]
path = "$D/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "local/web:1"
restrict_oom_score_adj = true
disable_cgroup = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "$D/run"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/opt/cni/bin"
conf_dir = "/etc/cni/net.d"
END
containerd -c containerd.toml >containerd.log 2>&1 &
export CONTAINERD_ADDRESS=$D/sock
timeout 600 sh -c 'until ctr version >/dev/null 2>&1; do :; done'
ctr -n k8s.io images import --snapshotter native web.tar >&2
left() {
	echo left: $(ls -A /var/lib/cni/results) $(ls -A /var/lib/cni/networks/lan | grep '^10[.]')
}
timeout -k 1 600 ctr run --rm --cni --null-io --runc-binary $D/run --rootfs $D/root one /bin/busybox sh -c 'busybox ip -o addr >/out'
cat root/out
left
echo ready
read go
echo port:
timeout 600 sh -c "until timeout 2 ip netns exec wire busybox wget -q -O- http://10.9.0.254:8080/works; do :; done" || true
$FAIRLEAD ls
echo asked
read go
left
echo links: $(ip -o link show type veth | grep -v uplink)
echo ports: $(nft list table inet fairlead | grep 8080)
echo done
`
