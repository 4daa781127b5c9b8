package app

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// RunBeside becomes another program of Fairlead, which lies beside this one or in a directory of PATH. Hint says how to
// install it.
func RunBeside(program string, args []string, hint string) error {
	path, err := beside(program)
	if err != nil {
		return Fail(ExitUsage, hint, "%s is neither beside fairlead nor in PATH: %w", program, err)
	}
	return syscall.Exec(path, append([]string{program}, args...), os.Environ())
}

// beside returns the path of a program.
func beside(program string) (string, error) {
	if self, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(self), program)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return exec.LookPath(program)
}
