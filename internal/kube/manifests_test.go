// Package kube holds the manifests in packaging/kubernetes. It is a module of its own, so that Kubernetes' types and
// kustomize are no dependencies of the product.
package kube

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const manifests = "../../packaging/kubernetes"

// A rendered is what kustomize makes of the base and some components.
type rendered struct {
	namespace core.Namespace
	daemons   apps.DaemonSet
	account   core.ServiceAccount
	roles     []rbac.ClusterRole
	bindings  []rbac.ClusterRoleBinding
	configs   []core.ConfigMap
	policy    admission.ValidatingAdmissionPolicy
	binds     admission.ValidatingAdmissionPolicyBinding
}

// config is the ConfigMap that a volume or a container names.
func (r rendered) config(t *testing.T, name string) core.ConfigMap {
	t.Helper()
	i := slices.IndexFunc(r.configs, func(c core.ConfigMap) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("there is no ConfigMap %s", name)
	}
	return r.configs[i]
}

// render has kustomize build the base with components, as a cluster's own kustomization names them, and decodes it with
// Kubernetes' types: an unknown field is an error.
func render(t *testing.T, components ...string) (r rendered) {
	t.Helper()
	return renderWith(t, "", components...)
}

// renderWith adds further text to that kustomization.
func renderWith(t *testing.T, further string, components ...string) (r rendered) {
	t.Helper()
	dir, err := filepath.Abs(manifests)
	if err != nil {
		t.Fatal(err)
	}
	own := t.TempDir()
	relative := func(name string) string {
		path, err := filepath.Rel(own, filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	doc := map[string]any{"resources": []string{relative("base")},
		"images": []map[string]string{{"name": "fairlead", "newName": "example.org/fairlead", "newTag": "1.2.3"}}}
	var names []string
	for _, c := range components {
		names = append(names, relative(c))
	}
	doc["components"] = names
	text, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "kustomization.yaml"), append(text, further...), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), own)
	if err != nil {
		t.Fatal(err)
	}
	into := map[string]any{"Namespace": &r.namespace, "DaemonSet": &r.daemons, "ServiceAccount": &r.account,
		"ValidatingAdmissionPolicy": &r.policy, "ValidatingAdmissionPolicyBinding": &r.binds}
	for _, one := range all.Resources() {
		switch one.GetKind() {
		case "ConfigMap":
			r.configs = append(r.configs, core.ConfigMap{})
			into["ConfigMap"] = &r.configs[len(r.configs)-1]
		case "ClusterRole":
			r.roles = append(r.roles, rbac.ClusterRole{})
			into["ClusterRole"] = &r.roles[len(r.roles)-1]
		case "ClusterRoleBinding":
			r.bindings = append(r.bindings, rbac.ClusterRoleBinding{})
			into["ClusterRoleBinding"] = &r.bindings[len(r.bindings)-1]
		}
		to := into[one.GetKind()]
		if to == nil {
			t.Fatalf("a %s, of which this test knows nothing", one.GetKind())
		}
		text, err := one.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(text, to); err != nil {
			t.Fatalf("%s: %v\n%s", one.GetKind(), err, text)
		}
	}
	return r
}

// container is the one of that name.
func (r rendered) container(t *testing.T, name string) core.Container {
	t.Helper()
	pod := r.daemons.Spec.Template.Spec
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("there is no container %s", name)
	return core.Container{}
}

