package etcd

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/kernel/record"
)

// A Joined is what a node keeps of the cluster that it joined. It is the content of a file.
type Joined struct {
	Access
	Store   string   `json:"store,omitempty"`   // identifier of the cluster's etcd
	Network string   `json:"network,omitempty"` // name of the network whose containers get the addresses
	Conf    string   `json:"conf,omitempty"`    // path of that network's configuration, which the agent installs
	Pools   []string `json:"pools,omitempty"`   // from which the node claims; empty: all
}

// JoinedFile is where fairlead cluster join writes it.
const JoinedFile = "/etc/fairlead/fleet.json"

// DefaultCluster is the name of a cluster that nobody named.
const DefaultCluster = "fleet"

// ReadJoined reads the file.
func ReadJoined(path string) (j Joined, err error) {
	b, err := plainfile.Read(path, plainfile.MaxSize)
	if err != nil {
		return j, err
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return j, fmt.Errorf("%s: %w: write it with `fairlead cluster join`", path, err)
	}
	return j, nil
}

// Write replaces the file.
func (j Joined) Write(path string) error {
	b, err := json.MarshalIndent(j, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := record.Replace(path, append(b, '\n'), true); err != nil {
		return err
	}
	return os.Chmod(path, 0o644) // it has paths, and nothing secret
}

// With returns j with what flags say instead.
func (j Joined) With(flags Joined, endpoints []string) Joined {
	if len(endpoints) > 0 {
		j.Endpoints = endpoints
	}
	if len(flags.Pools) > 0 {
		j.Pools = flags.Pools
	}
	j.Cluster = cmp.Or(flags.Cluster, j.Cluster, DefaultCluster)
	j.CA, j.Cert, j.Key = cmp.Or(flags.CA, j.CA), cmp.Or(flags.Cert, j.Cert), cmp.Or(flags.Key, j.Key)
	j.User, j.PasswordFile = cmp.Or(flags.User, j.User), cmp.Or(flags.PasswordFile, j.PasswordFile)
	return j
}

// Define adds the flags that say how etcd is to know this node.
func (a *Access) Define(flags *flag.FlagSet) {
	flags.StringVar(&a.CA, "etcd-cacert", "", "`FILE` with the certificates that sign those of etcd. It and the next ones are read "+
		"for each connection")
	flags.StringVar(&a.Cert, "etcd-cert", "", "`FILE` with the certificate of this node")
	flags.StringVar(&a.Key, "etcd-key", "", "`FILE` with the key of --etcd-cert")
	flags.StringVar(&a.User, "etcd-user", "", "`NAME` of the user, where etcd wants a password")
	flags.StringVar(&a.PasswordFile, "etcd-password-file", "", "`FILE` with the password of --etcd-user")
}

// SplitList returns the parts of a text between commas.
func SplitList(text string) (list []string) {
	for _, one := range strings.Split(text, ",") {
		if one = strings.TrimSpace(one); one != "" {
			list = append(list, one)
		}
	}
	return list
}
