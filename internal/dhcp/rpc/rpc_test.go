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
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/spec"
)

type inner struct {
	A []byte
	P *int
}

type sample struct {
	S  string
	N  int
	U  uint64
	B  bool
	L  []string
	I  []*inner
	In inner
	E  struct{}
}

func samples() []sample {
	n := 300
	return []sample{{}, {S: "x", N: -5, U: 1 << 40, B: true, L: []string{"", "b"},
		I: []*inner{{A: []byte{1, 2, 3}}, {P: &n}}, In: inner{P: &n}}, {N: 128, In: inner{A: bytes.Repeat([]byte{7}, 70000)}}}
}

// What we write encoding/gob reads, and what it writes we read, also where the other side knows less or more fields.
func TestSameAsGob(t *testing.T) {
	var ours, theirs bytes.Buffer
	e, g := newEncoder(&ours), gob.NewEncoder(&theirs)
	for _, s := range samples() {
		if err := e.encode(s); err != nil {
			t.Fatal(err)
		}
		if err := g.Encode(s); err != nil {
			t.Fatal(err)
		}
	}
	gd, d := gob.NewDecoder(&ours), newDecoder(bufio.NewReader(&theirs))
	for _, want := range samples() {
		var got sample
		if err := gd.Decode(&got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("gob reads %+v of ours, want %+v", got, want)
		}
		got = sample{}
		if err := d.decode(&got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("we read %+v of gob's, want %+v", got, want)
		}
	}
}

// Who connects and goes says nothing, and looked whether anybody listens. Who goes in the middle of the first words is
// another matter.
func TestEmptyConnection(t *testing.T) {
	for _, c := range []struct {
		said string
		bad  bool
	}{{"", false}, {"CONNECT", true}} {
		here, there := net.Pipe()
		go func() {
			here.Write([]byte(c.said))
			here.Close()
		}()
		err := Serve(t.Context(), there, func(context.Context, string, Question) (any, error) { return nil, nil })
		if (err != nil) != c.bad {
			t.Errorf("after %q: %v", c.said, err)
		}
	}
}

// A net.IPNet is two lists of bytes, as the reference's results have it.
func TestAddresses(t *testing.T) {
	type theirs struct{ Address net.IPNet }
	var b bytes.Buffer
	_, n, _ := net.ParseCIDR("10.1.2.0/24")
	if err := gob.NewEncoder(&b).Encode(theirs{*n}); err != nil {
		t.Fatal(err)
	}
	var got struct{ Address struct{ IP, Mask []byte } }
	if err := newDecoder(bufio.NewReader(&b)).decode(&got); err != nil {
		t.Fatal(err)
	}
	if net.IP(got.Address.IP).String() != "10.1.2.0" || net.IPMask(got.Address.Mask).String() != "ffffff00" {
		t.Errorf("got %+v", got)
	}
}

// A message that would become many times its size is turned away before it does; a great configuration is not.
func TestBounds(t *testing.T) {
	type lists struct{ L [][]string }
	wide := lists{L: make([][]string, 3000)}
	for i := range wide.L {
		wide.L[i] = make([]string, 1000)
	}
	const most = 80 << 20 // a buffer that doubles; with the race detector, append(b, make(…)...) allocates twice
	for name, tc := range map[string]struct {
		value any
		bad   bool
	}{
		"the longest document": {struct{ B []byte }{make([]byte, plainfile.MaxSize)}, false},
		"of 2 MiB more":        {struct{ B []byte }{make([]byte, plainfile.MaxSize+2<<20)}, true},
		"few strings":          {struct{ L []string }{make([]string, 30000)}, false},
		"many strings":         {struct{ L []string }{make([]string, 60000)}, true},
		"lists of lists":       {wide, true},
	} {
		var b bytes.Buffer
		if err := gob.NewEncoder(&b).Encode(tc.value); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := newDecoder(bufio.NewReader(&b)).decode(reflect.New(reflect.TypeOf(tc.value)).Interface())
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; (err != nil) != tc.bad || took > most {
			t.Errorf("%s: %v, for %d bytes", name, err, took)
		}
	}
	var refused *spec.Error
	err := newEncoder(io.Discard).encode(Args{StdinData: make([]byte, plainfile.MaxSize+2<<20)})
	if !errors.As(err, &refused) || refused.Code != spec.CodeConfig || !strings.Contains(err.Error(), "18874") ||
		!strings.Contains(err.Error(), "at most 17825792") {
		t.Errorf("a message that nobody would take: %v", err)
	}
	// Descriptions of types are bound together, for they stay.
	var b bytes.Buffer
	message := append([]byte{1}, make([]byte, 60<<10)...) // of type -1, with nothing to it
	b.Write(append([]byte{0xfd, byte(len(message) >> 16), byte(len(message) >> 8), byte(len(message))}, message...))
	d := newDecoder(bufio.NewReader(&b))
	d.described = maxDescribe - 1
	if err := d.decode(&Args{}); err == nil || !strings.Contains(err.Error(), "described in more than") {
		t.Errorf("descriptions without an end: %v", err)
	}
}

// Kinds of values that none of our messages has are skipped, and the values around them are read.
func TestSkipped(t *testing.T) {
	n := 7
	theirs := struct {
		F float64
		M map[string]*inner
		L []map[int][]string
		R [3]int
		T time.Time
		C string
		S []*inner
	}{1.5, map[string]*inner{"a": {P: &n}}, []map[int][]string{{1: {"x", "y"}}}, [3]int{1, 2, 300}, time.Unix(5, 0), "c",
		[]*inner{{A: []byte("b")}}}
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(theirs); err != nil {
		t.Fatal(err)
	}
	var got struct {
		M, R, C string
		L       uint
		S       []inner
	}
	err := newDecoder(bufio.NewReader(&b)).decode(&got)
	if err != nil || got.C != "c" || got.M != "" || len(got.S) != 1 || string(got.S[0].A) != "b" {
		t.Errorf("%+v, %v", got, err)
	}
}
