package spec

import (
	"bytes"
	"encoding/json"
)

// encode is json.Marshal that leaves <, > and & alone.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// indent lays JSON out as plugins print it: four spaces, no newline at the end.
func indent(b []byte) []byte {
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "    "); err != nil {
		return b
	}
	return out.Bytes()
}
