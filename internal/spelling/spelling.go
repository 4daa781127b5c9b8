// Package spelling finds the word that a person meant who mistyped it.
package spelling

import "strings"

// Nearest returns the element of among that a person who typed word may have meant.
func Nearest(word string, among []string) (string, bool) {
	best, found := max(1, len(word)/3)+1, ""
	for _, w := range among {
		if away := max(len(word)-len(w), len(w)-len(word)); away >= best || away >= len(w) {
			continue // there are at least so many edits, and each costs time for both lengths
		}
		if d := distance(strings.ToLower(word), strings.ToLower(w)); d < best && (d < len(w) || d == 0) {
			best, found = d, w
		}
	}
	return found, found != ""
}

// distance returns the number of edits from a to b. An edit inserts, deletes or replaces a character, or swaps two
// neighbours.
func distance(a, b string) int {
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
