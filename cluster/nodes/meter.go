package nodes

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
)

// A Meter counts what the API server sends.
type Meter struct {
	bytes atomic.Int64
	last  atomic.Int64 // in nanoseconds since 1970
}

// Bytes returns the bytes of all answers, without their headers.
func (m *Meter) Bytes() int64 { return m.bytes.Load() }

// Last returns when the last bytes came. It is zero if none did.
func (m *Meter) Last() time.Time {
	if at := m.last.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Measure returns config with the answers to its clients counted.
func (m *Meter) Measure(config *rest.Config) *rest.Config {
	c := rest.CopyConfig(config)
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return metered{next, m} })
	return c
}

type metered struct {
	next  http.RoundTripper
	meter *Meter
}

// RoundTrip implements http.RoundTripper.
func (t metered) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(r)
	if err == nil {
		answer.Body = body{answer.Body, t.meter}
	}
	return answer, err
}

type body struct {
	io.ReadCloser
	meter *Meter
}

func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.meter.bytes.Add(int64(n))
		b.meter.last.Store(time.Now().UnixNano())
	}
	return n, err
}
