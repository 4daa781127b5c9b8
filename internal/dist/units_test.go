package dist

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// unit reads a unit file: section.key → values, in order.
func unit(t *testing.T, path string) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	settings, section := map[string][]string{}, ""
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		key, value, ok := strings.Cut(line, "=")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]"):
			if section = line[1 : len(line)-1]; !slices.Contains([]string{"Unit", "Service", "Socket", "Install"}, section) {
				t.Errorf("%s: section %s", path, section)
			}
		case !ok || section == "" || key == "" || strings.ContainsAny(key, " \t") || value == "":
			t.Errorf("%s: %q is no setting", path, line)
		default:
			settings[section+"."+key] = append(settings[section+"."+key], value)
		}
	}
	return settings
}

// Where packages install the agent of a cluster's node, and the etcd of a fleet.
const (
	agentProgram = "/usr/bin/fairlead-agent"
	storeProgram = "/usr/bin/fairlead-store"
)

// isOfFleet reports whether a unit is of a program that nodes of a cluster alone have.
func isOfFleet(path string) bool {
	return slices.Contains([]string{"fairlead-agent.service", "fairlead-store.service"}, filepath.Base(path))
}

// Each unit can be read, by systemd too where that is installed, and runs commands that there are.
func TestUnits(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../../packaging/systemd/*.*")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	bin, agent := build(t), t.TempDir()
	run(t, "make", "-s", "-C", "../..", "agent", "BIN="+agent)
	installed := strings.NewReplacer(agentProgram, filepath.Join(agent, "fairlead-agent"), storeProgram, filepath.Join(agent, "fairlead-store"),
		"/usr/bin/fairlead", filepath.Join(bin, "fairlead"), "/opt/cni/bin/", filepath.Join(bin, "cni")+"/")
	copies := t.TempDir() // of all, for they name each other
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(copies, filepath.Base(path)), []byte(installed.Replace(string(b))),
			0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			u := unit(t, path)
			for _, key := range []string{"ExecStart", "ExecReload", "ExecStop"} {
				for _, line := range u["Service."+key] {
					args := strings.Fields(strings.TrimPrefix(line, "-"))
					if program := installed.Replace(args[0]); program == args[0] {
						t.Errorf("%s=%s", key, line)
						// flags are read before help is given
					} else if out, err := exec.Command(program, append(args[1:], "--help")...).CombinedOutput(); err != nil {
						t.Errorf("%s=%s: %v\n%s", key, line, err, out)
					}
				}
			}
			if len(u["Service.ExecStart"])+len(u["Socket.ListenStream"]) == 0 || len(u["Install.WantedBy"]) == 0 {
				t.Errorf("is never run: %v", u)
			}
			if strings.Contains(strings.Join(u["Service.ProtectKernelTunables"], " "), "yes") {
				t.Error("it writes below /proc/sys/net")
			}
			// Who is restarted or reloaded after the packet filter's services has to be ordered after them.
			after := strings.Fields(strings.Join(u["Unit.After"], " "))
			for _, key := range []string{"PartOf", "ReloadPropagatedFrom"} {
				for other := range strings.FieldsSeq(strings.Join(u["Unit."+key], " ")) {
					if !slices.Contains(after, other) {
						t.Errorf("%s=%s without After=", key, other)
					}
				}
			}
			analyze, err := exec.LookPath("systemd-analyze")
			if err != nil {
				t.Logf("systemd itself is not asked: %v", err)
				return
			}
			if out, err := exec.Command(analyze, "verify",
				filepath.Join(copies, filepath.Base(path))).CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("systemd-analyze verify: %v\n%s", err, out)
			}
			if strings.HasSuffix(path, ".socket") || strings.HasSuffix(path, "/fairlead-gc.service") {
				return
			}
			if out, err := exec.Command(analyze, "security", "--offline=true", "--no-pager", "--threshold=40",
				filepath.Join(copies, filepath.Base(path))).CombinedOutput(); err != nil {
				t.Errorf("systemd-analyze security: %v\n%s", err, out)
			}
		})
	}
}

// The sweep of a boot runs once, before any runtime, and sees the host's mounts. The repair comes after it, and each daemon
// is there before the runtimes and until they have stopped.
func TestSweepUnit(t *testing.T) {
	u := unit(t, "../../packaging/systemd/fairlead-gc.service")
	before := strings.Fields(strings.Join(u["Unit.Before"], " "))
	for _, other := range []string{"containerd.service", "crio.service", "docker.service", "podman.service",
		"podman-restart.service", "kubelet.service"} {
		if !slices.Contains(before, other) {
			t.Errorf("Before= lacks %s", other)
		}
	}
	for _, name := range []string{"cni-dhcp", "fairlead-dns"} {
		if got := unit(t, "../../packaging/systemd/"+name+".service")["Unit.Before"]; !slices.Equal(got, u["Unit.Before"]) {
			t.Errorf("%s: Before=%q, the sweep has %q", name, got, u["Unit.Before"])
		}
	}
	if got := unit(t, "../../packaging/systemd/fairlead-repair@.service")["Unit.After"]; !slices.Equal(got,
		[]string{"%i.service fairlead-gc.service"}) {
		t.Errorf("the repair comes after %q", got)
	}
	after := strings.Fields(strings.Join(u["Unit.After"], " ")) // rules that were saved are loaded by these
	for _, other := range []string{"nftables.service", "firewalld.service", "netfilter-persistent.service"} {
		if !slices.Contains(after, other) {
			t.Errorf("After= lacks %s", other)
		}
	}
	if !slices.Equal(u["Service.Type"], []string{"oneshot"}) ||
		!slices.Equal(u["Service.RemainAfterExit"], []string{"yes"}) {
		t.Errorf("it runs more than once: %v", u)
	}
	for key := range u {
		_, name, _ := strings.Cut(key, ".")
		if strings.HasPrefix(name, "Protect") || strings.HasPrefix(name, "Private") || strings.HasSuffix(name, "Paths") ||
			strings.HasPrefix(name, "Bind") || strings.HasPrefix(name, "Root") {
			t.Errorf("%s gives it mounts of its own", key)
		}
	}
}
