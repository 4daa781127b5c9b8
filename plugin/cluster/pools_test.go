package cluster

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/spec"
)

// givePools writes a grant of a node in a cluster with these pools.
func givePools(t *testing.T, ranges ...string) {
	t.Helper()
	give(t, ranges...)
	changeGrant(t, func(g *grant.Grant) {
		g.Pools = []grant.Pool{{Name: "x", Prefix: netip.MustParsePrefix("10.8.0.0/16")},
			{Name: "y", Prefix: netip.MustParsePrefix("10.9.0.0/16")},
			{Name: "fixed", Prefix: netip.MustParsePrefix("10.72.0.0/24"), Pinned: true}}
	})
}

func changeGrant(t *testing.T, change func(*grant.Grant)) {
	t.Helper()
	if err := (&grant.File{Network: "pods"}).Change(change); err != nil {
		t.Fatal(err)
	}
}

// serveWants is an agent that answers with what answer returns: nil, or a refusal. It returns what it was asked for.
func serveWants(t *testing.T, answer func(grant.Want) *grant.Refusal) (asked chan grant.Want) {
	t.Helper()
	l, err := net.Listen("unix", grant.Socket("pods"))
	if err != nil {
		t.Fatal(err)
	}
	asked = make(chan grant.Want, 100)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want, err := grant.WantOf(r.URL.Query())
		if err != nil {
			t.Error(err)
		}
		asked <- want
		if refusal := answer(want); refusal != nil {
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(refusal)
		}
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return asked
}

// inPools is a configuration with keys of ipam.
func inPools(keys string) string {
	return strings.Replace(network(""), `"type":"cluster"}`, `"type":"cluster",`+keys+`}`, 1)
}

func expectError(t *testing.T, got answer, code spec.Code, parts ...string) {
	t.Helper()
	doc, failed := spec.DecodeError(got.out)
	for _, part := range parts {
		if !failed || doc.Code != code || !strings.Contains(doc.Msg+"\n"+doc.Hint, part) {
			t.Errorf("want code %d with %q: %v", code, part, got)
		}
	}
}