// What is rendered has only fields that Kubernetes knows, and each container has no more rights than are listed here.
func TestRights(t *testing.T) {
	for _, tc := range []struct {
		components []string
		want       map[string][]core.Capability
	}{
		{nil, map[string][]core.Capability{"install": nil, "repair": {"NET_ADMIN", "SYS_ADMIN"}}},
		{[]string{"network", "sweep"}, map[string][]core.Capability{"install": nil, "sweep": {"NET_ADMIN"},
			"repair": {"NET_ADMIN", "SYS_ADMIN"}}},
		{[]string{"cluster", "sweep"}, map[string][]core.Capability{"install": nil, "sweep": {"NET_ADMIN"},
			"agent": {"NET_ADMIN", "NET_RAW"}, "repair": {"NET_ADMIN", "SYS_ADMIN"}}},
		{[]string{"cluster", "cluster/network-available"}, map[string][]core.Capability{"install": nil,
			"agent": {"NET_ADMIN", "NET_RAW"}, "repair": {"NET_ADMIN", "SYS_ADMIN"}}},
		{[]string{"cluster", "cluster/wireguard"}, map[string][]core.Capability{"install": nil,
			"agent": {"NET_ADMIN", "NET_RAW"}, "repair": {"NET_ADMIN", "SYS_ADMIN"}}},
		{[]string{"cluster", "uninstall", "cluster/remove"}, map[string][]core.Capability{"remove": {"NET_ADMIN"},
			"install": nil, "repair": {"NET_ADMIN", "SYS_ADMIN"}}},
		{[]string{"network", "uninstall"}, map[string][]core.Capability{"install": nil, "repair": {"NET_ADMIN", "SYS_ADMIN"}}},
	} {
		t.Run(strings.Join(append([]string{"base"}, tc.components...), " "), func(t *testing.T) {
			r := render(t, tc.components...)
			pod := r.daemons.Spec.Template.Spec
			if r.daemons.Namespace != "fairlead" || r.namespace.Name != "fairlead" {
				t.Errorf("namespaces %q, %q", r.daemons.Namespace, r.namespace.Name)
			}
			if pod.HostPID || pod.HostIPC || pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
				t.Error("the pod has the host's processes, or each container an account")
			}
			if len(r.account.Name) > 0 != slices.Contains(tc.components, "cluster") || pod.ServiceAccountName != r.account.Name {
				t.Errorf("the pod has the account %q", pod.ServiceAccountName)
			}
			if s := pod.SecurityContext.SeccompProfile; s == nil || s.Type != core.SeccompProfileTypeRuntimeDefault {
				t.Errorf("seccomp %v", s)
			}
			all := slices.Concat(pod.InitContainers, pod.Containers)
			if len(all) != len(tc.want) {
				t.Errorf("%d containers, want %d", len(all), len(tc.want))
			}
			for _, c := range all {
				confined(t, c, tc.want[c.Name])
			}
		})
	}
}

func confined(t *testing.T, c core.Container, want []core.Capability) {
	t.Helper()
	agent := c.Name == "agent" || c.Name == "remove"
	if c.Image != "example.org/fairlead:1.2.3" || len(c.Command) > 0 != agent {
		t.Errorf("%s: image %s, command %q", c.Name, c.Image, c.Command)
	}
	s := c.SecurityContext
	if s == nil || s.Privileged != nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem ||
		s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.Capabilities == nil {
		t.Fatalf("%s: %+v", c.Name, s)
	}
	if !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) || !slices.Equal(s.Capabilities.Add, want) {
		t.Errorf("%s: capabilities %v, want %v", c.Name, s.Capabilities, want)
	}
	if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
		t.Errorf("%s: resources %v", c.Name, c.Resources)
	}
	for _, m := range c.VolumeMounts {
		through := m.MountPropagation != nil && *m.MountPropagation == core.MountPropagationHostToContainer
		if m.Name == "netns" != through {
			t.Errorf("%s: %s is mounted with propagation %v", c.Name, m.MountPath, m.MountPropagation)
		}
		if m.Name == "plugins" && m.ReadOnly != (c.Name != "install") {
			t.Errorf("%s: %s read-only: %v", c.Name, m.MountPath, m.ReadOnly)
		}
		if m.Name == "account" && !agent {
			t.Errorf("%s: has the account", c.Name)
		}
	}
}

// Above each capability and each mount of a container that runs on stands a comment with its reason; so does one above
// what the pod shares with the host.
func TestReasons(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(manifests, "base/daemonset.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	asks := regexp.MustCompile(`^ *(- [A-Z_]+|hostNetwork: .*|- name: .*|runAsUser: .*)$`)
	before, found, mounts := "", 0, false
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		line := lines.Text()
		switch {
		case strings.HasSuffix(line, "volumeMounts:") || strings.HasSuffix(line, "resources:") || strings.HasSuffix(line, "volumes:"):
			mounts = strings.HasSuffix(line, "volumeMounts:")
		case asks.MatchString(line) && (mounts || !strings.Contains(line, "- name:")):
			found++
			install := mounts && found < 4 && strings.HasSuffix(line, "- name: plugins") // what it does is its reason
			if !strings.Contains(before, "# ") && !install {
				t.Errorf("%s has no reason", line)
			}
		}
		before = line
	}
	if found < 10 {
		t.Errorf("the test sees %d places", found)
	}
}

// The default network is in the ConfigMap under the name that the init container writes it by.
func TestNetwork(t *testing.T) {
	r := render(t, "network")
	args := r.container(t, "install").Args
	file := filepath.Base(args[len(args)-1])
	if data := r.configs[0].Data; data[file] == "" {
		t.Errorf("%q and %v", args, data)
	}
}
