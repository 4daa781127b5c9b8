package exchange

import (
	"bytes"
	"compress/flate"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
)

// A message is what a datagram carries, before it is sealed.
type message struct {
	ID    string `json:"id"` // of the question
	From  string `json:"from"`
	To    string `json:"to"`
	Asks  bool   `json:"asks,omitempty"`
	Part  int    `json:"part,omitempty"`  // number of the part, from 0 on; of a question, the one that is wanted
	Parts int    `json:"parts,omitempty"` // how many the answer has; zero: the agent is busy
	Data  []byte `json:"data,omitempty"`
}

// Sizes in bytes. A datagram is short enough for a path of 1,280, the least of IPv6.
const (
	partBytes   = 700
	mostParts   = 96      // 66 KB of compressed text
	mostBytes   = 1 << 20 // of an answer
	leastSecret = 32
)

// cipher returns what seals and opens.
func (e *Exchange) cipher() (cipher.AEAD, error) {
	secret, err := e.Secret()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoSecret, err)
	}
	if len(secret) < leastSecret {
		return nil, ErrNoSecret
	}
	key, err := hkdf.Key(sha256.New, secret, nil, "fairlead-agent exchange 1", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// send seals a message and sends it.
func (e *Exchange) send(m message) error {
	sealer, err := e.cipher()
	if err != nil {
		return err
	}
	m.From = e.Node
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	e.Send(m.To, sealer.Seal(nil, nil, text, nil))
	return nil
}

func (e *Exchange) open(datagram []byte) (m message, err error) {
	sealer, err := e.cipher()
	if err != nil {
		return m, err
	}
	text, err := sealer.Open(nil, nil, datagram, nil)
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(text, &m)
}

// split returns the parts of an answer. One that is too long has none of its text.
func split(answer []byte) (parts [][]byte) {
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, flate.BestCompression) // the level is one that there is
	_, _ = w.Write(answer)                             // a buffer takes all
	_ = w.Close()
	text := b.Bytes()
	if len(answer) > mostBytes || len(text) > partBytes*mostParts {
		return [][]byte{{}}
	}
	for len(text) > partBytes {
		parts, text = append(parts, text[:partBytes]), text[partBytes:]
	}
	return append(parts, text)
}

// errTooLong is what an answer without text means.
var errTooLong = fmt.Errorf("its answer is longer than %d KB", partBytes*mostParts>>10)

func join(parts [][]byte) ([]byte, error) {
	text := bytes.Join(parts, nil)
	if len(text) == 0 {
		return nil, errTooLong
	}
	return io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(text)), mostBytes))
}
