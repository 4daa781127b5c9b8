package sysctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// An AllowList requires that the administrator allows sysctls to be set. Each key, as the configuration writes it,
// must match a line of a file. A line is an unanchored regular expression. Without the file, all keys are allowed.
type AllowList struct {
	File    string
	Sysctls []NetSysctl
}

func (a AllowList) String() string {
	var keys []string
	for _, s := range a.Sysctls {
		keys = append(keys, s.Key)
	}
	return "sysctl " + strings.Join(keys, ", ") + " allowed by " + a.File
}

// Verify returns an error for a key that is not allowed. If the list cannot be read or a line is not a regular
// expression, no key is allowed.
func (a AllowList) Verify(_ context.Context, _ *kernel.World) error {
	text, err := ReadSmall(a.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return spec.Errorf(spec.CodeConfig, "the list of allowed sysctls cannot be read, so none is: %w", err)
	}
	var lines []string
	var patterns []*regexp.Regexp
	for i, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		p, err := regexp.Compile(line)
		if err != nil {
			return spec.Errorf(spec.CodeConfig, "%s: line %d: %q: %w", a.File, i+1, line, err)
		}
		lines, patterns = append(lines, line), append(patterns, p)
	}
	var errs []error
	for _, s := range a.Sysctls {
		if !slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(s.Key) }) {
			errs = append(errs, spec.Errorf(spec.CodeConfig, "%s: not allowed by %s, whose patterns are %q", s.At,
				a.File, lines))
		}
	}
	return errors.Join(errs...)
}

// ReadSmall reads a regular file of at most a megabyte. It does not wait for a pipe or device.
func ReadSmall(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", name)
	}
	const most = 1 << 20
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && len(text) > most {
		err = fmt.Errorf("%s has more than %d bytes", name, most)
	}
	return text, err
}
