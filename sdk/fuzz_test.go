package sdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/spec"
)

// FuzzDecode compares the values of a configuration with those that encoding/json reads.
func FuzzDecode(f *testing.F) {
	type shared struct {
		Text string `json:"text"`
		On   *bool  `json:"on"`
	}
	type configuration struct {
		shared
		Number  int               `json:"number"`
		Byte    uint8             `json:"byte"`
		List    []string          `json:"list"`
		Table   map[string]int    `json:"table"`
		Address netip.Addr        `json:"address"`
		Subnets [][]netip.Prefix  `json:"subnets"`
		Parts   []shared          `json:"parts"`
		Tables  map[string]shared `json:"tables"`
	}
	f.Add([]byte(`{"text":"a","ON":true,"number":-5,"byte":255,"list":["b",null],"table":{"c":1},"address":"10.1.0.2",
		"subnets":[["10.1.0.0/24"],[]],"parts":[{"text":"d"},null],"tables":{"e":{"on":false}}}`))
	f.Add([]byte(`{"number":1.5,"byte":256,"address":"","subnets":null,"tExT":"\ud800","unknown":{"text":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := spec.ParseObject(b)
		if err != nil || ambiguous(b) {
			return
		}
		var got, want configuration
		_, err = decode(&spec.Conf{Object: o}, &got, false, "ADD")
		theirs := json.Unmarshal(b, &want)
		if (err == nil) != (theirs == nil) {
			t.Fatalf("%s: %v; encoding/json: %v", b, err, theirs)
		}
		if err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %+v; encoding/json reads %+v", b, got, want)
		}
		var e *spec.Error
		if err != nil && (!errors.As(err, &e) || e.Code != spec.CodeDecode && e.Code != spec.CodeConfig) {
			t.Errorf("%s: %#v", b, err)
		}
		if _, err := decode(&spec.Conf{Object: o}, &got, false, "DEL"); err != nil {
			t.Errorf("%s: DEL fails: %v", b, err)
		}
	})
}

// ambiguous reports whether an object in a document has a key twice, in any case: which of the two counts, encoding/json
// decides by their order.
func ambiguous(b []byte) bool {
	d := json.NewDecoder(bytes.NewReader(b))
	var objects []map[string]bool // around the token; nil: a list
	key := false                  // the next token of an object is a key
	for {
		token, err := d.Token()
		if err != nil {
			return false
		}
		switch token := token.(type) {
		case json.Delim:
			switch token {
			case '{':
				objects = append(objects, map[string]bool{})
			case '[':
				objects = append(objects, nil)
			default:
				objects = objects[:len(objects)-1]
			}
			key = true
			continue
		case string:
			if len(objects) == 0 || objects[len(objects)-1] == nil || !key {
				break
			}
			for other := range objects[len(objects)-1] {
				if strings.EqualFold(other, token) {
					return true
				}
			}
			objects[len(objects)-1][token] = true
			key = false
			continue
		}
		key = true
	}
}

// FuzzEnvironment: what a runtime passes is refused as the environment's mistake, or it is what the names may be.
func FuzzEnvironment(f *testing.F) {
	f.Add("ADD", "c1", "/run/netns/c1", "eth0", "IgnoreUnknown=1;K8S_POD_NAME=web")
	f.Add("DEL", "c1", "", "eth0", ";")
	f.Add("GC", "", "", "", "")
	f.Add("add", "../c", "n", "eth0/", "a==;b")
	f.Fuzz(func(t *testing.T, command, container, netns, ifName, args string) {
		e := environment{Command: command, ContainerID: container, Netns: netns, IfName: ifName, Args: args}
		if err := e.validate(); err != nil {
			var refused *spec.Error
			if !errors.As(err, &refused) || refused.Code != spec.CodeEnvironment || err.Error() == "" {
				t.Errorf("%+v: %#v", e, err)
			}
			return
		}
		switch command {
		case "ADD", "CHECK", "DEL", extra.VerbPlan, extra.VerbRepair:
			if spec.ValidContainerID(e.ContainerID) != nil || spec.ValidIfName(e.IfName) != nil {
				t.Errorf("%+v is taken", e)
			}
		case "GC", "STATUS":
			if e.ContainerID != "" || e.Netns != "" || e.IfName != "" || e.Args != "" {
				t.Errorf("%+v has an attachment", e)
			}
		default:
			t.Errorf("%q is a command", command)
		}
		if (command == "ADD" || command == "CHECK") && netns == "" {
			t.Errorf("%+v has no namespace", e)
		}
	})
}
