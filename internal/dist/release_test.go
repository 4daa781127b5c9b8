package dist

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// release runs make release for this machine.
func release(t *testing.T, version, arch string) (out string) {
	t.Helper()
	dir := t.TempDir()
	out = filepath.Join(dir, "out")
	run(t, "make", "--no-print-directory", "-C", "../..", "release", "BIN="+filepath.Join(dir, "bin"), "OUT="+out,
		"VERSION="+version, "ARCHS="+arch)
	return out
}

// only is the one file of a directory that matches the pattern.
func only(t *testing.T, dir, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(files) != 1 {
		t.Fatalf("%s: %q, %v", pattern, files, err)
	}
	return files[0]
}

// What make release makes is the same bytes each time, and each file of it works as it is given to a host: archives are
// unpacked where the reference's are, packages live in a root of their own, and the image installs.
func TestRelease(t *testing.T) {
	older, newer, again := release(t, "v0.0.1", runtime.GOARCH), release(t, "v0.0.2", runtime.GOARCH), release(t, "v0.0.2",
		runtime.GOARCH)
	t.Run("the same bytes", func(t *testing.T) { run(t, "diff", "-r", newer, again) })
	t.Run("sums", func(t *testing.T) {
		run(t, "sh", "-c", "cd "+newer+" && sha256sum -c SHA256SUMS && sha256sum -c *.tgz.sha256 && sha512sum -c *.tgz.sha512")
	})
	t.Run("in place of the reference's archive", func(t *testing.T) {
		to := t.TempDir()
		write(t, filepath.Join(to, "bridge"), "#!/bin/sh\n")
		run(t, "tar", "-xzf", only(t, newer, "cni-plugins-linux-*.tgz"), "-C", to)
		names, err := filepath.Glob(to + "/*")
		if err != nil || len(names) < 20 {
			t.Fatal(names, err)
		}
		for _, path := range names {
			if name := filepath.Base(path); name != "LICENSE" && name != "README.md" {
				speaks(t, path)
			}
		}
	})
	t.Run("archive", func(t *testing.T) {
		to, dir := t.TempDir(), filepath.Join(t.TempDir(), "opt/cni/bin")
		run(t, "tar", "-xzf", only(t, newer, "fairlead-linux-*.tgz"), "-C", to)
		run(t, filepath.Join(to, "bin/fairlead"), "install", "--dir", dir)
		speaks(t, filepath.Join(dir, "bridge"))
		links(t, filepath.Join(to, "share/doc/fairlead"))
	})
	for program, files := range map[string]string{"dpkg": "fairlead_*.deb", "rpm": "fairlead-*.rpm"} {
		t.Run(program, func(t *testing.T) {
			nstest.NeedProgram(t, program)
			if os.Geteuid() != 0 {
				t.Skip("packages are root's to install")
			}
			root := t.TempDir()
			tree := t.TempDir() // the command that makes the host is not that of the package
			run(t, "tar", "-xzf", only(t, newer, "fairlead-linux-*.tgz"), "-C", tree)
			run(t, "env", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", filepath.Join(tree, "bin/fairlead"), "host", "--",
				"sh", "testdata/life.sh", root, only(t, older, files), only(t, newer, files))
		})
	}
	t.Run("apk", func(t *testing.T) { apk(t, only(t, newer, "fairlead_*.apk")) })
	t.Run("image", func(t *testing.T) { layout(t, filepath.Join(newer, "fairlead-v0.0.2.oci.tar")) })
	t.Run("materials", func(t *testing.T) { materials(t, filepath.Join(newer, "fairlead-v0.0.2.cdx.json")) })
}

// apk compares what a package of Alpine's has in it with what it should do there: no program for it is at hand.
func apk(t *testing.T, path string) {
	to := t.TempDir()
	run(t, "tar", "-xzf", path, "-C", to)
	info, err := os.ReadFile(filepath.Join(to, ".PKGINFO"))
	if err != nil || !strings.Contains(string(info), "pkgver = 0.0.2-r1\n") {
		t.Errorf("%s: %v", info, err)
	}
	for script, does := range map[string]string{".post-install": "--keep-reference", ".post-upgrade": "--keep-reference",
		".pre-deinstall": "--uninstall"} {
		if text, err := os.ReadFile(filepath.Join(to, script)); err != nil || !strings.Contains(string(text), does) {
			t.Errorf("%s: %v\n%s", script, err, text)
		}
		run(t, "sh", "-n", filepath.Join(to, script))
	}
	dir := filepath.Join(t.TempDir(), "bin")
	run(t, filepath.Join(to, "usr/bin/fairlead"), "install", "--dir", dir)
	speaks(t, filepath.Join(dir, "bridge"))
	speaks(t, filepath.Join(to, "usr/lib/fairlead/cni/tap")) // a symbolic link
}

