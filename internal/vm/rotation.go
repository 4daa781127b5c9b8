package main

import (
	"fmt"
	"hash/fnv"
	"os"
	"regexp"
	"slices"
	"strings"
)

// A rotation is one of several parts of the tests that skipped outside. Runs with successive numbers run all parts, so
// every test runs within Parts runs.
type rotation struct{ Part, Parts int }

// parseRotation reads NUMBER/PARTS, where the number may be any count of runs: 17/8 is part 1 of 8.
func parseRotation(text string) (r rotation, err error) {
	if _, err := fmt.Sscanf(text, "%d/%d", &r.Part, &r.Parts); err != nil || r.Parts < 1 || r.Part < 0 {
		return r, fmt.Errorf("-part %s: want NUMBER/PARTS, such as 17/8", text)
	}
	r.Part %= r.Parts
	return r, nil
}

// has reports whether a test is in the part. Its name alone decides, so a test that is added or removed moves no other
// one into a part that has run already.
func (r rotation) has(test string) bool {
	sum := fnv.New32a()
	sum.Write([]byte(test))
	return int(sum.Sum32()%uint32(r.Parts)) == r.Part
}

// choose returns the tests, each a package and a name, that are in the part or that an expression of always matches. An
// expression that matches none is an error: its test is gone, or does not skip any more.
func (r rotation) choose(tests, always []string) (chosen []string, err error) {
	matched := map[string]bool{}
	for _, text := range always {
		expression, err := regexp.Compile(text)
		if err != nil {
			return nil, err
		}
		found := false
		for _, test := range tests {
			if expression.MatchString(test) {
				matched[test], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("%s matches no test that skipped outside: correct or remove this line", text)
		}
	}
	for _, test := range tests {
		if matched[test] || r.has(test) {
			chosen = append(chosen, test)
		}
	}
	return chosen, nil
}

// readLines returns the lines of a file, each once, in order.
func readLines(path string) (all []string, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