// Where no address is left, the error also says that the agent, which was asked for more, does not answer.
func TestUnanswered(t *testing.T) {
	give(t, "10.9.0.0/30")
	if got := call(t, "ADD", "c", network("")); got.status != 0 {
		t.Fatal(got)
	}
	const silent = "fairlead-agent does not answer: "
	expectError(t, call(t, "ADD", "d", network("")), spec.CodeTryAgain, "no address is left in 10.9.0.1-10.9.0.2",
		silent, grant.Socket("pods"), "no such file or directory", "Start fairlead-agent")

	l, err := net.Listen("unix", grant.Socket("pods"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.NotFoundHandler()} // an agent that gets no other ranges
	go server.Serve(l)
	defer server.Close()
	got := call(t, "ADD", "d", network(""))
	expectError(t, got, spec.CodeTryAgain, "no address is left")
	if strings.Contains(string(got.out), silent) {
		t.Errorf("an agent that answers: %v", got)
	}
}

// A container gets an address of the pools that its network names. The agent is asked for those where the node has none.
func TestPools(t *testing.T) {
	givePools(t, "10.8.0.0/26", "10.9.0.0/26")
	for _, tc := range []struct{ id, keys, want string }{
		{"a", `"pool":"x"`, `"10.8.0.2/26"`}, {"b", `"pool":"y"`, `"10.9.0.2/26"`}, {"c", `"pools":["y"]`, `"10.9.0.3/26"`},
	} {
		if got := call(t, "ADD", tc.id, inPools(tc.keys)); !strings.Contains(string(got.out), tc.want) {
			t.Errorf("%s: want %s: %v", tc.keys, tc.want, got)
		}
	}
	expectError(t, call(t, "ADD", "d", inPools(`"pool":"z"`)), spec.CodeConfig, `the node has no pool "z"`)
	expectError(t, call(t, "ADD", "d", inPools(`"pool":"fixed"`)), spec.CodeConfig, `the node has no pool "fixed"`)
	expectError(t, call(t, "ADD", "d", inPools(`"pool":"x","pools":["y"]`)), spec.CodeConfig, "want one of the two")

	givePools(t, "10.8.0.0/26")
	expectError(t, call(t, "ADD", "d", inPools(`"pool":"y"`)), spec.CodeTryAgain, "no block of the pools that the network names", "Start fairlead-agent")
	asked := serveWants(t, func(grant.Want) *grant.Refusal {
		return &grant.Refusal{Why: "no block is free in the pool y", Hint: "Move containers."}
	})
	expectError(t, call(t, "ADD", "d", inPools(`"pool":"y"`)), spec.CodeTryAgain, "no block is free in the pool y", "Move containers.")
	if want := <-asked; !slices.Equal(want.Pools, []string{"y"}) {
		t.Errorf("the agent was asked for %+v", want)
	}
}

// An address of a pinned pool is given to who asks for it by name, after the agent has got it, and to nobody else.
func TestPinned(t *testing.T) {
	givePools(t, "10.8.0.0/26")
	const asks = "IP=10.72.0.7"
	expectError(t, callWith(t, "ADD", "a", network(""), asks), spec.CodeTryAgain, "has not got the address", "Start fairlead-agent")
	expectError(t, callWith(t, "ADD", "a", network(""), "IP=10.72.0.1"), spec.CodeConfig, "10.72.0.1 is the gateway of 10.72.0.0/24")
	expectError(t, callWith(t, "ADD", "a", network(""), "IP=10.72.0.0"), spec.CodeConfig, "10.72.0.0 is in no range")

	isFree := true
	asked := serveWants(t, func(w grant.Want) *grant.Refusal {
		if !isFree {
			return &grant.Refusal{Why: "a container on the node b has it", Hint: "Remove it."}
		}
		changeGrant(t, func(g *grant.Grant) { g.Pins = w.Pins })
		return nil
	})
	got := callWith(t, "ADD", "a", network(""), asks)
	var res spec.Result
	if err := json.Unmarshal(got.out, &res); err != nil || len(res.IPs) != 1 || res.IPs[0].Address.String() != "10.72.0.7/24" ||
		res.IPs[0].Gateway.String() != "10.72.0.1" {
		t.Fatalf("%v: %v", err, got)
	}
	if want := <-asked; len(want.Pins) != 1 || want.Pins[0].String() != "10.72.0.7" {
		t.Errorf("the agent was asked for %+v", want)
	}
	if other := call(t, "ADD", "b", network("")); !strings.Contains(string(other.out), `"10.8.0.2/26"`) {
		t.Errorf("a container that asks for nothing: %v", other)
	}
	expectError(t, callWith(t, "ADD", "c", network(""), asks), spec.CodeTryAgain, "requested address 10.72.0.7 is in use by")
	if gone := call(t, "DEL", "a", network("")); gone.status != 0 {
		t.Error(gone)
	}
	changeGrant(t, func(g *grant.Grant) { g.Pins = nil })
	isFree = false
	expectError(t, callWith(t, "ADD", "c", network(""), asks), spec.CodeTryAgain, "a container on the node b has it", "Remove it.")
}

// A container gets the address that the last one with its key had, as long as the node has the block.
func TestSticky(t *testing.T) {
	give(t, "10.9.0.0/26")
	conf := inPools(`"sticky":{"key":["K8S_POD_NAME"]}`)
	for _, step := range []struct{ verb, id, pod, want string }{
		{"ADD", "a", "web-0", `"10.9.0.2/26"`}, {"ADD", "b", "web-1", `"10.9.0.3/26"`}, {"DEL", "a", "web-0", ""},
		{"ADD", "c", "web-2", `"10.9.0.4/26"`}, {"ADD", "d", "web-0", `"10.9.0.2/26"`},
	} {
		got := callWith(t, step.verb, step.id, conf, "K8S_POD_NAME="+step.pod)
		if got.status != 0 || !strings.Contains(string(got.out), step.want) {
			t.Errorf("%+v: %v", step, got)
		}
	}
	expectError(t, call(t, "ADD", "e", inPools(`"sticky":{}`)), spec.CodeConfig, "ipam.sticky.key: is missing")
}

// A node that has parts of a block alone gives all addresses of them but the second one, which is the gateway. The node with
// the first part gives none that others have.
func TestParts(t *testing.T) {
	ask := func(parts ...string) (addresses []string) {
		t.Helper()
		give(t, parts...)
		changeGrant(t, func(g *grant.Grant) {
			g.Pools = []grant.Pool{{Name: "p", Prefix: netip.MustParsePrefix("10.9.0.0/24"), Bits: 28}}
		})
		for id := range 20 {
			got := call(t, "ADD", fmt.Sprintf("c%d-%d", len(parts), id), network(""))
			var res spec.Result
			if err := json.Unmarshal(got.out, &res); err != nil || len(res.IPs) == 0 {
				expectError(t, got, spec.CodeTryAgain, "are in use")
				break
			}
			addresses = append(addresses, res.IPs[0].Address.String()+" "+res.IPs[0].Gateway.String())
		}
		return addresses
	}
	first := ask("10.9.0.0/30", "10.9.0.4/30", "10.9.0.12/30")
	var want []string
	for _, last := range []int{2, 3, 4, 5, 6, 7, 12, 13, 14} {
		want = append(want, fmt.Sprintf("10.9.0.%d/28 10.9.0.1", last))
	}
	if !slices.Equal(first, want) {
		t.Errorf("%q, want %q", first, want)
	}
	if other := ask("10.9.0.24/30"); !slices.Equal(other, []string{"10.9.0.24/28 10.9.0.25", "10.9.0.26/28 10.9.0.25", "10.9.0.27/28 10.9.0.25"}) {
		t.Errorf("%q", other)
	}
}

// After the deadline in the grant, no container gets an address of that range, whether an agent runs or not. A container
// gets one of another range, and of the same one when the agent has written a later deadline.
func TestDeadline(t *testing.T) {
	givePools(t, "10.8.0.0/26", "10.9.0.0/26")
	until := func(end int64, all ...string) {
		changeGrant(t, func(g *grant.Grant) {
			g.Until, g.Pins = map[netip.Prefix]int64{}, []netip.Addr{netip.MustParseAddr("10.72.0.7")}
			for _, p := range all {
				g.Until[netip.MustParsePrefix(p)] = end
			}
		})
	}
	const never = 1 << 62
	const silent = "has not heard of this node for so long"
	until(1, "10.8.0.0/26", "10.72.0.7/32")
	expectError(t, call(t, "ADD", "a", inPools(`"pool":"x"`)), spec.CodeTryAgain, silent, "Start fairlead-agent")
	expectError(t, callWith(t, "ADD", "a", network(""), "IP=10.72.0.7"), spec.CodeTryAgain, silent)
	if got := call(t, "ADD", "a", network("")); !strings.Contains(string(got.out), `"10.9.0.2/26"`) {
		t.Errorf("another range has no deadline: %v", got)
	}
	until(1, "10.8.0.0/26", "10.9.0.0/26")
	expectError(t, call(t, "ADD", "b", network("")), spec.CodeTryAgain, silent)
	expectError(t, call(t, "STATUS", "", network("")), spec.CodeUnavailable, silent)
	if gone := call(t, "DEL", "a", network("")); gone.status != 0 {
		t.Error(gone)
	}
	until(never, "10.8.0.0/26")
	if got := call(t, "ADD", "b", inPools(`"pool":"x"`)); got.status != 0 {
		t.Errorf("before the deadline: %v", got)
	}

	until(1, "10.8.0.0/26", "10.9.0.0/26")
	serveWants(t, func(grant.Want) *grant.Refusal { // an agent that was stopped goes on
		until(never, "10.8.0.0/26")
		return nil
	})
	if got := call(t, "ADD", "c", inPools(`"pool":"x"`)); got.status != 0 {
		t.Errorf("the agent goes on: %v", got)
	}
}