// layout follows an image from its index to its layer, and has the program in it install.
func layout(t *testing.T, path string) {
	dir, root := t.TempDir(), t.TempDir()
	run(t, "tar", "-xf", path, "-C", dir)
	run(t, "sh", "-c", "cd "+dir+"/blobs/sha256 && for f in *; do echo \"$f  $f\"; done | sha256sum -c --quiet")
	type descriptor struct {
		Digest   string
		Platform struct{ Architecture, OS string }
	}
	var doc struct {
		Manifests, Layers []descriptor
		Config            descriptor
	}
	follow := func(file string, v any) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, v); err != nil {
			t.Fatal(err)
		}
	}
	blob := func(d descriptor) string { return "blobs/sha256/" + strings.TrimPrefix(d.Digest, "sha256:") }
	follow("index.json", &doc)
	follow(blob(doc.Manifests[0]), &doc)
	if p := doc.Manifests[0].Platform; p.Architecture != runtime.GOARCH || p.OS != "linux" {
		t.Fatalf("platform %v", p)
	}
	follow(blob(doc.Manifests[0]), &doc)
	var conf struct {
		Config struct{ Entrypoint, Cmd []string }
	}
	follow(blob(doc.Config), &conf)
	run(t, "tar", "-xzf", filepath.Join(dir, blob(doc.Layers[0])), "-C", root)
	to := filepath.Join(t.TempDir(), "opt/cni/bin")
	command := append(append(conf.Config.Entrypoint, conf.Config.Cmd...), "--dir", to)
	run(t, filepath.Join(root, command[0]), command[1:]...)
	speaks(t, filepath.Join(to, "bridge"))
}

// materials compares the bill of materials with what go says of the module.
func materials(t *testing.T, path string) {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		BomFormat  string
		Components []struct{ Name, Version string }
	}
	if err := json.Unmarshal(text, &doc); err != nil || doc.BomFormat != "CycloneDX" {
		t.Fatalf("%v: %s", err, text)
	}
	var has []string
	for _, c := range doc.Components {
		has = append(has, c.Name+" "+c.Version)
	}
	deps := run(t, "go", "list", "-C", "../..", "-deps", "-f",
		"{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}", "./cmd/...")
	want := strings.Split(strings.TrimSpace(deps), "\n")
	want = append(want, "std "+strings.TrimPrefix(strings.TrimSpace(run(t, "go", "env", "GOVERSION")), "go"))
	want = slices.DeleteFunc(want, func(s string) bool { return s == "" })
	slices.Sort(want)
	slices.Sort(has)
	if want = slices.Compact(want); !slices.Equal(has, want) {
		t.Errorf("has %q\nwant %q", has, want)
	}
}

// The programs of another architecture run there.
func TestOtherArchitecture(t *testing.T) {
	const emulator = "qemu-aarch64-static"
	nstest.NeedProgram(t, emulator)
	to := t.TempDir()
	run(t, "tar", "-xzf", filepath.Join(release(t, "v0.0.2", "arm64"), "fairlead-linux-arm64-v0.0.2.tgz"), "-C", to)
	cmd := exec.Command(emulator, "-0", "bridge", filepath.Join(to, "lib/fairlead/cni/bridge"))
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	if out, err := cmd.Output(); err != nil || !bytes.Contains(out, []byte("supportedVersions")) {
		t.Errorf("VERSION: %v: %s", err, out)
	}
	plan := run(t, emulator, filepath.Join(to, "bin/fairlead"), "plan", "../../docs/examples/lan.conflist")
	if !strings.Contains(plan, "bridge") {
		t.Errorf("plan: %s", plan)
	}
}
