package ovsdb

import (
	"encoding/json"
	"maps"
	"slices"
)

// An Op is one operation of a transaction (RFC 7047, section 5.2).
type Op map[string]any

// A Where is conditions that all have to hold; nil is every row.
type Where []Cond

// A Cond is a column, a function ("==", "includes", …) and a value.
type Cond [3]any

// Is are the rows whose column has just this value.
func Is(column string, value any) Where { return Where{{column, "==", value}} }

// Includes are the rows whose column, a set or a map, has at least these elements.
func Includes(column string, value any) Where { return Where{{column, "includes", value}} }

// MarshalJSON writes no condition as the empty list, which the server wants.
func (w Where) MarshalJSON() ([]byte, error) { return json.Marshal(append([]Cond{}, w...)) }

// Select reads columns of rows.
func Select(table string, where Where, columns ...string) Op {
	return Op{"op": "select", "table": table, "where": where, "columns": columns}
}

// Insert adds a row. Name stands for it in the operations of the same transaction, as Named(name).
func Insert(table, name string, row map[string]any) Op {
	return Op{"op": "insert", "table": table, "uuid-name": name, "row": row}
}

// Mutate changes a column of rows: "insert" and "delete" change sets and maps, "+=" numbers.
func Mutate(table string, where Where, column, mutator string, value any) Op {
	return Op{"op": "mutate", "table": table, "where": where, "mutations": [][3]any{{column, mutator, value}}}
}

// Count changes nothing, and its answer says how many rows there are.
func Count(table string, where Where) Op {
	return Op{"op": "mutate", "table": table, "where": where, "mutations": []any{}}
}

// Delete deletes rows, which only those of root tables need: others go when nothing refers to them.
func Delete(table string, where Where) Op { return Op{"op": "delete", "table": table, "where": where} }

// Wait fails the transaction unless the rows have just these values.
func Wait(table string, where Where, row map[string]any) Op {
	return Op{"op": "wait", "timeout": 0, "table": table, "where": where, "until": "==",
		"columns": slices.Sorted(maps.Keys(row)), "rows": []any{row}}
}

// A UUID refers to a row.
type UUID string

// MarshalJSON implements json.Marshaler.
func (u UUID) MarshalJSON() ([]byte, error) { return json.Marshal([2]string{"uuid", string(u)}) }

// A Named refers to a row that the same transaction inserts.
type Named string

// MarshalJSON implements json.Marshaler.
func (n Named) MarshalJSON() ([]byte, error) { return json.Marshal([2]string{"named-uuid", string(n)}) }

// SetOf is a set of values.
func SetOf[T any](values ...T) any { return [2]any{"set", append([]T{}, values...)} }

// A Map is a map from strings to strings.
type Map map[string]string

// MarshalJSON implements json.Marshaler.
func (m Map) MarshalJSON() ([]byte, error) {
	pairs := [][2]string{}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		pairs = append(pairs, [2]string{k, m[k]})
	}
	return json.Marshal([2]any{"map", pairs})
}

// A Row is columns of a row, as the server writes them. What a column does not have, or not of that type, is the zero
// value.
type Row map[string]json.RawMessage

// elements are the values of a column: of a set, which the server writes as the value alone where there is one.
func (r Row) elements(column string) []json.RawMessage {
	raw := r[column]
	var pair []json.RawMessage
	if json.Unmarshal(raw, &pair) != nil || len(pair) != 2 {
		if len(raw) == 0 {
			return nil
		}
		return []json.RawMessage{raw}
	}
	if string(pair[0]) != `"set"` {
		return []json.RawMessage{raw}
	}
	var all []json.RawMessage
	_ = json.Unmarshal(pair[1], &all)
	return all
}

func values[T any](r Row, column string) (all []T) {
	for _, e := range r.elements(column) {
		var v T
		if json.Unmarshal(e, &v) == nil {
			all = append(all, v)
		}
	}
	return all
}

// Text is a string, or the one of a set; empty where there is none.
func (r Row) Text(column string) string {
	if all := values[string](r, column); len(all) > 0 {
		return all[0]
	}
	return ""
}

// Int is a number, or the one of a set.
func (r Row) Int(column string) (n int, ok bool) {
	if all := r.Ints(column); len(all) > 0 {
		return all[0], true
	}
	return 0, false
}

// Ints are the numbers of a set, in order.
func (r Row) Ints(column string) []int {
	all := values[int](r, column)
	slices.Sort(all)
	return all
}

// Bool is a truth value.
func (r Row) Bool(column string) bool {
	all := values[bool](r, column)
	return len(all) > 0 && all[0]
}

// UUIDs are the references of a column.
func (r Row) UUIDs(column string) (all []UUID) {
	for _, pair := range values[[2]string](r, column) {
		if pair[0] == "uuid" {
			all = append(all, UUID(pair[1]))
		}
	}
	return all
}

// UUID is the first reference of a column: of "_uuid", the row's own.
func (r Row) UUID(column string) UUID {
	if all := r.UUIDs(column); len(all) > 0 {
		return all[0]
	}
	return ""
}

// Map is a map of strings.
func (r Row) Map(column string) Map {
	var pair [2]json.RawMessage
	var pairs [][2]string
	if json.Unmarshal(r[column], &pair) != nil || string(pair[0]) != `"map"` || json.Unmarshal(pair[1], &pairs) != nil {
		return nil
	}
	m := Map{}
	for _, kv := range pairs {
		m[kv[0]] = kv[1]
	}
	return m
}
