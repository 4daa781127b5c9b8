package kube

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
)

// bundle writes what an OCI runtime needs to run a container of the pod as its manifest says: kubelet's runtimes make the
// same of it.
func bundle(t *testing.T, dir string, r rendered, c core.Container) {
	t.Helper()
	var caps []string
	for _, name := range c.SecurityContext.Capabilities.Add { // ALL is dropped, see confined
		caps = append(caps, "CAP_"+string(name))
	}
	pod := r.daemons.Spec.Template.Spec
	mount := func(to, kind, from string, options ...string) map[string]any {
		return map[string]any{"destination": to, "type": kind, "source": from, "options": options}
	}
	mounts := []map[string]any{
		mount("/proc", "proc", "proc", "nosuid", "noexec", "nodev"),
		mount("/dev", "tmpfs", "tmpfs", "nosuid", "mode=755", "size=64k"),
		mount("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", "ro"),
	}
	propagation := "private" // as containerd has it
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			t.Fatalf("%s: no volume %s", c.Name, m.Name)
		}
		options := []string{"rbind", "rprivate", "rw"}
		if m.MountPropagation != nil && *m.MountPropagation == core.MountPropagationHostToContainer {
			options[1], propagation = "rslave", "rslave"
		}
		if m.ReadOnly {
			options[2] = "ro"
		}
		from := filepath.Join(filepath.Dir(dir), m.Name) // what kubelet writes for the volume
		if h := pod.Volumes[i].HostPath; h != nil {
			from = h.Path
		}
		mounts = append(mounts, mount(m.MountPath, "bind", from, options...))
	}
	env, args := environment(t, r, c)
	namespaces := []map[string]string{{"type": "mount"}, {"type": "ipc"}}
	if !pod.HostPID {
		namespaces = append(namespaces, map[string]string{"type": "pid"})
	}
	if !pod.HostNetwork {
		namespaces = append(namespaces, map[string]string{"type": "network"})
	}
	doc, err := json.Marshal(map[string]any{
		"ociVersion": "1.0.2",
		"root":       map[string]any{"path": "rootfs", "readonly": *c.SecurityContext.ReadOnlyRootFilesystem},
		"mounts":     mounts,
		"process": map[string]any{
			"cwd": "/", "env": env, "args": args,
			"user":            map[string]any{"uid": *pod.SecurityContext.RunAsUser, "gid": *pod.SecurityContext.RunAsGroup},
			"noNewPrivileges": !*c.SecurityContext.AllowPrivilegeEscalation,
			"capabilities":    map[string]any{"bounding": caps, "effective": caps, "permitted": caps},
		},
		"linux": map[string]any{
			"namespaces": namespaces, "rootfsPropagation": propagation,
			"maskedPaths": []string{"/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
				"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"},
			"readonlyPaths": []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), doc, 0o600); err != nil {
		t.Fatal(err)
	}
}

// environment is the environment and the command of a container, as kubelet makes them of its manifest on node n1.
func environment(t *testing.T, r rendered, c core.Container) (env, args []string) {
	env = []string{"PATH=/usr/bin"}
	var values []string
	set := func(name, value string) {
		env = append(env, name+"="+value)
		values = append(values, "$("+name+")", value)
	}
	for _, from := range c.EnvFrom {
		for name, value := range r.config(t, from.ConfigMapRef.Name).Data {
			set(name, value)
		}
	}
	for _, e := range c.Env {
		if f := e.ValueFrom.FieldRef; f == nil || f.FieldPath != "spec.nodeName" {
			t.Fatalf("%s: %v", c.Name, e)
		}
		set(e.Name, "n1")
	}
	args = []string{"/usr/bin/fairlead"}
	if len(c.Command) > 0 {
		args = slices.Clone(c.Command)
		set("KUBERNETES_SERVICE_HOST", "127.0.0.1")
		set("KUBERNETES_SERVICE_PORT", "6443")
	}
	for _, arg := range c.Args {
		args = append(args, strings.NewReplacer(values...).Replace(arg))
	}
	return env, args
}

// On a throw-away host, an OCI runtime runs the containers with the image, mounts and capabilities of the manifests:
// plugins are installed, rules that were flushed come back, and what a dead pod left goes. Without any one of the listed
// capabilities, and without most of the mounts, the same fails. testdata/node.sh is the host.
func TestConfined(t *testing.T) {
	dir := newImage(t, "build")
	r := render(t, "network", "sweep")
	writeConfig(t, filepath.Join(dir, "network"), r.configs[0])
	for _, name := range []string{"install", "sweep", "repair"} {
		bundles(t, dir, r, name)
	}
	u := render(t, "network", "uninstall")
	bundle(t, filepath.Join(dir, "uninstall"), u, u.container(t, "install"))
	onNode(t, dir, "testdata/node.sh")
}

// newImage makes the files of the image in the directory root of dir. It skips the test where no container can run.
func newImage(t *testing.T, targets ...string) (dir string) {
	t.Helper()
	for _, program := range []string{"crun", "nft", "ip", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") != "" { // where .ci/packages installs it
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("it takes root: the containers are those of a node")
	}
	dir = t.TempDir()
	for _, target := range append(targets, "install") { // the image is of these files, see internal/release
		cmd := exec.Command("make", "--no-print-directory", "-s", "-C", "../..", target, "BIN="+dir+"/bin", "DESTDIR="+dir+"/root",
			"CNIDIR=/usr/lib/fairlead/cni")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	return dir
}

// writeConfig writes the files of a ConfigMap as kubelet does.
func writeConfig(t *testing.T, dir string, c core.ConfigMap) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range c.Data {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// bundles writes the bundle of a container, and one without each of its capabilities and mounts.
func bundles(t *testing.T, dir string, r rendered, name string) {
	t.Helper()
	c := r.container(t, name)
	bundle(t, filepath.Join(dir, name), r, c)
	c.Args = slices.DeleteFunc(slices.Clone(c.Args), func(s string) bool { return s == "--watch" })
	for i, dropped := range c.SecurityContext.Capabilities.Add {
		less := *c.DeepCopy()
		less.SecurityContext.Capabilities.Add = slices.Delete(less.SecurityContext.Capabilities.Add, i, i+1)
		bundle(t, filepath.Join(dir, name+"-without-"+string(dropped)), r, less)
	}
	for i, m := range c.VolumeMounts {
		less := *c.DeepCopy()
		less.VolumeMounts = slices.Delete(less.VolumeMounts, i, i+1)
		bundle(t, filepath.Join(dir, name+"-without-"+strings.ReplaceAll(strings.Trim(m.MountPath, "/"), "/", "-")), r, less)
	}
}

// onNode runs a script on a throw-away host.
func onNode(t *testing.T, dir, script string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "root/usr/bin/fairlead"), "host", "--", "sh", "-eu", script, dir, self)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}
