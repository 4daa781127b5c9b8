package dist

import (
	"archive/zip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What `go install …/cmd/fairlead@VERSION` makes says its version, and has the plugins. The module comes from a proxy in
// files, as Go's proxy has it: without the modules that lie in its directories.
func TestGoInstall(t *testing.T) {
	t.Parallel()
	const version = "v0.9.0-test.1"
	proxy, bin := t.TempDir(), t.TempDir()
	publish(t, filepath.Join(proxy, "github.com/fairlead-cni/fairlead/@v"), version)
	dirs := strings.Fields(run(t, "go", "env", "GOMODCACHE", "GOCACHE"))
	cmd := exec.Command("go", "install", "github.com/fairlead-cni/fairlead/cmd/fairlead@"+version)
	cmd.Dir = t.TempDir() // no module is here
	cmd.Env = append(os.Environ(), "GOBIN="+bin, "GOMODCACHE="+t.TempDir(), "GOFLAGS=-modcacherw -trimpath", "GOSUMDB=off",
		"GOCACHE="+dirs[1], "GOPROXY=file://"+proxy+",file://"+filepath.Join(dirs[0], "cache/download"), "GOWORK=off",
		"CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	fairlead := filepath.Join(bin, "fairlead")
	if out := run(t, fairlead, "--version"); !strings.HasPrefix(out, "fairlead "+version+"\n") {
		t.Errorf("--version says %q", out)
	}
	to := filepath.Join(t.TempDir(), "cni")
	run(t, fairlead, "install", "--dir", to)
	for _, name := range strings.Fields(run(t, fairlead, "plugins")) {
		speaks(t, filepath.Join(to, name))
	}
	if out := run(t, filepath.Join(to, "bridge")); !strings.HasPrefix(out, "fairlead bridge ("+version+")") {
		t.Errorf("the plugin says %q", out)
	}
	run(t, fairlead, "install", "--dir", to, "--check")
}

// publish writes the files of one version of this module.
func publish(t *testing.T, dir, version string) {
	t.Helper()
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, version+".mod"), string(mod))
	write(t, filepath.Join(dir, version+".info"), `{"Version":"`+version+`"}`)
	write(t, filepath.Join(dir, "list"), version+"\n")
	f, err := os.Create(filepath.Join(dir, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	tree := strings.Fields(run(t, "git", "-C", "../..", "ls-files", "--cached", "--others", "--exclude-standard"))
	var nested []string
	for _, path := range tree {
		if dir, is := strings.CutSuffix(path, "/go.mod"); is {
			nested = append(nested, dir+"/")
		}
	}
	for _, path := range tree {
		if !below(path, nested) {
			add(t, z, "github.com/fairlead-cni/fairlead@"+version+"/"+path, "../../"+path)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func below(path string, dirs []string) bool {
	for _, dir := range dirs {
		if strings.HasPrefix(path, dir) {
			return true
		}
	}
	return false
}

func add(t *testing.T, z *zip.Writer, name, path string) {
	t.Helper()
	f, err := os.Open(path)
	if os.IsNotExist(err) { // deleted, and not yet committed
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := z.Create(name)
	if err == nil {
		_, err = io.Copy(w, f)
	}
	if err != nil {
		t.Fatal(err)
	}
}
