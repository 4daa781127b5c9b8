package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// mounting are the modules for the console, and for mounting this machine's files. All others are loaded from there.
func mounting() []string {
	return []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"}
}

// writeInitrd writes the initial root: this program as init, and the modules it loads, in order. It returns the
// files of those to be loaded after them, as they are called in the machine.
func writeInitrd(path, init, modules string) (load []string, err error) {
	deps, err := readDeps(filepath.Join(modules, "modules.dep"))
	if err != nil {
		return nil, err
	}
	self, err := os.ReadFile(init)
	if err != nil {
		return nil, err
	}
	var a archive
	for _, dir := range []string{"dev", "proc", "sys", "host", "over", "new", "share", "modules"} {
		a.dir(dir)
	}
	a.file("init", 0o755, self)
	first := deps.order(mounting())
	for n, m := range first {
		b, err := readModule(filepath.Join(modules, m))
		if err != nil {
			return nil, err
		}
		a.file(fmt.Sprintf("modules/%03d", n), 0o644, b)
	}
	for _, m := range deps.order(append(mounting(), everything()...))[len(first):] {
		load = append(load, filepath.Join("/lib/modules", filepath.Base(modules), m))
	}
	return load, os.WriteFile(path, a.close(), 0o600)
}

// unpack writes the kernel as the ELF file that is packed in its image: the machine would take ten times as long
// for that. An image that is packed otherwise is left to the machine.
func unpack(image, dir string) (path string, err error) {
	b, err := os.ReadFile(image)
	if err != nil {
		return "", err
	}
	// The header of the boot protocol: where the payload begins after the sectors of the setup code, and how long
	// it is. Its last four bytes are the unpacked size.
	at := func(i int) int { return int(binary.LittleEndian.Uint32(b[i:])) }
	if len(b) < 0x1000 || string(b[0x202:0x206]) != "HdrS" {
		return image, nil
	}
	start := (int(b[0x1f1])+1)*512 + at(0x248)
	end := start + at(0x24c) - 4
	if start > end || end > len(b) {
		return image, nil
	}
	var cmd *exec.Cmd
	switch payload := b[start:end]; {
	case bytes.HasPrefix(payload, []byte("\xfd7zXZ")):
		cmd = exec.Command("xz", "-dc")
	case bytes.HasPrefix(payload, []byte("\x28\xb5\x2f\xfd")):
		cmd = exec.Command("zstd", "-dcq")
	default:
		return image, nil
	}
	path = filepath.Join(dir, "vmlinux")
	out, err := os.Create(path)
	if err != nil {
		return "", err
	}
	cmd.Stdin, cmd.Stdout = bytes.NewReader(b[start:end]), out
	err = cmd.Run()
	return path, errors.Join(err, out.Close())
}

// readModule reads a module; some distributions compress them.
func readModule(path string) ([]byte, error) {
	switch filepath.Ext(path) {
	case ".xz":
		return exec.Command("xz", "-dc", path).Output()
	case ".zst":
		return exec.Command("zstd", "-dcq", path).Output()
	}
	return os.ReadFile(path)
}

// dependencies are depmod's: what a module's file needs loaded before it.
type dependencies map[string][]string

func readDeps(path string) (dependencies, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	deps := dependencies{}
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if file, needs, ok := strings.Cut(s.Text(), ":"); ok {
			deps[file] = strings.Fields(needs)
		}
	}
	return deps, s.Err()
}

// order is the files to load for modules of these names, each after what it needs. A name that is no file is
// built into the kernel.
func (d dependencies) order(names []string) (files []string) {
	var add func(file string)
	add = func(file string) {
		if slices.Contains(files, file) {
			return
		}
		for _, need := range slices.Backward(d[file]) {
			add(need)
		}
		files = append(files, file)
	}
	for _, name := range names {
		for file := range d {
			base, _, _ := strings.Cut(filepath.Base(file), ".ko")
			if strings.ReplaceAll(base, "-", "_") == name {
				add(file)
			}
		}
	}
	return files
}

// An archive is what the kernel unpacks as its first root: cpio(5), format newc.
type archive struct {
	bytes.Buffer
	inode int
}

func (a *archive) dir(name string) { a.entry(name, 0o040755, nil) }

func (a *archive) file(name string, mode int, content []byte) { a.entry(name, 0o100000|mode, content) }

func (a *archive) close() []byte {
	a.entry("TRAILER!!!", 0, nil)
	return a.Bytes()
}

func (a *archive) entry(name string, mode int, content []byte) {
	a.inode++
	// inode, mode, uid, gid, links, mtime, size, device and rdevice, length of the name, checksum
	fmt.Fprintf(a, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	a.WriteString(name + "\x00")
	a.pad()
	a.Write(content)
	a.pad()
}

func (a *archive) pad() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}
