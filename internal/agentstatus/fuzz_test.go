package agentstatus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// FuzzParse: an answer of any content is a status of this version, or an error. A status is read as it is written.
func FuzzParse(f *testing.F) {
	f.Add([]byte(fmt.Sprintf("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{\"version\":%d,\"network\":\"n\","+
		"\"nodes\":[{\"name\":\"a\",\"prefixes\":[\"10.1.0.0/24\"],\"way\":\"vxlan\",\"path\":{}}]}", Version)))
	f.Add([]byte("HTTP/1.0 404 Not Found\r\n\r\n"))
	f.Add([]byte("HTTP/1.0 200 OK\r\n\r\nnull"))
	f.Fuzz(func(t *testing.T, said []byte) {
		s, err := parse(bytes.NewReader(said))
		if err != nil {
			return
		}
		if s.Version != Version {
			t.Errorf("%q is of version %d", said, s.Version)
		}
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parse(strings.NewReader("HTTP/1.0 200 OK\r\n\r\n" + string(text)))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if second, _ := json.Marshal(again); string(second) != string(text) {
			t.Errorf("%s is written as %s", text, second)
		}
	})
}
