package rpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"io"
	"net"
	"reflect"
	"testing"
)

// FuzzDecode: whatever is written to the socket, what encoding/gob reads of it is read as it reads it.
func FuzzDecode(f *testing.F) {
	for _, s := range samples()[:2] {
		var b bytes.Buffer
		if err := gob.NewEncoder(&b).Encode(s); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, theirs := newDecoder(bufio.NewReader(bytes.NewReader(b))), gob.NewDecoder(bytes.NewReader(b))
		for {
			var got, want sample
			if ours.decode(&got) != nil {
				return
			}
			if theirs.Decode(&want) != nil {
				continue // it knows more of what is wrong
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%x is read as %+v; encoding/gob reads %+v", b, got, want)
			}
		}
	})
}

// FuzzEncode: encoding/gob reads what we write.
func FuzzEncode(f *testing.F) {
	f.Add("s", 5, uint64(7), true, []byte("b"))
	f.Add("", -1<<40, ^uint64(0), false, []byte(nil))
	f.Add("0", 0, uint64(56), true, []byte("0"))
	f.Fuzz(func(t *testing.T, s string, n int, u uint64, b bool, a []byte) {
		want := sample{S: s, N: n, U: u, B: b, L: []string{s, ""}, I: []*inner{{A: a, P: &n}, {}}, In: inner{A: a}}
		var out bytes.Buffer
		if err := newEncoder(&out).encode(want); err != nil {
			t.Fatal(err)
		}
		text := out.Bytes()
		var got, ours sample
		if err := gob.NewDecoder(bytes.NewReader(text)).Decode(&got); err != nil {
			t.Fatal(err)
		}
		if err := newDecoder(bufio.NewReader(bytes.NewReader(text))).decode(&ours); err != nil {
			t.Fatal(err)
		}
		p := got.I[0].P // to a zero, it is not sent
		isP := p == nil && n == 0 || p != nil && *p == n
		if !reflect.DeepEqual(got, ours) || got.S != s || got.N != n || got.U != u || got.B != b ||
			string(got.In.A) != string(a) || !isP {
			t.Errorf("%+v is read as %+v, and by encoding/gob as %+v", want, ours, got)
		}
	})
}

// FuzzServe: a client that sends anything is answered or refused, and each call of it is one that it can have meant.
func FuzzServe(f *testing.F) {
	var b bytes.Buffer
	b.WriteString(connect)
	e := newEncoder(&b)
	if err := errors.Join(e.encode(request{Allocate, 1}), e.encode(Args{ContainerID: "c"}), e.encode(request{Ask, 2}),
		e.encode(Question{Verb: "ADD"})); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(connect))
	f.Add([]byte("GET / HTTP/1.0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		here, there := net.Pipe()
		served := make(chan error)
		go func() {
			served <- Serve(context.Background(), there, func(_ context.Context, method string, q Question) (any, error) {
				if method != Ask && q.Verb != "" {
					t.Errorf("%q: %s has the verb %q", said, method, q.Verb)
				}
				return Reply{}, ErrUnknown(method)
			})
		}()
		heard := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, here)
			close(heard)
		}()
		_, _ = here.Write(said)
		here.Close()
		<-heard
		<-served
	})
}

// FuzzCall: a daemon that answers anything gets no call to panic, or to wait behind the end of the answer.
func FuzzCall(f *testing.F) {
	var b bytes.Buffer
	b.WriteString("HTTP/1.0 " + connected + "\n\n")
	e := newEncoder(&b)
	n := 3
	if err := errors.Join(e.encode(response{ServiceMethod: Allocate, Seq: 1}), e.encode(Result{CNIVersion: "1.0.0",
		IPs:    []*IPConfig{{IPNet{[]byte{10, 1, 0, 2}, []byte{255, 255, 255, 0}}, []byte{10, 1, 0, 1}}},
		Routes: []*Route{{Dst: IPNet{make([]byte, 16), make([]byte, 16)}, Table: &n}}})); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte("HTTP/1.0 404 none\n\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		here, there := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, there) }()
		go func() {
			_, _ = there.Write(said)
			there.Close()
		}()
		defer here.Close()
		var r Result
		if call(here, Allocate, Args{}, &r) != nil {
			return
		}
		for _, ip := range r.Spec().IPs {
			if !ip.Address.IsValid() || ip.Address.Addr().Is4In6() {
				t.Errorf("%q: address %v", said, ip.Address)
			}
		}
		var again Result
		if err := copyResult(&again, NewResult(r.Spec())); err != nil {
			t.Fatal(err)
		}
		if got, want := again.Spec(), r.Spec(); !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %+v, and is written as %+v", said, want, got)
		}
	})
}

// copyResult writes a result and reads it.
func copyResult(to, from *Result) error {
	var b bytes.Buffer
	if err := newEncoder(&b).encode(*from); err != nil {
		return err
	}
	return newDecoder(bufio.NewReader(&b)).decode(to)
}
