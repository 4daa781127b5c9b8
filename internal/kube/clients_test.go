package kube

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// blocks are the blocks of a kind in a page.
func blocks(t *testing.T, page, kind string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(text), "\n```"+kind+"\n")[1:] {
		block, _, _ := strings.Cut(part, "\n```")
		all = append(all, block)
	}
	return all
}

// Each network on the pages of clients is one that fairlead validates, and that the plugins attach, check and delete by.
// testdata/clients.sh is the host.
func TestClients(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root")
	}
	dir := t.TempDir()
	pages, err := filepath.Glob("../../docs/clients/*.md")
	if err != nil || len(pages) < 6 {
		t.Fatal(pages, err)
	}
	for _, page := range pages {
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		lists := blocks(t, page, "json")
		for _, block := range blocks(t, page, "yaml") {
			var doc struct {
				Kind string
				Spec struct{ Config string }
			}
			if err := yaml.Unmarshal([]byte(block), &doc); err != nil {
				t.Errorf("%s: %v", page, err)
			}
			if doc.Kind == "NetworkAttachmentDefinition" {
				lists = append(lists, doc.Spec.Config)
			}
		}
		if len(lists) == 0 {
			t.Errorf("%s has no network", page)
		}
		for i, list := range lists {
			to := filepath.Join(dir, "net.d", name+string(rune('0'+i)))
			if err := os.MkdirAll(to, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(to, "net.conflist"), []byte(list), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd := exec.Command("make", "--no-print-directory", "-s", "-C", "../..", "build", "BIN="+dir+"/bin")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd = exec.Command(filepath.Join(dir, "bin/fairlead"), "host", "--", "sh", "-eu", "testdata/clients.sh", dir)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}

// The patch for k3s is of volumes that the manifests have, with k3s' directories.
func TestK3s(t *testing.T) {
	patch := ""
	for _, block := range blocks(t, "../../docs/clients/k3s.md", "yaml") {
		patch += block + "\n"
	}
	r := renderWith(t, patch, "network")
	want := map[string]string{"plugins": "/var/lib/rancher/k3s/data/cni", "networks": "/var/lib/rancher/k3s/agent/etc/cni/net.d",
		"state": "/var/lib/cni"}
	for _, v := range r.daemons.Spec.Template.Spec.Volumes {
		if dir, ok := want[v.Name]; ok && (v.HostPath == nil || v.HostPath.Path != dir) {
			t.Errorf("%s: %v", v.Name, v.HostPath)
		}
	}
}
