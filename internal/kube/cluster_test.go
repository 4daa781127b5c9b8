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

// The agent may list and watch nodes and, for a warning, network policies, and nothing else.
func TestClusterRights(t *testing.T) {
	r := render(t, "cluster")
	verbs := []string{"list", "watch"}
	want := []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: verbs},
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}, Verbs: verbs}}
	if rules := r.role.Rules; !reflect.DeepEqual(rules, want) {
		t.Errorf("%+v, want %+v", rules, want)
	}
	subject := rbac.Subject{Kind: "ServiceAccount", Name: r.account.Name, Namespace: r.account.Namespace}
	if b := r.binding; b.RoleRef.Name != r.role.Name || len(b.Subjects) != 1 || b.Subjects[0] != subject {
		t.Errorf("%+v", b)
	}
	if r.account.Namespace != r.daemons.Namespace {
		t.Errorf("the account is of namespace %q", r.account.Namespace)
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
