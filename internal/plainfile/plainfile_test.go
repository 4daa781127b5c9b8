package plainfile

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What has the name of a file of state, and is none, is named. It is neither waited for nor read.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, text := range map[string]string{"empty": "", "full": "0123456789"} {
		if b, err := Read(write(name, text), 10); err != nil || string(b) != text {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if _, err := Read(filepath.Join(dir, "none"), 10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	pipe, link, loop, socket := filepath.Join(dir, "pipe"), filepath.Join(dir, "link"), filepath.Join(dir,
		"loop"), filepath.Join(dir, "socket")
	huge := write("huge", "")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.Symlink(pipe, link), os.Symlink(loop, loop),
		os.Truncate(huge, 3<<30)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{pipe: "a named pipe", link: "a symbolic link", loop: "a symbolic link",
		socket: "a socket",
		dir:    "a directory", "/dev/null": "a device", huge: "more than 10 bytes", write("long",
			"0123456789a"): "more than 10 bytes"} {
		b, err := Read(path, 10)
		if !errors.Is(err, ErrNotPlain) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %d bytes, %v, want %q", path, len(b), err, want)
		}
	}
	if _, err := Read(filepath.Join(dir, "empty", "x"), 10); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
	// Of what a person may have put somewhere else, a link is followed, and leads to no pipe either.
	full := filepath.Join(dir, "to full")
	if err := os.Symlink(filepath.Join(dir, "full"), full); err != nil {
		t.Fatal(err)
	}
	if b, err := ReadLinked(full, 10); err != nil || string(b) != "0123456789" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := ReadLinked(link, 10); !errors.Is(err, ErrNotPlain) ||
		!strings.Contains(err.Error(), "a named pipe") {
		t.Error(err)
	}
}
