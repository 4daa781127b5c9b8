package etcd

import (
	"encoding/json"
	"fmt"

	"github.com/fairlead-cni/fairlead/spec"
)

// A Joined is what a node keeps of the cluster that it joined. It is the content of a file.
type Joined struct {
	Access
	Store string   `json:"store,omitempty"` // identifier of the cluster's etcd
	Pools []string `json:"pools,omitempty"` // from which the node claims; empty: all
}

// JoinedFile is where fairlead cluster join writes it.
const JoinedFile = "/etc/fairlead/fleet.json"

// ReadJoined reads the file.
func ReadJoined(path string) (j Joined, err error) {
	b, err := spec.ReadPlain(path, spec.MaxFile)
	if err != nil {
		return j, err
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return j, fmt.Errorf("%s: %w: write it with `fairlead cluster join`", path, err)
	}
	return j, nil
}
