// Package cli is the fairlead command: it runs a command on a network, attaches and detaches network
// namespaces, and says what is attached and what would be done.
package cli

import (
	"os"
)

// Main runs the command line args (without the program's name) and returns the exit status. Version is
// what `fairlead version` answers.
func Main(args []string, version string, stdin, stdout, stderr *os.File) int {
	return exitUsage
}

// The exit statuses.
const (
	exitOK       = 0
	exitFailure  = 1
	exitUsage    = 2
	exitDrift    = 3 // check found something missing or changed
	exitNotFound = 4 // no such network, network namespace or attachment
	exitTryAgain = 5 // a passing condition (the protocol's code 11)
)
