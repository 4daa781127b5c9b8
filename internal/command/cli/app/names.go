package app

import (
	"fmt"
	"strings"
)

// Names lists names for an error: the first five, and how many more there are.
func Names(all []string) string {
	const most = 5
	if more := len(all) - most; more > 0 {
		all = append(all[:most:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, ", ")
}
