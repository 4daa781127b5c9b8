// Package script runs the scripts of internal/command/cli/testdata/script, which test the command.
package script
