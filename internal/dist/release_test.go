package dist

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// release runs make release in a tree.
func release(t *testing.T, tree, version, arch string) (out string) {
	t.Helper()
	dir := t.TempDir()
	out = filepath.Join(dir, "out")
	run(t, "make", "--no-print-directory", "-C", tree, "release", "BIN="+filepath.Join(dir, "bin"), "OUT="+out,
		"VERSION="+version, "ARCHS="+arch)
	return out
}

// signed makes the release that CHANGELOG.md names first, as its publisher does: a commit of this tree is tagged, and one
// command makes and signs the files. The key is the test's.
func signed(t *testing.T) (version, out, tree string) {
	t.Helper()
	nstest.NeedProgram(t, "minisign")
	changes, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	heading := regexp.MustCompile(`(?m)^## (\d+\.\d+\.\d+)$`).FindStringSubmatch(string(changes))
	if heading == nil {
		t.Fatal("CHANGELOG.md names no release")
	}
	version, tree = "v"+heading[1], t.TempDir()
	out = filepath.Join(t.TempDir(), "out")
	copyTree(t, tree)
	run(t, "sh", "-euc", `cd "$1"
		minisign -G -W -p packaging/minisign.pub -s ../fairlead.key >/dev/null
		git init -q && git add -A
		GIT_COMMITTER_DATE='1000000000 +0000' git -c user.name=test -c user.email=test@example.org commit -qm 'Release'
		git tag "$0"
		make --no-print-directory signed-release VERSION="$0" KEY=../fairlead.key OUT="$2" ARCHS="$3"`,
		version, tree, out, runtime.GOARCH)
	return version, out, tree
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

// The release that is prepared is made (twice, by packaging/release.sh, which compares the bytes), its signature holds, and
// each file of it works as it is given to a host: archives are unpacked where the reference's are, packages live in a root
// of their own, and the image installs.
func TestRelease(t *testing.T) {
	t.Parallel()
	version, newer, tree := signed(t)
	older := release(t, "../..", "v0.0.1", runtime.GOARCH)
	t.Run("signature", func(t *testing.T) { signature(t, newer, filepath.Join(tree, "packaging/minisign.pub")) })
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
			if name := filepath.Base(path); name != "LICENSE" && name != "NOTICE" && name != "README.md" {
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
		notices(t, filepath.Join(to, "share/doc/fairlead/NOTICE"), filepath.Join(to, "bin/fairlead"))
	})
	t.Run("conformance", func(t *testing.T) {
		for _, pattern := range []string{"fairlead-conformance_*.deb", "fairlead-conformance-[0-9]*.rpm", "fairlead-conformance_*.apk"} {
			only(t, newer, pattern)
		}
		to := t.TempDir()
		run(t, "tar", "-xzf", only(t, newer, "fairlead-conformance-linux-*.tgz"), "-C", to)
		if list := run(t, filepath.Join(to, "bin/fairlead-conformance"), "--list"); !strings.Contains(list, "P12/twice") {
			t.Errorf("the program lists %s", list)
		}
	})
	for program, files := range map[string]string{"dpkg": "fairlead_*.deb", "rpm": "fairlead-[0-9]*.rpm",
		"chroot": "fairlead_*.apk"} {
		t.Run(program, func(t *testing.T) {
			nstest.NeedProgram(t, program)
			if os.Geteuid() != 0 {
				t.Skip("packages are root's to install")
			}
			root := t.TempDir()
			tree := t.TempDir() // the command that makes the host is not that of the package
			run(t, "tar", "-xzf", only(t, newer, "fairlead-linux-*.tgz"), "-C", tree)
			run(t, "env", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", filepath.Join(tree, "bin/fairlead"), "host", "--",
				"sh", "testdata/life.sh", root, only(t, older, files), only(t, newer, files), version)
		})
	}
	t.Run("apk", func(t *testing.T) { apk(t, only(t, newer, "fairlead_*.apk"), version) })
	t.Run("image", func(t *testing.T) { layout(t, filepath.Join(newer, "fairlead-"+version+".oci.tar")) })
	t.Run("materials", func(t *testing.T) { materials(t, filepath.Join(newer, "fairlead-"+version+".cdx.json")) })
}

