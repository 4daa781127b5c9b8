package fleet

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead-cni/fairlead/cluster/etcd"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/spec"
)

// tokenPrefix is what a token begins with. Behind it are a checksum and a token in JSON, in base64.
const tokenPrefix = "fairlead1."

// sumBytes is the length of the checksum, which finds a character that was lost or changed on the way.
const sumBytes = 6

// A token is what a further node has to know. It has the content of files.
type token struct {
	etcd.Joined
	Files map[string]string `json:"files,omitempty"` // by the names that they get on the further node

	// Authority is what a further member of the cluster's own etcd needs: it may do everything there.
	Authority map[string]string `json:"authority,omitempty"`
}

// encode returns the token of a node that has joined.
func encode(j etcd.Joined, authority map[string]string) (string, error) {
	t := token{Joined: j, Files: map[string]string{}, Authority: authority}
	for name, path := range map[string]*string{"fleet-ca.crt": &t.CA, "fleet.crt": &t.Cert, "fleet.key": &t.Key,
		"fleet.password": &t.PasswordFile, filepath.Base(j.Conf): &t.Conf} {
		if *path == "" {
			continue
		}
		b, err := plainfile.ReadLinked(*path, plainfile.MaxSize)
		if err != nil {
			return "", err
		}
		t.Files[name], *path = string(b), name
	}
	if j.Conf != "" {
		if err := isNetwork(j.Conf, t.Files[t.Conf], cmp.Or(j.Network, etcd.DefaultNetwork)); err != nil {
			return "", err
		}
	}
	if err := j.Access.CheckFiles(os.ReadFile); err != nil {
		return "", err
	}
	return t.text()
}

// text is the token as people copy it.
func (t token) text() (string, error) {
	b, err := json.Marshal(t)
	sum := sha256.Sum256(b)
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(append(sum[:sumBytes], b...)), err
}

// isNetwork returns an error if a file is no network configuration list of this name.
func isNetwork(file, content, network string) error {
	l, err := spec.ParseFile(file, []byte(content))
	if err == nil && l.Name != network {
		err = fmt.Errorf("name: it is %q, and the cluster's network is %q", l.Name, network)
	}
	var of *spec.FileError
	if errors.As(err, &of) {
		of.File = file
		return of
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// decode reads a token.
func decode(text string) (t token, err error) {
	body, isToken := strings.CutPrefix(strings.TrimSpace(text), tokenPrefix)
	b, err := base64.RawURLEncoding.DecodeString(body)
	if !isToken || err != nil || len(b) < sumBytes {
		return t, errNoToken
	}
	said, b := b[:sumBytes], b[sumBytes:]
	sum := sha256.Sum256(b)
	if !bytes.Equal(said, sum[:sumBytes]) || json.Unmarshal(b, &t) != nil {
		return t, errNoToken
	}
	if err := t.validate(); err != nil {
		return t, fmt.Errorf("the token is not right: %w: mend the node that printed it, and print another one there (fairlead cluster token)", err)
	}
	return t, nil
}

// errNoToken means that a text is no token as a node printed it.
var errNoToken = errors.New("this is no token, or a part of one, or a character of it is wrong: `fairlead cluster token` on a node of the " +
	"cluster prints it")

// validate returns an error if a node cannot join with the token.
func (t token) validate() error {
	for _, files := range []map[string]string{t.Files, t.Authority} {
		for name := range files {
			if name != filepath.Base(name) || strings.HasPrefix(name, ".") {
				return fmt.Errorf("%q is not the name of a file", name)
			}
		}
	}
	if err := etcd.ValidNetwork(cmp.Or(t.Network, etcd.DefaultNetwork)); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	read := func(name string) ([]byte, error) {
		content, has := t.Files[name]
		if !has {
			return nil, &os.PathError{Op: "read", Path: name, Err: os.ErrNotExist}
		}
		return []byte(content), nil
	}
	if t.Conf != "" {
		content, err := read(t.Conf)
		if err == nil {
			err = isNetwork(t.Conf, string(content), cmp.Or(t.Network, etcd.DefaultNetwork))
		}
		if err != nil {
			return err
		}
	}
	return t.Access.CheckFiles(read)
}

// in returns what a node keeps of the token if the files are in a directory.
func (t token) in(dir string) etcd.Joined {
	j := t.Joined
	for _, path := range []*string{&j.CA, &j.Cert, &j.Key, &j.PasswordFile, &j.Conf} {
		if *path != "" {
			*path = filepath.Join(dir, *path)
		}
	}
	return j
}

// prove asks etcd whether the token is of its cluster. Dir has the files meanwhile, and nothing is left of it.
func (t token) prove(ctx context.Context, dir string) (err error) {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := writeFiles(dir, t.Files); err != nil {
		return err
	}
	access := t.in(dir).Access
	s, err := etcd.Open(access)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.CheckVersion(ctx); err != nil {
		return access.Unreached(ctx, err)
	}
	v, err := s.Look(ctx)
	if err != nil {
		return err
	}
	at := strings.Join(t.Endpoints, ",")
	switch {
	case v.Config() == nil:
		return fmt.Errorf("etcd at %s has no cluster %s, of which the token is", at, t.Cluster)
	case v.Config().Store != t.Store:
		return fmt.Errorf("the token is of the cluster %s in the etcd %s, and etcd at %s has a cluster %s that was made in the "+
			"etcd %s: take a token of that cluster", t.Cluster, t.Store, at, t.Cluster, v.Config().Store)
	}
	return nil
}

func tokenVerb() verb {
	var more bool
	return verb{name: "token", options: "[--store]",
		does: "Print the token with which further nodes join. It has the key and the password for etcd: keep it secret.",
		flags: func(c *call) {
			c.flags.BoolVar(&more, "store", false, "print the token for join --store, with which a machine may do everything in the "+
				"cluster's own etcd")
		},
		run: func(ctx context.Context, c *call, operands []string) error {
			j, err := c.joined()
			if err != nil {
				return err
			}
			if j.Own {
				j.Endpoints = members(ctx, j.Access)
			}
			var authority map[string]string
			if more {
				if authority, err = (&store{dir: storeDir(c)}).secrets(); err != nil {
					return err
				}
			}
			text, err := encode(j, authority)
			if err != nil {
				return err
			}
			return c.print(map[string]string{"token": text}, func(w io.Writer) { printf(w, "%s\n", text) })
		}}
}
