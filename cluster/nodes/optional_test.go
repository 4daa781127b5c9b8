package nodes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"k8s.io/client-go/rest"
)

// serve is an API server that has policies, and allows them to be read if it may.
func serve(t *testing.T, allowed bool, events <-chan string) *rest.Config {
	const one = `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":%q,"namespace":"x","resourceVersion":"%d"}}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case !allowed:
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
		case r.URL.Query().Get("watch") == "":
			fmt.Fprintf(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"5"},
				"items":[`+one+`,`+one+`]}`, "a", 3, "b", 4)
		case r.URL.Query().Get("sendInitialEvents") == "true": // a list by a watch, which this server does not know
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		default:
			w.(http.Flusher).Flush()
			version := 6
			for {
				select {
				case typ := <-events:
					fmt.Fprintf(w, `{"type":%q,"object":`+one+"}\n", typ, "c", version)
					w.(http.Flusher).Flush()
					version++
				case <-r.Context().Done():
					return
				}
			}
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	return &rest.Config{Host: s.URL}
}

// The ranges of Services are those of all ServiceCIDR objects. A server that does not know this kind has none.
func TestServiceRanges(t *testing.T) {
	const list = `{"kind":"ServiceCIDRList","apiVersion":"networking.k8s.io/v1","metadata":{"resourceVersion":"5"},"items":[
		{"metadata":{"name":"more","resourceVersion":"4"},"spec":{"cidrs":["10.97.0.0/24"]}},
		{"metadata":{"name":"kubernetes","resourceVersion":"3"},"spec":{"cidrs":["10.96.0.0/16","fd00:96::/112"]}}]}`
	known := func(w http.ResponseWriter, r *http.Request) {
		switch query := r.URL.Query(); {
		case r.URL.Path != "/apis/networking.k8s.io/v1/servicecidrs":
			http.NotFound(w, r)
		case query.Get("sendInitialEvents") == "true":
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		case query.Get("watch") == "":
			fmt.Fprint(w, list)
		default:
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		want  string
	}{
		"known":   {known, "[10.96.0.0/16 10.97.0.0/24 fd00:96::/112]"},
		"unknown": {http.NotFound, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				c.serve(w, r)
			}))
			t.Cleanup(s.Close)
			t.Cleanup(s.CloseClientConnections)
			ctx, stop := context.WithCancel(t.Context())
			found := make(chan []netip.Prefix, 10)
			ended := make(chan error, 1)
			go func() {
				ended <- ServiceRanges(ctx, &rest.Config{Host: s.URL}, func(all []netip.Prefix) { found <- all })
			}()
			got := fmt.Sprint(<-found)
			stop()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if got != c.want || len(found) > 0 {
				t.Errorf("%s and %d more, want %q", got, len(found), c.want)
			}
		})
	}
}

type count struct {
	n     int
	known bool
}

// Policies are counted, also as they come and go, and the bytes are, by which they are told.
func TestCountPolicies(t *testing.T) {
	events := make(chan string)
	meter := new(Meter)
	config := meter.Measure(serve(t, true, events))
	ctx, stop := context.WithCancel(t.Context())
	counted := make(chan count)
	ended := make(chan error, 1)
	go func() {
		ended <- CountPolicies(ctx, config, func(n int, known bool) { counted <- count{n, known} })
	}()
	for _, step := range []struct {
		event string
		want  int
	}{{"", 2}, {"ADDED", 3}, {"DELETED", 2}} {
		if step.event != "" {
			events <- step.event
		}
		if got := <-counted; got != (count{step.want, true}) {
			t.Errorf("after %q: %+v, want %d", step.event, got, step.want)
		}
	}
	if meter.Bytes() < 400 || meter.Last().IsZero() {
		t.Errorf("%d bytes, the last at %v", meter.Bytes(), meter.Last())
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Without the right, the number is unknown, and nothing else happens.
func TestForbiddenPolicies(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	counted := make(chan count)
	ended := make(chan error, 1)
	go func() {
		ended <- CountPolicies(ctx, serve(t, false, nil), func(n int, known bool) { counted <- count{n, known} })
	}()
	if got := <-counted; got.known {
		t.Errorf("%+v", got)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
