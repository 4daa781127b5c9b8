// Package kerneltest has what the tests of the packages here share.
package kerneltest

import (
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// Open is a new namespace, open until the test ends.
func Open(t testing.TB) *kernel.NS {
	t.Helper()
	ns, err := kernel.Open(nstest.NewNS(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	return ns
}
