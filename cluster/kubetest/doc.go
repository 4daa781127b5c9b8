// Package kubetest has tests of fairlead-agent with a real API server, and on nodes with kubelet, kube-proxy and
// containerd. They need programs that `make test-kube` and `make test-kube-nodes` build, and so the build tag kube.
package kubetest
