// Package kerneltest holds helpers for the tests of the kernel packages.
package kerneltest

import (
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// Open returns a new network namespace, which is closed at the end of the test.
func Open(t testing.TB) *kernel.NS {
	t.Helper()
	ns, err := kernel.Open(nstest.NewNS(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	return ns
}
