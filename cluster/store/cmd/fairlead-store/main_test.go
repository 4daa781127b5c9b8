package main

import (
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The manual page, which is made of the source, has each flag of -h.
func TestManual(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/man/fairlead-store.1")
	if err != nil {
		t.Fatal(err)
	}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = in
	err = run(t.Context(), []string{"-h"})
	os.Stdout = stdout
	if cerr := in.Close(); !errors.Is(err, flag.ErrHelp) || cerr != nil {
		t.Fatal(err, cerr)
	}
	help, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	flags := regexp.MustCompile(`(?m)^  -([a-z-]+)`).FindAllSubmatch(help, -1)
	text := strings.ReplaceAll(string(page), `\-`, "-")
	if n := strings.Count(text, `\fB--`); len(flags) < 3 || n != len(flags) {
		t.Errorf("-h has %d flags, and the page %d: %s", len(flags), n, text)
	}
	for _, f := range flags {
		if !strings.Contains(text, `\fB--`+string(f[1])+`\fP`) {
			t.Errorf("the page lacks --%s", f[1])
		}
	}
}

// A configuration without a directory is named, and is no error of mkdir.
func TestNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.json")
	for _, content := range []string{"", "{}"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		err := run(t.Context(), []string{"--config-file", file})
		if want := file + " has no data-dir"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", content, err, want)
		}
	}
}

// A member that was removed says so, also where its listeners are the first to end.
func TestReason(t *testing.T) {
	other := errors.New("server is stopping")
	stopping := make(chan struct{})
	if err := reason("m1", stopping, other); err != other {
		t.Error(err)
	}
	close(stopping)
	if err := reason("m1", stopping, other); err == nil || !strings.Contains(err.Error(), "the member m1 has ended: it was removed") {
		t.Error(err)
	}
}
