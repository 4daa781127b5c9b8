package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestOrder(t *testing.T) {
	d := dependencies{
		"net/9p/9pnet_virtio.ko":   {"net/9p/9pnet.ko", "virtio/virtio.ko", "virtio/virtio_ring.ko"},
		"net/9p/9pnet.ko":          nil,
		"virtio/virtio.ko":         nil,
		"virtio/virtio_ring.ko":    {"virtio/virtio.ko"},
		"fs/overlay.ko.xz":         nil,
		"drivers/virtio-gpu.ko.xz": nil,
	}
	got := d.order([]string{"9pnet_virtio", "overlay", "built_in"})
	at := func(name string) int { return slices.Index(got, name) }
	if len(got) != 5 || at("virtio/virtio.ko") > at("virtio/virtio_ring.ko") || at("net/9p/9pnet_virtio.ko") != 3 ||
		at("fs/overlay.ko.xz") != 4 {
		t.Errorf("order %q", got)
	}
}

// The archive is what cpio(1) reads.
func TestArchive(t *testing.T) {
	var a archive
	a.dir("modules")
	a.file("modules/000", 0o644, []byte("abc"))
	a.file("init", 0o755, []byte("#!/bin/sh\n"))
	dir := t.TempDir()
	image := filepath.Join(dir, "image")
	if err := os.WriteFile(image, a.close(), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("busybox", "cpio", "-i", "-d", "-F", image)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "modules/000")); err != nil || string(b) != "abc" {
		t.Errorf("unpacked %q: %v", b, err)
	}
	if i, err := os.Stat(filepath.Join(dir, "init")); err != nil || i.Mode().Perm() != 0o755 {
		t.Errorf("unpacked %v: %v", i, err)
	}
}

func TestTally(t *testing.T) {
	out := stepMark + `example.com/a
=== RUN   TestA
--- PASS: TestA (0.00s)
=== RUN   TestB
    b_test.go:7: operation not supported
--- SKIP: TestB (0.00s)
` + stepMark + `example.com/b
=== RUN   TestC
=== RUN   TestC/x
        c_test.go:9: broken
    --- FAIL: TestC/x (0.01s)
--- FAIL: TestC (0.02s)
FAIL
`
	c := tally([]byte(out))
	if c.passed != 1 || c.failed != 2 || len(c.skipped) != 1 ||
		c.skipped[0] != (skip{"example.com/a", "TestB", "b_test.go:7: operation not supported"}) {
		t.Errorf("tally %+v", c)
	}
	var shown strings.Builder
	f := filter{to: &shown}
	for part := range slices.Chunk([]byte(out), 7) {
		f.Write(part)
	}
	f.flush()
	if s := shown.String(); !strings.Contains(s, "broken") || strings.Contains(s, "TestA ") ||
		!strings.Contains(s, "example.com/b") {
		t.Errorf("shown:\n%s", s)
	}
}

// The lists hold a word and, after it, what is done with it.
func TestLists(t *testing.T) {
	if len(kinds()) < 10 {
		t.Errorf("kinds %v", kinds())
	}
	for _, k := range kinds() {
		if k.Command == "" {
			t.Errorf("%s: no command", k.Name)
		}
	}
	for _, e := range entries(skipsList) {
		if e[1] == "" {
			t.Errorf("%s may skip, and nothing says why", e[0])
		}
	}
}

// What skipped outside is what runs inside, subtests alone.
func TestMissed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "skipped")
	list := "m/a TestA\nm/b TestB/x_y/\"k\":[1,2|3]\nm/a TestC\nm/a TestA\n"
	if err := os.WriteFile(path, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	only, err := options{from: path}.missed()
	if err != nil || len(only) != 2 || only["m/a"] != "^TestA$|^TestC$" || only["m/b"] != `^TestB$/^x_y$/^"k":\[1,2\|3\]$` {
		t.Errorf("%q, %v", only, err)
	}
	if _, err := (options{from: path + "?"}).missed(); err == nil {
		t.Error("no list is no error, though nobody knows what skipped")
	}
	if err := os.WriteFile(path, []byte("TestA\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (options{from: path}).missed(); err == nil {
		t.Error("half a line is no error")
	}
}

// As many runs as there are parts run every test, and each runs what the list of all runs names.
func TestRotation(t *testing.T) {
	var tests []string
	for i := range 90 {
		tests = append(tests, fmt.Sprintf("m/plugin TestPolicy/case_%d", i))
	}
	const parts = 6
	runs := map[string]int{}
	for number := 1000; number < 1000+parts; number++ {
		part, err := parseRotation(fmt.Sprintf("%d/%d", number, parts))
		if err != nil {
			t.Fatal(err)
		}
		chosen, err := part.choose(tests, []string{`/plugin TestPolicy/case_7$`})
		if err != nil {
			t.Fatal(err)
		}
		if len(chosen) > len(tests)/2 {
			t.Errorf("part %v has %d of %d tests", part, len(chosen), len(tests))
		}
		for _, test := range chosen {
			runs[test]++
		}
	}
	for _, test := range tests {
		want := 1
		if test == "m/plugin TestPolicy/case_7" {
			want = parts
		}
		if runs[test] != want {
			t.Errorf("%s runs %d times in %d runs, want %d", test, runs[test], parts, want)
		}
	}
}

// A line of the list of all runs that matches nothing ends the run, with its text.
func TestRotationStaleLine(t *testing.T) {
	dir := t.TempDir()
	skipped, always := filepath.Join(dir, "skipped"), filepath.Join(dir, "always")
	for path, text := range map[string]string{skipped: "m/a TestA\nm/a TestB\n", always: "/a TestA$\n/a TestGone$\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := options{from: skipped, part: "3/2", always: always}.missed()
	if err == nil || !strings.Contains(err.Error(), "/a TestGone$ matches no test") {
		t.Errorf("error %v", err)
	}
	for _, part := range []string{"3", "3/0", "-1/2", "x/2"} {
		if _, err := (options{from: skipped, part: part, always: always}).missed(); err == nil {
			t.Errorf("-part %s is no error", part)
		}
	}
}
