package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/rest"
)

// The condition NetworkUnavailable is cleared when it is True, also later, and nothing else is written.
func TestKeepNetworkAvailable(t *testing.T) {
	const node = `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","uid":"u","resourceVersion":"%d"},"status":{"conditions":[
		{"type":"Ready","status":"True"},{"type":"NetworkUnavailable","status":%q,"reason":"NoRouteCreated"}]}}`
	states := make(chan string) // of the condition, as another program sets it
	patches := make(chan string, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		query := r.URL.Query()
		switch {
		case r.Method == http.MethodPatch && r.URL.Path == "/api/v1/nodes/n1/status":
			body, _ := io.ReadAll(r.Body)
			patches <- r.Header.Get("Content-Type") + " " + string(body)
			fmt.Fprintf(w, node, 9, "False")
		case r.Method != http.MethodGet || query.Get("fieldSelector") != "metadata.name=n1":
			w.WriteHeader(http.StatusForbidden)
			patches <- r.Method + " " + r.URL.String()
		case query.Get("sendInitialEvents") == "true":
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		case query.Get("watch") == "":
			fmt.Fprintf(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[`+node+`]}`, 5, "True")
		default:
			w.(http.Flusher).Flush()
			for version := 6; ; version++ {
				select {
				case state := <-states:
					fmt.Fprintf(w, `{"type":"MODIFIED","object":`+node+"}\n", version, state)
					w.(http.Flusher).Flush()
				case <-r.Context().Done():
					return
				}
			}
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- KeepNetworkAvailable(ctx, &rest.Config{Host: s.URL}, "n1", func(err error) { t.Error(err) })
	}()
	cleared := func(when string) {
		t.Helper()
		text := <-patches
		var patch struct {
			Status struct {
				Conditions []struct{ Type, Status, Reason string }
			}
		}
		const kind = "application/strategic-merge-patch+json "
		if len(text) < len(kind) || text[:len(kind)] != kind || json.Unmarshal([]byte(text[len(kind):]), &patch) != nil {
			t.Fatal(text)
		}
		if got := fmt.Sprint(patch.Status.Conditions); got != "[{NetworkUnavailable False FairleadIsUp}]" {
			t.Errorf("%s: %s", when, got)
		}
	}
	cleared("at first")
	states <- "False"
	states <- "True"
	cleared("set again")
	states <- "False" // has no patch
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if len(patches) > 0 {
		t.Error(<-patches)
	}
}
