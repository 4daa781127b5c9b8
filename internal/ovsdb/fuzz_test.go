package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"reflect"
	"slices"
	"testing"
)

// FuzzTransact answers a transaction with anything.
func FuzzTransact(f *testing.F) {
	f.Add([]byte(`{"id":1,"error":null,"result":[{"count":1},{"rows":[{"_uuid":["uuid","u"],"ports":["set",[]]}]}]}`))
	f.Add([]byte(`{"method":"echo","params":[],"id":"e"}{"id":1,"result":[{},null,{"error":"timed out","details":"d"}]}`))
	f.Add([]byte(`{"id":1,"result":null}{"id":1,"error":{"error":"e"}}`))
	f.Fuzz(func(t *testing.T, said []byte) {
		here, there := net.Pipe()
		in := &io.LimitedReader{R: here}
		c := &Conn{conn: here, in: in, dec: json.NewDecoder(in)}
		go func() {
			defer there.Close()
			var question any
			if json.NewDecoder(there).Decode(&question) == nil {
				go func() { // answers to the server's own questions
					buf := make([]byte, 4096)
					for _, err := there.Read(buf); err == nil; _, err = there.Read(buf) {
					}
				}()
				_, _ = there.Write(said)
			}
		}()
		defer c.Close()
		answers, err := c.Transact(context.Background(), Count("Port", nil), Select("Port", nil))
		var refused *Error
		if err == nil && len(answers) != 2 || errors.As(err, &refused) && refused.Code == "" {
			t.Errorf("%q: %d answers, %v", said, len(answers), err)
		}
		if Changed(err) && refused == nil {
			t.Errorf("%q: %v is taken for a change", said, err)
		}
	})
}

// FuzzRow: a column is read as it is written, whatever the others have.
func FuzzRow(f *testing.F) {
	f.Add([]byte(`{"a":["set",[1,2]],"b":["map",[["k","v"]]],"c":["uuid","u"],"d":true,"e":["set",[["uuid","v"]]]}`))
	f.Add([]byte(`{"a":["set",3],"b":["map",[["k"]]],"c":["set",["set","x"]],"d":[],"e":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var r Row
		if json.Unmarshal(text, &r) != nil {
			return
		}
		for column := range r {
			r.Text(column)
			r.Bool(column)
			r.Int(column)
			again := written(t, map[string]any{
				"numbers": SetOf(r.Ints(column)...), "rows": SetOf(r.UUIDs(column)...), "map": r.Map(column)})
			if got := again.Ints("numbers"); !slices.Equal(got, r.Ints(column)) {
				t.Errorf("%s: numbers %v, want %v", r[column], got, r.Ints(column))
			}
			if got := again.UUIDs("rows"); !slices.Equal(got, r.UUIDs(column)) {
				t.Errorf("%s: references %v, want %v", r[column], got, r.UUIDs(column))
			}
			if m := r.Map(column); m != nil && !reflect.DeepEqual(again.Map("map"), m) {
				t.Errorf("%s: map %v, want %v", r[column], again.Map("map"), m)
			}
		}
		current(text)
	})
}

func written(t *testing.T, columns map[string]any) (r Row) {
	b, err := json.Marshal(columns)
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}
