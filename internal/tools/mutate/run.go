package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A verdict is what became of a mutant.
type verdict string

const (
	killed     verdict = "killed"
	overtime   verdict = "overtime" // killed too: the tests did not end
	survived   verdict = "survived"
	uncompiled verdict = "uncompiled"
)

// A target is a package to mutate, and the packages whose tests have to notice.
type target struct {
	dir   string
	tests []string
	took  time.Duration // the tests without a mutant
	rest  []*mutant     // not tried yet
}

// parseTarget reads PACKAGE or PACKAGE=TESTS,TESTS: directories below the root.
func parseTarget(text string) *target {
	dir, tests, told := strings.Cut(text, "=")
	if !told {
		tests = dir
	}
	return &target{dir: filepath.Clean(dir), tests: strings.Split(tests, ",")}
}

// A runner compiles and runs tests in a directory of its own.
type runner struct {
	root, work string
}

// measure runs a target's tests as they are. They have to pass, and tell how long mutants may take.
func (r *runner) measure(t *target) error {
	begin := time.Now()
	found, out, err := r.run(t, "", time.Hour)
	if err != nil {
		return err
	}
	if found != survived {
		return fmt.Errorf("the tests of %s fail without a mutant:\n%s", t.dir, out)
	}
	t.took = time.Since(begin)
	return nil
}

// try runs a target's tests on a mutant.
func (r *runner) try(t *target, m *mutant) (verdict, error) {
	path := filepath.Join(r.root, m.dir, m.file)
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	mutated := filepath.Join(r.work, "mutated.go")
	replaced, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutated}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(r.work, "overlay.json")
	if err := errors.Join(os.WriteFile(mutated, m.apply(text), 0o644), os.WriteFile(overlay, replaced, 0o644)); err != nil {
		return "", err
	}
	// Where a test waits for an event that does not come, it waits until shortly before the bound.
	found, _, err := r.run(t, overlay, time.Minute+3*t.took)
	return found, err
}

// run compiles and runs the tests of a target with an overlay, if there is one, each within a bound.
func (r *runner) run(t *target, overlay string, bound time.Duration) (found verdict, out []byte, err error) {
	for _, tests := range t.tests {
		found, out, err = r.test(filepath.Join(r.root, tests), overlay, bound)
		if err != nil || found != survived {
			return found, out, err
		}
	}
	return survived, nil, nil
}

func (r *runner) test(dir, overlay string, bound time.Duration) (found verdict, out []byte, err error) {
	binary := filepath.Join(r.work, "tests")
	if err := os.RemoveAll(binary); err != nil {
		return "", nil, err
	}
	args := []string{"test", "-c", "-o", binary}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	compile := exec.Command("go", append(args, ".")...)
	compile.Dir = dir
	out, err = compile.CombinedOutput()
	if _, isExit := errors.AsType[*exec.ExitError](err); isExit {
		return uncompiled, out, nil
	}
	if err != nil {
		return "", nil, err
	}
	if _, err := os.Stat(binary); err != nil {
		return "", nil, fmt.Errorf("%s has no tests: say which have to notice, as PACKAGE=TESTS", dir)
	}

	var said bytes.Buffer
	cmd := jail(r.work, dir, binary, "-test.failfast", "-test.paniconexit0", "-test.timeout="+bound.String())
	cmd.Stdout = &said
	cmd.Stderr = os.Stderr // of the jail; the tests have one output
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	late := time.AfterFunc(bound+time.Minute, func() { cmd.Process.Kill() })
	defer late.Stop()
	err = cmd.Wait()
	if err == nil {
		return survived, said.Bytes(), nil
	}
	exit, isExit := errors.AsType[*exec.ExitError](err)
	tooLong := bytes.Contains(said.Bytes(), []byte("panic: test timed out after"))
	switch {
	case !isExit || exit.ExitCode() == jailFailed:
		return "", nil, fmt.Errorf("run the tests of %s: %w", dir, err)
	case tooLong || !exit.Exited():
		return overtime, said.Bytes(), nil
	}
	return killed, said.Bytes(), nil
}
