package app

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Operands returns the Args function of a command with these operands. It names a missing one. Optional ones are in
// brackets.
func Operands(names string) cobra.PositionalArgs {
	want := strings.Fields(names)
	return func(c *cobra.Command, args []string) error {
		for i, name := range want {
			if i >= len(args) && !strings.HasPrefix(name, "[") {
				return Misused(c, fmt.Errorf("%s is missing", name))
			}
		}
		if len(args) > len(want) {
			return Misused(c, fmt.Errorf("%q is one argument too many", args[len(want)]))
		}
		return nil
	}
}

// Misused adds to err how c is called.
func Misused(c *cobra.Command, err error) error {
	_, name, _ := strings.Cut(c.CommandPath(), " ")
	if name != "" {
		name += ": "
	}
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) && errors.As(err, new(*strconv.NumError)) {
		err = fmt.Errorf("invalid argument %q for \"--%s\" flag: want a number", bad.GetValue(), bad.GetFlag().Name)
	}
	return Fail(ExitUsage, "Usage: "+c.UseLine(), "%s%w", name, err)
}

// AtLeast is Operands for a command whose last operand may be repeated.
func AtLeast(names string) cobra.PositionalArgs {
	n := len(strings.Fields(names))
	return func(c *cobra.Command, args []string) error { return Operands(names)(c, args[:min(n, len(args))]) }
}
