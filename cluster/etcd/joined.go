package etcd

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/internal/spelling"
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

// DefaultCluster is the name of a cluster that was given none.
const DefaultCluster = "fleet"

// ReadJoined reads the file. Warnings are about keys that are not read.
func ReadJoined(path string) (j Joined, warnings []string, err error) {
	b, err := plainfile.Read(path, plainfile.MaxSize)
	if err != nil {
		return j, nil, err
	}
	if err := j.parse(b); err != nil {
		return j, nil, fmt.Errorf("%s is not what fairlead cluster join writes: %w. Correct it, or remove it and let the node join with "+
			"a token, which fairlead cluster token on another node prints", path, err)
	}
	for _, text := range unknownKeys(b) {
		warnings = append(warnings, path+": "+text)
	}
	return j, warnings, nil
}

// parse reads the content of the file.
func (j *Joined) parse(b []byte) error {
	var wrong *json.UnmarshalTypeError
	err := json.Unmarshal(b, j)
	switch {
	case len(bytes.TrimSpace(b)) == 0:
		return errors.New("it is empty")
	case errors.As(err, &wrong):
		return fmt.Errorf("%s: want %s, and not a JSON %s", cmp.Or(wrong.Field, "the file"), plainType(wrong.Type), wrong.Value)
	case err != nil:
		return err
	case j.Cluster == "":
		return errors.New(`"cluster" is missing: want the name of the cluster`)
	}
	for _, check := range []struct {
		key string
		err error
	}{{"cluster", readableCluster(j.Cluster)}, {"endpoints", checkURLs(j.Endpoints)}, {"network", ValidNetwork(cmp.Or(j.Network, DefaultNetwork))}} {
		if check.err != nil {
			return fmt.Errorf("%s: %w", check.key, check.err)
		}
	}
	return nil
}

// plainType is what JSON calls the type of a field.
func plainType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list of strings"
	case reflect.Bool:
		return "true or false"
	}
	return "an object"
}

// unknownKeys says which keys of the file are not read.
func unknownKeys(b []byte) (warnings []string) {
	var known []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Joined]()) {
		if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); key != "" {
			known = append(known, key)
		}
	}
	has := map[string]json.RawMessage{}
	_ = json.Unmarshal(b, &has) // it was an object
	for _, key := range slices.Sorted(maps.Keys(has)) {
		if slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, key) }) {
			continue
		}
		text := fmt.Sprintf("unknown key %q", key)
		if near, ok := spelling.Nearest(key, known); ok {
			text += fmt.Sprintf(", did you mean %q?", near)
		}
		warnings = append(warnings, text)
	}
	return warnings
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

// DefineEndpoints adds the flag --etcd. An empty value is an error: a script's variable may be empty.
func DefineEndpoints(flags *flag.FlagSet, list *[]string, usage string) {
	flags.Func("etcd", usage, func(text string) error {
		if *list = SplitList(text); len(*list) == 0 {
			return errNoURL
		}
		return nil // package flag would print a password that stands in a wrong URL
	})
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
