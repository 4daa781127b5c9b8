// Package faults has the tests that break the network of a cluster while packets pass, and count what is lost, and the
// benchmarks of a cluster of 1,000 nodes.
package faults
