package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/exchange"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// served has the agent answer at its socket. The result asks it.
func (h *host) served() (ask func(method, path string) (status int, text string)) {
	h.t.Helper()
	l, err := Listen(agentstatus.Socket(h.agent.Network))
	if err != nil {
		h.t.Fatal(err)
	}
	go h.agent.Serve(h.t.Context(), l)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", agentstatus.Socket(h.agent.Network))
		}}}
	return func(method, path string) (int, string) {
		h.t.Helper()
		q, err := http.NewRequestWithContext(h.t.Context(), method, "http://agent"+path, nil)
		if err != nil {
			h.t.Fatal(err)
		}
		r, err := client.Do(q)
		if err != nil {
			h.t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			h.t.Fatal(err)
		}
		return r.StatusCode, string(text)
	}
}

// Who runs on the node asks the agent for its status, for addresses, and for what packages add.
func TestServe(t *testing.T) {
	h := newHost(t, 1)
	var wanted grant.Want
	var refusal error
	h.agent.Ask = func(_ context.Context, w grant.Want) error {
		wanted = w
		return refusal
	}
	h.agent.Answers = map[string]http.HandlerFunc{"GET /more": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "more") }}
	h.start()
	h.compared(node(1), node(2))
	ask := h.served()

	code, text := ask("GET", "/status")
	var s agentstatus.Status
	if err := json.Unmarshal([]byte(text), &s); code != http.StatusOK || err != nil || s.Node != "n1" || len(s.Nodes) != 2 {
		t.Errorf("status: %d %s, %v", code, text, err)
	}
	if code, text := ask("GET", "/more"); code != http.StatusOK || text != "more" {
		t.Errorf("what a package adds: %d %s", code, text)
	}
	want := grant.Want{Pools: []string{"spot"}, Pins: []netip.Addr{netip.MustParseAddr("10.244.1.9")}}
	for _, tc := range []struct {
		refusal error
		is      func(error) bool
	}{
		{nil, func(err error) bool { return err == nil }},
		{errors.New("etcd is silent"), func(err error) bool { return errors.Is(err, grant.ErrFixed) && strings.Contains(err.Error(), "503") }},
		{&grant.Refusal{Why: "n2 has it", Hint: "Ask n2."}, func(err error) bool {
			var r *grant.Refusal
			return errors.As(err, &r) && r.Why == "n2 has it" && r.Hint == "Ask n2."
		}},
	} {
		wanted, refusal = grant.Want{}, tc.refusal
		if err := grant.Ask(t.Context(), "pods1", want); !tc.is(err) || len(wanted.Pools) != 1 || len(wanted.Pins) != 1 {
			t.Errorf("refused with %v: %v, and it was asked for %+v", tc.refusal, err, wanted)
		}
	}
	for path, why := range map[string]string{"/want?pin=x": "pin: ", "/trace?src=x": "src: "} {
		if code, text := ask("POST", path); code != http.StatusBadRequest || !strings.Contains(text, why) {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}

	other := newHost(t, 2)
	if code, _ := other.served()("POST", "/want"); code != http.StatusNotFound {
		t.Errorf("an agent that gets no other ranges answers %d", code)
	}
}

