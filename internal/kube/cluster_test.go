package kube

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
)

// The agent may list and watch nodes and, for a warning, network policies and the ranges of Services. It may change nothing,
// unless it is to clear the condition NetworkUnavailable, or to publish the node's key.
func TestClusterRights(t *testing.T) {
	read := []string{"list", "watch"}
	reads := []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: read},
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}, Verbs: read},
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"servicecidrs"}, Verbs: read}}
	patches := []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}}}
	annotates := []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"patch"}}}
	const clears = "--clear-network-unavailable"
	for _, c := range []struct {
		components []string
		want       [][]rbac.PolicyRule // of each role
	}{
		{[]string{"cluster"}, [][]rbac.PolicyRule{reads}},
		{[]string{"cluster", "cluster/network-available"}, [][]rbac.PolicyRule{reads, patches}},
		{[]string{"cluster", "cluster/wireguard"}, [][]rbac.PolicyRule{reads, annotates}},
	} {
		r := render(t, c.components...)
		var rules [][]rbac.PolicyRule
		for i, role := range r.roles {
			rules = append(rules, role.Rules)
			subject := rbac.Subject{Kind: "ServiceAccount", Name: r.account.Name, Namespace: r.account.Namespace}
			if b := r.bindings[i]; b.RoleRef.Name != role.Name || len(b.Subjects) != 1 || b.Subjects[0] != subject {
				t.Errorf("%+v", b)
			}
		}
		if !reflect.DeepEqual(rules, c.want) {
			t.Errorf("%q: %+v, want %+v", c.components, rules, c.want)
		}
		if args := r.container(t, "agent").Args; slices.Contains(args, clears) != slices.Contains(c.components, "cluster/network-available") {
			t.Errorf("%q: %q", c.components, args)
		}
		if r.account.Namespace != r.daemons.Namespace {
			t.Errorf("the account is of namespace %q", r.account.Namespace)
		}
	}
}

// Each setting of the ConfigMap is a flag of the agent, and the configuration lies where the agent takes it.
func TestClusterSettings(t *testing.T) {
	r := render(t, "cluster")
	c := r.container(t, "agent")
	settings := r.config(t, c.EnvFrom[0].ConfigMapRef.Name).Data
	for name := range settings {
		if !slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasSuffix(arg, "=$("+name+")") }) {
			t.Errorf("%s is in none of %q", name, c.Args)
		}
	}
	pod := r.daemons.Spec.Template.Spec
	i := slices.IndexFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == "cluster" })
	if data := r.config(t, pod.Volumes[i].ConfigMap.Name).Data; data["10-fairlead.conflist"] == "" {
		t.Errorf("%v", data)
	}
}

// The agents have their key where they look for it, and do their work without one.
func TestClusterKey(t *testing.T) {
	r := render(t, "cluster")
	c := r.container(t, "agent")
	mount := slices.IndexFunc(c.VolumeMounts, func(m core.VolumeMount) bool { return m.Name == "account" })
	pod := r.daemons.Spec.Template.Spec
	volume := slices.IndexFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == "account" })
	sources := pod.Volumes[volume].Projected.Sources
	source := slices.IndexFunc(sources, func(s core.VolumeProjection) bool { return s.Secret != nil })
	if source < 0 {
		t.Fatal("no Secret")
	}
	key := sources[source].Secret
	flag := "--key-file=" + filepath.Join(c.VolumeMounts[mount].MountPath, key.Items[0].Path)
	if !slices.Contains(c.Args, flag) || key.Optional == nil || !*key.Optional {
		t.Errorf("%+v, %q", key, c.Args)
	}
}

// On a throw-away host with an API server of two nodes, the agent of the manifests makes the node ready. Without any one
// of its capabilities and mounts it does not. What is removed leaves the host as it was. testdata/cluster.sh is the host.
func TestClusterConfined(t *testing.T) {
	dir := newImage(t, "build", "agent")
	r := render(t, "cluster")
	pod := r.daemons.Spec.Template.Spec
	i := slices.IndexFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == "cluster" })
	writeConfig(t, filepath.Join(dir, "cluster"), r.config(t, pod.Volumes[i].ConfigMap.Name))
	for _, name := range []string{"install", "agent", "repair"} {
		bundles(t, dir, r, name)
	}
	gone := render(t, "cluster", "uninstall", "cluster/remove")
	bundle(t, filepath.Join(dir, "remove"), gone, gone.container(t, "remove"))
	bundle(t, filepath.Join(dir, "uninstall"), gone, gone.container(t, "install"))
	onNode(t, dir, "testdata/cluster.sh")
}
