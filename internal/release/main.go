// Command release makes the files of a release from what `make install` leaves for each architecture: archives,
// packages, an image and a bill of materials. It is a module of its own, so that what makes packages is no dependency
// of the product. The same trees make the same bytes.
package main

import (
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"flag"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// A release is what the files of all architectures have in common.
type release struct {
	version string // with the v
	date    time.Time
	out     string
}

// A file is one of a tree. Path is relative, with slashes.
type file struct {
	path, source string
	mode         fs.FileMode
	link         string // an earlier path that is the same file
}

func main() {
	version := flag.String("version", "", "the release, as v1.2.3 or v1.2.3-rc.1")
	date := flag.Int64("date", 0, "when its last change was made, in seconds since 1970")
	trees := flag.String("trees", "",
		"directory with what was installed: ARCH/system/usr for packages, ARCH/local/usr/local for archives")
	out := flag.String("out", "", "directory to write to")
	flag.Parse()
	r := release{*version, time.Unix(*date, 0).UTC(), *out}
	if err := r.make(*trees, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func (r release) make(trees string, archs []string) error {
	if !regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`).MatchString(r.version) {
		return fmt.Errorf("%q is no version of a release: make release VERSION=v1.2.3", r.version)
	}
	if len(archs) == 0 {
		return errors.New("for no architecture")
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	var images []image
	for _, arch := range archs {
		system, err := walk(filepath.Join(trees, arch, "system/usr"))
		if err != nil {
			return err
		}
		local, err := walk(filepath.Join(trees, arch, "local/usr/local"))
		if err != nil {
			return err
		}
		legal := []string{"share/doc/fairlead/LICENSE", "share/doc/fairlead/NOTICE"}
		// The image is for a Kubernetes cluster, which has no fleet's etcd.
		inImage := without(within(system, append(legal, "bin", "lib/fairlead")...),
			append(storeFiles(), conformanceFiles()...)...)
		images = append(images, image{arch, inImage})
		alone := func(product string, files []string) error {
			return r.archive(product+"-linux-"+arch+"-"+r.version+".tgz", within(local, append(files, legal...)...))
		}
		err = errors.Join(
			r.archive("cni-plugins-linux-"+arch+"-"+r.version+".tgz", flat(local)),
			r.archive("fairlead-linux-"+arch+"-"+r.version+".tgz", without(local, otherFiles()...)),
			alone("fairlead-agent", agentFiles()),
			alone("fairlead-store", storeFiles()),
			alone("fairlead-conformance", conformanceFiles()),
			r.packages(arch, system),
		)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
	}
	if err := r.image(images); err != nil {
		return err
	}
	if err := r.materials(filepath.Join(trees, archs[0], "system/usr")); err != nil {
		return err
	}
	return r.sums()
}

// walk is the files below root, in order. Hard links of one name each other.
func walk(root string) (all []file, err error) {
	first := map[uint64]string{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f := file{path: filepath.ToSlash(rel), source: path, mode: info.Mode().Perm()}
		if inode := info.Sys().(*syscall.Stat_t).Ino; first[inode] != "" {
			f.link = first[inode]
		} else {
			first[inode] = f.path
		}
		all = append(all, f)
		return nil
	})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%s is empty", root)
	}
	return all, err
}

// within is the files at some paths, or below them.
func within(all []file, paths ...string) (some []file) {
	for _, f := range all {
		for _, path := range paths {
			if f.path == path || strings.HasPrefix(f.path, path+"/") {
				some = append(some, f)
			}
		}
	}
	return some
}

// without is the files at none of some paths, nor below them.
func without(all []file, paths ...string) (rest []file) {
	for _, f := range all {
		if len(within([]file{f}, paths...)) == 0 {
			rest = append(rest, f)
		}
	}
	return rest
}

// flat is the plugins, the licences and the README in one directory, named as in the reference's archives.
func flat(all []file) (some []file) {
	for _, f := range all {
		switch dir, name := filepath.Split(f.path); {
		case dir == "lib/fairlead/cni/":
			if f.link != "" {
				f.link = "./" + filepath.Base(f.link)
			}
			f.path = "./" + name
			some = append(some, f)
		case dir == "share/doc/fairlead/" && (name == "LICENSE" || name == "NOTICE" || name == "README.md"):
			f.path = "./" + name
			some = append(some, f)
		}
	}
	return some
}

// create writes a file of the release.
func (r release) create(name string, write func(io.Writer) error) error {
	f, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// sums writes SHA256SUMS, and beside the archives that stand in for the reference's the sums that installers of these
// fetch.
func (r release) sums() error {
	all, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var lines []string
	for _, e := range all {
		if strings.HasSuffix(e.Name(), ".sha256") || strings.HasSuffix(e.Name(), ".sha512") ||
			e.Name() == "SHA256SUMS" {
			continue
		}
		line, err := r.sum(e.Name(), sha256.New())
		if err != nil {
			return err
		}
		lines = append(lines, line)
		if strings.HasPrefix(e.Name(), "cni-plugins-") {
			long, err := r.sum(e.Name(), sha512.New())
			if err == nil {
				err = errors.Join(r.text(e.Name()+".sha256", line), r.text(e.Name()+".sha512", long))
			}
			if err != nil {
				return err
			}
		}
	}
	return r.text("SHA256SUMS", strings.Join(lines, ""))
}

func (r release) sum(name string, h hash.Hash) (string, error) {
	f, err := os.Open(filepath.Join(r.out, name))
	if err != nil {
		return "", err
	}
	defer f.Close()
	_, err = io.Copy(h, f)
	return fmt.Sprintf("%x  %s\n", h.Sum(nil), name), err
}

func (r release) text(name, text string) error {
	return r.create(name, func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}
