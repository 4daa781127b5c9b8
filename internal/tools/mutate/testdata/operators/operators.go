// Package operators has something for each operator of mutate.
package operators

import (
	"errors"
	"log"
	"os"
	"sync"
)

var errNegative = errors.New("a negative number")

// Sum returns the sum of the numbers below n that are not odd.
func Sum(n int) (sum int, err error) {
	if n < 0 {
		log.Print("n is negative")
		return 0, errNegative
	}
	for i := 0; i < n; i++ {
		if i%2 == 0 {
			sum += i
		}
	}
	return sum, nil
}

// A Counter counts what nobody asks for.
type Counter struct {
	mu      sync.Mutex
	n, lost int
}

// Add adds one.
func (c *Counter) Add(ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	if !ok && c.n > 0 {
		c.lost++
	}
}

// Clean removes a directory's files.
func Clean(dir string) error { return os.RemoveAll(dir) }
