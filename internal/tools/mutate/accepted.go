package main

import (
	"fmt"
	"os"
	"strings"
)

// readAccepted reads the mutants that may survive: the name of a mutant at the left margin, and below it, indented, why
// no test can or has to notice. Lines that begin with # are comments.
func readAccepted(path string) (reasons map[string]string, err error) {
	reasons = map[string]string{}
	if path == "" {
		return reasons, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	name := ""
	for line := range strings.Lines(string(text)) {
		said := strings.TrimSpace(line)
		indented := said != strings.TrimRight(line, " \n")
		switch {
		case said == "" || strings.HasPrefix(line, "#"):
		case !indented:
			name = said
			reasons[name] = ""
		case name == "":
			return nil, fmt.Errorf("%s: a reason without a mutant: %s", path, said)
		default:
			reasons[name] = strings.TrimSpace(reasons[name] + " " + said)
		}
	}
	for name, reason := range reasons {
		if reason == "" {
			return nil, fmt.Errorf("%s: %s has no reason: write it below, indented", path, name)
		}
	}
	return reasons, nil
}
