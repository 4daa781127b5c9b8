//go:build !race

package nstest

// Race is whether the race detector runs, with which nothing takes the time that it takes without.
const Race = false