// An agent asks that of the node which has a packet's destination, and says why it has no answer.
func TestFollow(t *testing.T) {
	const toTwo = "/trace?src=10.244.1.2&dst=10.244.2.2&proto=6&port=80"
	secret := func(text string) func() ([]byte, error) {
		return func() ([]byte, error) { return []byte(strings.Repeat(text, 32)), nil }
	}
	for _, tc := range []struct {
		name, path, rules string
		secrets           [2]func() ([]byte, error) // of n1 and n2
		tested            bool
		node, unanswered  string
		disagreement      string
	}{
		{"untested", toTwo, "", [2]func() ([]byte, error){}, false, "n2",
			"node n2 was not asked: " + errNoPort.Error(), ""},
		{"without a key", toTwo, "", [2]func() ([]byte, error){}, true, "n2",
			"node n2 was not asked: " + exchange.ErrNoSecret.Error(), ""},
		{"its own", "/trace?src=10.244.2.2&dst=10.244.1.2&proto=6&port=80", "", [2]func() ([]byte, error){secret("a"), secret("a")}, true, "n1",
			"no node was asked: as far as the agent of this node knows, no other one has 10.244.1.2", ""},
		{"nobody's", "/trace?src=10.244.1.2&dst=10.9.9.9&proto=6&port=80", "", [2]func() ([]byte, error){secret("a"), secret("a")}, true, "",
			"no node was asked: as far as the agent of this node knows, no other one has 10.9.9.9", ""},
		{"answered", toTwo, "", [2]func() ([]byte, error){secret("a"), secret("a")}, true, "n2",
			"node n2 could not follow the packet: exit status 1: link up0: link does not exist", // it looks where the tests run
			"n1 has 10.244.2.2 at n2, and no container of n2 has it"},
		{"with another key", toTwo, "", [2]func() ([]byte, error){secret("a"), secret("b")}, true, "n2",
			"node n2 did not answer within 2s, and its agent answered the last test: it is an older one, has another key or none", ""},
		{"dropped", toTwo, "udp dport 8473 drop", [2]func() ([]byte, error){secret("a"), secret("a")}, true, "n2",
			"node n2 did not answer within 2s: its agent does not answer tests at UDP 8473 either", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			agents := 0
			one, _, ended := newPair(t, tc.rules, func(a *Agent) {
				a.Secret = tc.secrets[agents]
				agents++
				if !tc.tested {
					a.ProbePort = 0
				}
			})
			if tc.tested {
				select {
				case <-ended:
				case <-nstest.Context(t).Done():
					t.Fatal("no test ended")
				}
			} else {
				one.compared(node(1), node(2))
			}
			code, text := one.served()("POST", tc.path)
			var o agentstatus.Onward
			if err := json.Unmarshal([]byte(text), &o); err != nil || code != http.StatusOK {
				t.Fatal(code, text, err)
			}
			if o.Node != tc.node || !strings.HasPrefix(o.Unanswered, tc.unanswered) || (o.Unanswered == "") != (tc.unanswered == "") {
				t.Errorf("%+v, want it of %q and %q", o, tc.node, tc.unanswered)
			}
			all := ""
			for _, d := range o.Disagreements {
				all += d.Text + "\n"
			}
			if !strings.Contains(all, tc.disagreement) || (all == "") != (tc.disagreement == "") {
				t.Errorf("they disagree in %s, want %q", all, tc.disagreement)
			}
		})
	}
}

// A packet that comes in is followed to the container that has its destination, as far as the host sends it.
func TestFollowArrival(t *testing.T) {
	nstest.Run(t, "ip", "link", "add", "up0", "up", "type", "veth", "peer", "name", "up1")
	nstest.Run(t, "ip", "addr", "add", "192.0.2.1/24", "dev", "up0")
	const arrival = `{"packet":{"src":"192.0.2.9","dst":"192.0.2.1","proto":6,"port":80},"in":"up0","way":{}}`
	var out strings.Builder
	if err := FollowArrival(strings.NewReader(arrival), &out); err != nil || !strings.Contains(out.String(), `"verdict":"stops"`) {
		t.Errorf("%s, %v", &out, err)
	}
	for _, odd := range []string{"{", strings.Replace(arrival, "up0", "none0", 1)} {
		if err := FollowArrival(strings.NewReader(odd), io.Discard); err == nil {
			t.Errorf("%s was followed", odd)
		}
	}
}

// Beside an agent no other one has its socket, and the error says which process has it. What a killed one left is taken.
func TestListen(t *testing.T) {
	socket := agentstatus.Socket("net")
	if err := errors.Join(os.MkdirAll(grant.Dir, 0o755), os.WriteFile(socket, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(socket); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket has the mode %v, %v", st.Mode(), err)
	}
	if _, err := Listen(socket); err == nil || !strings.Contains(err.Error(), "process ") {
		t.Errorf("beside it: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for _, path := range []string{socket, socket + lockSuffix} { // where a directory is in the way
		os.RemoveAll(path)
		if err := os.MkdirAll(path+"/theirs", 0o755); err != nil {
			t.Fatal(err)
		}
		if l, err := Listen(socket); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s is a directory: %v, %v", path, l, err)
		}
		os.RemoveAll(path)
	}
	if l, err = Listen(socket); err != nil {
		t.Fatal(err)
	}
	l.Close()
}
