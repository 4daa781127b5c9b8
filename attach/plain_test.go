package attach_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
)

// What lies in the cache and is no file is named, and costs nobody anything but whose name it has. Those get a new one
// at their ADD.
//
// clause: R6
func TestCacheNoFile(t *testing.T) {
	w := newWorld(t)
	l := chain(t, "1.0.0", three[:1], nil)
	a, b := web(t), web(t)
	b.ContainerID = "db"
	if _, err := w.Add(bounded(t), l, a); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(w.CacheDir, "results")
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(syscall.Mkfifo(path("pipe"), 0o600), syscall.Mkfifo(path("lan-db-eth0"), 0o600),
		os.Symlink("/dev/zero", path("link")),
		os.WriteFile(path("huge"), nil, 0o600), os.Truncate(path("huge"), 3<<30)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		list, problems := w.List("")
		if len(list) != 1 || list[0].ContainerID != "web" {
			t.Errorf("list %v", list)
		}
		for _, want := range []string{"pipe: it is no plain file", "lan-db-eth0: it is no plain file",
			"link: it is no plain file", "huge: it is no plain file"} {
			if len(problems) != 4 || !strings.Contains(fmt.Sprint(problems), want) {
				t.Errorf("problems %v, want %q", problems, want)
			}
		}
		if err := w.Check(bounded(t), l, a); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		if err := w.Del(bounded(t), l, b); err != nil {
			t.Errorf("DEL of who has a pipe: %v", err)
		}
		for _, a := range []attach.Attachment{a, b} {
			if err := w.Del(bounded(t), l, a); err != nil {
				t.Errorf("DEL: %v", err)
			}
			if _, err := w.Add(bounded(t), l, a); err != nil {
				t.Errorf("ADD: %v", err)
			}
		}
	}()
	select {
	case <-done:
	case <-bounded(t).Done():
		t.Fatal("a pipe in the cache is waited for")
	}
}
