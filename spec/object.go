package spec

import (
	"encoding/json"
	"errors"
)

// An Object is a JSON object whose members keep their order and, until they are set, their bytes
// (clause C3). It is a value: setting a member of a copy leaves the original as it was. Keys are exact.
type Object struct {
	members []member
}

type member struct {
	key string
	val json.RawMessage
}

// ParseObject reads a JSON object.
func ParseObject(b []byte) (Object, error) { return Object{}, errors.New("not yet") }

// Get is the value of key as it is written. Of duplicates it is the last.
func (o Object) Get(key string) (json.RawMessage, bool) { return nil, false }

// Set replaces the value of key, or appends it. A json.RawMessage and an Object go in as they are.
func (o *Object) Set(key string, value any) error { return errors.New("not yet") }

// Delete removes key.
func (o *Object) Delete(key string) {}

// Keys are the keys in their order.
func (o Object) Keys() []string { return nil }

// MarshalJSON writes the object. (json.Marshal strips the white space of what it returns.)
func (o Object) MarshalJSON() ([]byte, error) { return nil, errors.New("not yet") }

// UnmarshalJSON is ParseObject.
func (o *Object) UnmarshalJSON(b []byte) error { return errors.New("not yet") }
