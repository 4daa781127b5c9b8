package etcd

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode"

	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/spec"
)

// longestSocket is the longest path of a socket in bytes: the kernel's sun_path has 108, of which one is zero.
const longestSocket = 107

// DefaultNetwork is the network of a cluster whose file names none.
const DefaultNetwork = "pods"

// ValidNetwork returns an error if an agent cannot serve a network of this name: the specification forbids it, or the path of
// the agent's socket would be too long.
func ValidNetwork(name string) error {
	if err := spec.ValidName(name); err != nil {
		return err
	}
	return notLonger(name, longestSocket-len(grant.Socket("")))
}

// ValidCluster returns an error if no cluster should be made with this name. One that exists is opened with any name that
// readableCluster takes.
func ValidCluster(name string) error {
	if err := spec.ValidName(name); err != nil {
		return err
	}
	return notLonger(name, 63)
}

// ValidNode returns an error if a node cannot have this name: want labels of letters, digits, '-' and '_' between dots.
func ValidNode(name string) error {
	if err := spec.ValidName(name); err != nil {
		return err
	}
	if strings.Contains(name, "..") || strings.HasSuffix(name, ".") {
		return fmt.Errorf("name %q has a dot with nothing behind it", name)
	}
	return notLonger(name, 253)
}

func notLonger(name string, most int) error {
	if len(name) > most {
		return fmt.Errorf("name %.20q… has %d characters: want at most %d", name, len(name), most)
	}
	return nil
}

// readableCluster returns an error if a name cannot be part of a key of etcd, or be printed.
func readableCluster(name string) error {
	isBad := func(r rune) bool { return r == '/' || unicode.IsSpace(r) || !unicode.IsPrint(r) }
	if name == "" || strings.ContainsFunc(name, isBad) {
		return fmt.Errorf("%q: want a name without spaces, / and control characters", name)
	}
	return nil
}

var errNoURL = errors.New("want the URL of at least one member of etcd, such as https://192.0.2.1:2379")

// checkURLs returns an error if these are not URLs of the members of one etcd.
func checkURLs(all []string) error {
	if len(all) == 0 {
		return errNoURL
	}
	first, _, _ := strings.Cut(all[0], ":")
	for _, text := range all {
		if err := checkURL(text); err != nil {
			return err
		}
		if scheme, _, _ := strings.Cut(text, ":"); scheme != first {
			return fmt.Errorf("%s and %s: want one scheme for all members", all[0], text)
		}
	}
	return nil
}

// checkURL prints no URL with an @, because a password may stand before it.
func checkURL(text string) error {
	const form = "want http://HOST:PORT or https://HOST:PORT"
	if strings.Contains(text, "@") {
		return fmt.Errorf("an URL has a user or a password before its @: %s, with --etcd-user and --etcd-password-file", form)
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%q is no URL: %s", text, form)
	}
	if strings.TrimPrefix(u.Path, "/") != "" || strings.ContainsAny(text, "?#") {
		return fmt.Errorf("%q has something behind the port: %s", text, form)
	}
	if port, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || port == 0 {
		return fmt.Errorf("%q has the port %q: want one from 1 to 65535, such as etcd's 2379: %s", text, u.Port(), form)
	}
	return nil
}