// signature verifies the release as a user does, with minisign(1) and sha256sum(1), and shows that a changed file and another
// key are noticed.
func signature(t *testing.T, dir, key string) {
	verify := func() ([]byte, error) {
		cmd := exec.Command("sh", "-c", `minisign -V -p "$0" -m SHA256SUMS && sha256sum -c --quiet SHA256SUMS`, key)
		cmd.Dir = dir
		return cmd.CombinedOutput()
	}
	if out, err := verify(); err != nil || !strings.Contains(string(out), "Signature and comment signature verified") {
		t.Errorf("%v\n%s", err, out)
	}
	sums := filepath.Join(dir, "SHA256SUMS")
	text, err := os.ReadFile(sums)
	if err != nil {
		t.Fatal(err)
	}
	write(t, sums, strings.Replace(string(text), "a", "b", 1))
	if out, err := verify(); err == nil {
		t.Errorf("changed sums are verified: %s", out)
	}
	write(t, sums, string(text))
	other := filepath.Join(t.TempDir(), "other.pub")
	run(t, "minisign", "-G", "-W", "-p", other, "-s", other+".key")
	key = other
	if out, err := verify(); err == nil {
		t.Errorf("verified by another key: %s", out)
	}
}

// apk compares what a package of Alpine's has in it with what it should do there. Its life in life.sh is without apk, which
// is in no registry that the tests reach.
func apk(t *testing.T, path, version string) {
	to := t.TempDir()
	run(t, "tar", "-xzf", path, "-C", to)
	info, err := os.ReadFile(filepath.Join(to, ".PKGINFO"))
	if err != nil || !strings.Contains(string(info), "pkgver = "+strings.TrimPrefix(version, "v")+"-r1\n") {
		t.Errorf("%s: %v", info, err)
	}
	for script, does := range map[string]string{".post-install": "--keep-reference", ".post-upgrade": "--keep-reference",
		".pre-deinstall": "--uninstall"} {
		if text, err := os.ReadFile(filepath.Join(to, script)); err != nil || !strings.Contains(string(text), does) {
			t.Errorf("%s: %v\n%s", script, err, text)
		}
		run(t, "sh", "-n", filepath.Join(to, script))
	}
	notices(t, filepath.Join(to, "usr/share/doc/fairlead/NOTICE"), filepath.Join(to, "usr/bin/fairlead"))
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
	notices(t, filepath.Join(root, "usr/share/doc/fairlead/NOTICE"), filepath.Join(root, command[0]))
	speaks(t, filepath.Join(to, "bridge"))
}

// materials compares the bill of materials with what go says of the two modules.
func materials(t *testing.T, path string) {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		BomFormat  string
		Components []struct {
			Name, Version string
			Licenses      []struct{ License struct{ ID string } }
		}
	}
	if err := json.Unmarshal(text, &doc); err != nil || doc.BomFormat != "CycloneDX" {
		t.Fatalf("%v: %s", err, text)
	}
	var has []string
	for _, c := range doc.Components {
		has = append(has, c.Name+" "+c.Version)
		if len(c.Licenses) != 1 || c.Licenses[0].License.ID == "" {
			t.Errorf("%s: licences %v", c.Name, c.Licenses)
		}
	}
	var want []string
	for _, module := range []string{"../..", "../../cluster", "../../cluster/store"} {
		deps := run(t, "go", "list", "-C", module, "-deps", "-f",
			"{{with .Module}}{{if not (or .Main .Replace)}}{{.Path}} {{.Version}}{{end}}{{end}}", "./cmd/...")
		want = append(want, strings.Split(strings.TrimSpace(deps), "\n")...)
	}
	want = append(want, "std "+strings.TrimPrefix(strings.TrimSpace(run(t, "go", "env", "GOVERSION")), "go"))
	want = slices.DeleteFunc(want, func(s string) bool { return s == "" })
	slices.Sort(want)
	slices.Sort(has)
	if want = slices.Compact(want); !slices.Equal(has, want) {
		t.Errorf("has %q\nwant %q", has, want)
	}
}

// notices fails for each module in a program whose licence the file lacks.
func notices(t *testing.T, path, program string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil || len(info.Deps) == 0 {
		t.Fatalf("%s: %v", program, err)
	}
	for _, m := range info.Deps {
		if !strings.Contains(string(text), "\n"+m.Path+" "+m.Version+"\nSPDX-License-Identifier: ") {
			t.Errorf("%s lacks %s %s", path, m.Path, m.Version)
		}
	}
}

// The programs of another architecture run there.
func TestOtherArchitecture(t *testing.T) {
	t.Parallel()
	const emulator = "qemu-aarch64-static"
	nstest.NeedProgram(t, emulator)
	to := t.TempDir()
	run(t, "tar", "-xzf", filepath.Join(release(t, "../..", "v0.0.2", "arm64"), "fairlead-linux-arm64-v0.0.2.tgz"), "-C", to)
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
