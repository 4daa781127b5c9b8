// Command fairlead-conformance holds CNI plugins and runtimes of any vendor to the specification.
package main

import (
	"os"

	"github.com/fairlead-cni/fairlead/internal/conformance"
)

func main() {
	conformance.Work()
	os.Exit(conformance.Main(os.Args[1:], os.Stdout, os.Stderr))
}
