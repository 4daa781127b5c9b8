package calls

import (
	"strings"
	"testing"
)

// A pod's name has its namespace, and the first value of a key counts.
func TestPodName(t *testing.T) {
	for args, want := range map[string]string{
		"K8S_POD_NAMESPACE=a;K8S_POD_NAME=b":                                    "a/b",
		"K8S_POD_NAME=b;K8S_POD_NAMESPACE=a;K8S_POD_NAME=c;K8S_POD_NAMESPACE=d": "a/b",
		"K8S_POD_NAME=b":      "b",
		"K8S_POD_NAMESPACE=a": "",
		"POD=b":               "",
	} {
		var pairs [][2]string
		for pair := range strings.SplitSeq(args, ";") {
			key, value, _ := strings.Cut(pair, "=")
			pairs = append(pairs, [2]string{key, value})
		}
		if got := PodName(pairs); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}
