// Package sample is what mutate changes in its own tests.
package sample

import "errors"

var errNegative = errors.New("a negative number")

// Tests do not ask how many were negative.
type sums struct{ lost int }

func (s *sums) add(a, b int) (int, error) {
	if a < 0 {
		s.lost++
		return a, errNegative
	}
	return a + b, nil
}
