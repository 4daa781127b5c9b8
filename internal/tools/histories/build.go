package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// An edit is a change of a file of the tree, which only the compiler sees.
type edit struct{ file, old, new string }

// patience are edits that take away bounds on time. A call that waits for its turn has the time of the history.
func patience() []edit {
	return []edit{
		{"kernel/world.go", "const turnBound = 45 * time.Second", "const turnBound = time.Hour"},
		{"kernel/record/lock.go", "const lockBound = 45 * time.Second", "const lockBound = time.Hour"},
		{"attach/attach.go", "const DefaultRollback = 30 * time.Second", "const DefaultRollback = time.Hour"},
		{"plugin/dhcp/dhcp.go", "addLimit = 5 * time.Minute", "addLimit = time.Hour"},
		{"plugin/dhcp/dhcp.go", "delLimit = 15 * time.Second", "delLimit = time.Hour"},
		{"plugin/dhcp/dhcp.go", "askLimit = 20 * time.Second", "askLimit = time.Hour"},
		{"sdk/verbs.go", "context.WithoutCancel(ctx), 5*time.Second)", "context.WithoutCancel(ctx), time.Hour)"},
	}
}

// build builds the command and the program agent into a directory, with those edits, and without bounds on time.
func build(root, dir string, edits ...edit) (program string, err error) {
	program = filepath.Join(dir, "fairlead")
	texts := map[string]string{}
	for _, e := range append(patience(), edits...) {
		path, err := filepath.Abs(filepath.Join(root, e.file))
		if err != nil {
			return "", err
		}
		if _, read := texts[path]; !read {
			b, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			texts[path] = string(b)
		}
		if n := strings.Count(texts[path], e.old); n != 1 {
			return "", fmt.Errorf("%s has %d times, not once:\n%s", e.file, n, e.old)
		}
		texts[path] = strings.Replace(texts[path], e.old, e.new, 1)
	}
	replaced := map[string]string{}
	for path, text := range texts {
		replaced[path] = filepath.Join(dir, fmt.Sprint(len(replaced))+".go")
		if err := os.WriteFile(replaced[path], []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o644); err != nil {
		return "", err
	}
	for _, main := range []struct{ dir, path, program string }{{".", "./cmd/fairlead", program},
		{"internal/tools", "./histories/agent", agentOf(program)}} {
		cmd := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-overlay", list, "-o", main.program, main.path)
		cmd.Dir = filepath.Join(root, main.dir)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	return program, nil
}
