//go:build kube

package kubetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
)

// The API server lets an agent change the annotation with the key of the node that its pod runs on, and nothing else of
// any node.
func TestTunnelPolicy(t *testing.T) {
	c := newCluster(t)
	const account = "/api/v1/namespaces/fairlead/serviceaccounts"
	const rbac = "/apis/rbac.authorization.k8s.io/v1/clusterrole"
	const admission = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
	c.create("/api/v1/namespaces", `{"metadata":{"name":"fairlead"}}`)
	c.create(account, `{"metadata":{"name":"fairlead-agent"}}`)
	c.createAll("rbac.yaml", rbac+"s", rbac+"bindings")
	c.createAll("policy.yaml", admission+"ies", admission+"ybindings")

	const request = `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{%s}}`
	tokens := map[string]string{}
	for _, node := range []string{"n1", "n2"} {
		c.create("/api/v1/nodes", fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"zone":"a"}}}`, node))
		pod := c.create("/api/v1/namespaces/fairlead/pods", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"nodeName":%[1]q,
			"serviceAccountName":"fairlead-agent","containers":[{"name":"agent","image":"agent"}]}}`, node))
		bound := fmt.Sprintf(`"boundObjectRef":{"apiVersion":"v1","kind":"Pod","name":%q,"uid":%q}`, node, pod.Metadata.UID)
		tokens[node] = c.create(account+"/fairlead-agent/token", fmt.Sprintf(request, bound)).Status.Token
	}
	ofNoPod := c.create(account+"/fairlead-agent/token", fmt.Sprintf(request, "")).Status.Token

	const key = "fairlead-cni.github.io/wireguard"
	const own = `{"metadata":{"annotations":{"` + key + `":"{}"}}}`
	const (
		otherNode = "may change the Node object of the node that it runs on, and no other"
		notKey    = "may change the annotation " + key
		notMeta   = "may change an annotation of its Node object, and nothing else"
	)
	patch := func(token, node, change string) error {
		_, err := c.as(token, http.MethodPatch, "/api/v1/nodes/"+node, change)
		return err
	}
	c.eventually(func() error { // the API server learns of a right and of a policy some time after it took them
		err := patch(tokens["n1"], "n2", own)
		if err == nil || !strings.Contains(err.Error(), otherNode) {
			return fmt.Errorf("the agent of n1 writes the key of n2: %v, want %q", err, otherNode)
		}
		return nil
	})
	for _, test := range []struct{ about, token, node, change, denied string }{
		{"its own key", tokens["n1"], "n1", own, ""},
		{"its own key, again", tokens["n1"], "n1", `{"metadata":{"annotations":{"` + key + `":"{\"port\":1}"}}}`, ""},
		{"the key of another node", tokens["n1"], "n2", own, otherNode},
		{"no key of another node", tokens["n2"], "n1", `{"metadata":{"annotations":null}}`, otherNode},
		{"a key without a node", ofNoPod, "n1", own, otherNode},
		{"a label", tokens["n1"], "n1", `{"metadata":{"labels":{"zone":"b"}}}`, notMeta},
		{"its pods' range", tokens["n1"], "n1", `{"spec":{"podCIDR":"10.9.0.0/24","podCIDRs":["10.9.0.0/24"]}}`, notMeta},
		{"a taint", tokens["n1"], "n1", `{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`, notMeta},
		{"another annotation", tokens["n1"], "n1", `{"metadata":{"annotations":{"a":"b"}}}`, notKey},
		{"no key any more", tokens["n1"], "n1", `{"metadata":{"annotations":{"` + key + `":null}}}`, ""},
	} {
		err := patch(test.token, test.node, test.change)
		if test.denied == "" && err != nil || test.denied != "" && (err == nil || !strings.Contains(err.Error(), test.denied)) {
			t.Errorf("%s: %v, want %q", test.about, err, test.denied)
		}
	}
}

// created is what the API server says of an object that it has created.
type created struct {
	Metadata struct{ UID string }
	Status   struct{ Token string }
}

func (c *cluster) create(path, text string) (o created) {
	c.t.Helper()
	answer, err := c.as(admin, http.MethodPost, path, text)
	if err == nil {
		err = json.Unmarshal(answer, &o)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return o
}

// createAll creates the objects in a file of the component cluster/wireguard, each at one of the paths.
func (c *cluster) createAll(file string, paths ...string) {
	c.t.Helper()
	text, err := os.ReadFile("../../packaging/kubernetes/cluster/wireguard/" + file)
	if err != nil {
		c.t.Fatal(err)
	}
	for i, document := range strings.Split(string(text), "\n---\n") {
		c.create(paths[i], document)
	}
}
