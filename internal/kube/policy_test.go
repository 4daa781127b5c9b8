package kube

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	admission "k8s.io/api/admissionregistration/v1"
)

// denies evaluates a policy as an API server does, and returns the message of what denies a request. Where an expression has no
// value, the policy fails.
func denies(t *testing.T, p admission.ValidatingAdmissionPolicy, before, after, req map[string]any) (message string) {
	t.Helper()
	env, err := cel.NewEnv(cel.OptionalTypes(), cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType),
		cel.Variable("variables", cel.DynType), cel.Variable("request", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]any{}
	evaluate := func(expression string) (any, error) {
		ast, issues := env.Compile(expression)
		if issues.Err() != nil {
			t.Fatalf("%s: %v", expression, issues.Err())
		}
		program, err := env.Program(ast)
		if err != nil {
			t.Fatal(err)
		}
		v, _, err := program.Eval(map[string]any{"object": after, "oldObject": before, "variables": variables, "request": req})
		if err != nil {
			return nil, err
		}
		return v.Value(), nil
	}
	for _, c := range p.Spec.MatchConditions {
		if v, err := evaluate(c.Expression); err != nil || v != true {
			return ""
		}
	}
	for _, v := range p.Spec.Variables {
		value, err := evaluate(v.Expression)
		if err != nil {
			return v.Name + ": " + err.Error()
		}
		variables[v.Name] = value
	}
	for _, v := range p.Spec.Validations {
		value, err := evaluate(v.Expression)
		if err != nil {
			return err.Error()
		}
		if value != true {
			return v.Message
		}
	}
	return ""
}

// An agent changes the annotation with the key of its own node, and nothing else of any node.
func TestTunnelPolicy(t *testing.T) {
	r := render(t, "cluster", "cluster/wireguard")
	agent := "system:serviceaccount:" + r.account.Namespace + ":" + r.account.Name
	if r.binds.Spec.PolicyName != r.policy.Name || !slices.Equal(r.binds.Spec.ValidationActions, []admission.ValidationAction{admission.Deny}) ||
		*r.policy.Spec.FailurePolicy != admission.Fail {
		t.Errorf("%+v, %+v", r.binds.Spec, r.policy.Spec)
	}
	if settings := r.config(t, r.container(t, "agent").EnvFrom[0].ConfigMapRef.Name).Data; settings["MODE"] != "wireguard" || settings["NETWORK"] != "pods" {
		t.Errorf("%v", settings)
	}
	const key = "fairlead-cni.github.io/wireguard"
	const other, nothing = "may change the Node object of the node that it runs on", "may change an annotation of its Node object, and nothing else"
	const annotation = "may change the annotation " + key
	type object = map[string]any
	node := func(annotations object) object {
		n := object{"metadata": object{"name": "n1", "labels": object{"zone": "a"}}, "spec": object{"podCIDR": "10.244.1.0/24"}}
		if annotations != nil {
			n["metadata"].(object)["annotations"] = annotations
		}
		return n
	}
	const node1 = "authentication.kubernetes.io/node-name"
	own := object{node1: []string{"n1"}}
	for name, tc := range map[string]struct {
		user          string
		extra         object
		before, after object
		want          string
	}{
		"its key":              {agent, own, node(object{"a": "1"}), node(object{"a": "1", key: "K"}), ""},
		"its first annotation": {agent, own, node(nil), node(object{key: "K"}), ""},
		"another key":          {agent, own, node(object{key: "J"}), node(object{key: "K"}), ""},
		"no key any more":      {agent, own, node(object{key: "J", "a": "1"}), node(object{"a": "1"}), ""},
		"its last annotation":  {agent, own, node(object{key: "J"}), node(nil), ""},
		"another node":         {agent, object{node1: []string{"n2"}}, node(nil), node(object{key: "K"}), other},
		"a token of no node":   {agent, object{}, node(nil), node(object{key: "K"}), other},
		"another annotation":   {agent, own, node(nil), node(object{"b": "K"}), annotation},
		"changed annotation":   {agent, own, node(object{"a": "1"}), node(object{"a": "2"}), annotation},
		"removed annotation":   {agent, own, node(object{"a": "1"}), node(object{key: "K"}), annotation},
		"the spec":             {agent, own, node(nil), object{"metadata": node(nil)["metadata"], "spec": object{}}, nothing},
		"a label":              {agent, own, node(nil), object{"metadata": object{"name": "n1"}, "spec": node(nil)["spec"]}, nothing},
		"another user":         {"admin", object{}, node(object{"a": "1"}), node(object{"a": "2"}), ""},
	} {
		req := object{"userInfo": object{"username": tc.user, "extra": tc.extra}}
		got := denies(t, r.policy, tc.before, tc.after, req)
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q; want %q", name, got, tc.want)
		}
	}
}
