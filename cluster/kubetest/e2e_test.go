//go:build kube

package kubetest

import (
	"cmp"
	"os"
	"testing"
)

// sigNetwork are the end-to-end tests of Kubernetes about networks that each conformant cluster has to pass, and those
// that look at the source of packets. dualStack are those of clusters with both families.
const (
	sigNetwork = `\[sig-network\].*\[Conformance\]|\[sig-network\] NoSNAT|allow pods to hairpin|preserve source pod IP`
	dualStack  = `|\[Feature:IPv6DualStack\]`
	sctp       = `\[Feature:SCTPConnectivity\]` // which many kernels lack
)

// testEndToEnd runs Kubernetes' end-to-end tests, or those that E2E_FOCUS and E2E_SKIP leave of them.
func testEndToEnd(t *testing.T, families string) {
	s := newSite(t, families, "nftables")
	s.startDNS()
	focus := sigNetwork
	if len(families) == 2 {
		focus += dualStack
	}
	p := start(t, program(t, "e2e.test"), "--kubeconfig", s.kubectl, "--kubectl-path", program(t, "kubectl"),
		"--provider", "skeleton", "--num-nodes", "3", "--ginkgo.focus", cmp.Or(os.Getenv("E2E_FOCUS"), focus),
		"--ginkgo.skip", cmp.Or(os.Getenv("E2E_SKIP"), sctp), "--ginkgo.timeout", "4h", "--ginkgo.no-color", "--ginkgo.v")
	p.log()
	if err := p.wait(); err != nil {
		t.Fatal("e2e.test:", err)
	}
}

func TestConformance(t *testing.T)          { testEndToEnd(t, "4") }
func TestConformanceIPv6(t *testing.T)      { testEndToEnd(t, "6") }
func TestConformanceDualStack(t *testing.T) { testEndToEnd(t, "46") }
