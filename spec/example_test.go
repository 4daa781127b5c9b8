package spec_test

import (
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/spec"
)

// Read a list, and learn in which version it is to be run and what a runtime may tell its plugins.
func ExampleParseList() {
	list, err := spec.ParseList([]byte(`{
		"cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"], "name": "lan",
		"plugins": [{"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": true}}]
	}`))
	if err != nil {
		panic(err)
	}
	version, err := spec.Select(list)
	if err != nil {
		panic(err)
	}
	fmt.Println(list.Name, version, list.Plugins[0].Type, list.Capabilities())
	// Output: lan 1.1.0 bridge map[portMappings:true]
}

// An error says where it is.
func ExampleParseList_error() {
	_, err := spec.ParseList([]byte("{\n  \"name\": \"lan\",\n  \"plugins\": [{\"type\": 7}]\n}"))
	var at *spec.FileError
	if errors.As(err, &at) {
		fmt.Println("line", at.Line, "column", at.Column)
	}
	// Output: line 3 column 24
}

// A result of any version becomes the newest shape, and is written in any version.
func ExampleDecodeResult() {
	result, err := spec.DecodeResult([]byte(`{"cniVersion": "0.2.0", "ip4": {"ip": "10.1.2.3/24"}}`), spec.Newest)
	if err != nil {
		panic(err)
	}
	fmt.Println(result.IPs[0].Address)
	b, err := result.Encode(spec.V110)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(b))
	// Output:
	// 10.1.2.3/24
	// {
	//     "cniVersion": "1.1.0",
	//     "ips": [
	//         {
	//             "address": "10.1.2.3/24"
	//         }
	//     ]
	// }
}
