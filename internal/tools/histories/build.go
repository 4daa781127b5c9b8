package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// An edit is a change of a file of the tree, which only the compiler sees.
type edit struct{ file, old, new string }

// programs are the command twice, by the patience of its calls: the clock that bounds a wait for a lock goes by
// histories, not by time.
type programs struct{ endless, none string }

// of is the program for a script.
func (p programs) of(s *script) string {
	if s.impatient {
		return p.none
	}
	return p.endless
}

// clocks are the bounds of the waits that histories are about.
func clocks(turn string) []edit {
	const world, lock = "kernel/world.go", "kernel/record/lock.go"
	return []edit{
		{world, "const turnBound = 45 * time.Second", "const turnBound = " + turn + " * time.Hour"},
		{lock, "const lockBound = 45 * time.Second", "const lockBound = time.Hour"},
	}
}

// build builds the command into a directory, as it is for the edits.
func build(root, dir string, edits ...edit) (p programs, err error) {
	p = programs{filepath.Join(dir, "endless", "fairlead"), filepath.Join(dir, "none", "fairlead")}
	err = errors.Join(compile(root, p.endless, append(clocks("1"), edits...)))
	return p, errors.Join(err, compile(root, p.none, append(clocks("0"), edits...)))
}

func compile(root, program string, edits []edit) error {
	dir := filepath.Dir(program)
	texts := map[string]string{}
	for _, e := range edits {
		path, err := filepath.Abs(filepath.Join(root, e.file))
		if err != nil {
			return err
		}
		if _, read := texts[path]; !read {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			texts[path] = string(b)
		}
		if n := strings.Count(texts[path], e.old); n != 1 {
			return fmt.Errorf("%s has %d times, not once:\n%s", e.file, n, e.old)
		}
		texts[path] = strings.Replace(texts[path], e.old, e.new, 1)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	replaced := map[string]string{}
	for path, text := range texts {
		replaced[path] = filepath.Join(dir, fmt.Sprint(len(replaced))+".go")
		if err := os.WriteFile(replaced[path], []byte(text), 0o644); err != nil {
			return err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o644); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-buildvcs=false", "-overlay", list, "-o", program, "./cmd/fairlead")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}
