// Package script runs the scripts of cli/testdata/script, which test the command.
package script
