// Package kubetest has tests of fairlead-agent with a real API server. They need programs that `make test-kube` builds,
// and so the build tag kube.
package kubetest
