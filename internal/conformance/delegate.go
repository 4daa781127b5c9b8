package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// Paths in the throw-away host.
const (
	delegates = "/run/conformance/bin"   // the suite's own plugins, which are links to this program
	logDir    = "/run/conformance/calls" // what they were called with, a file for each call
)

// ipamType is the name of the suite's IPAM plugin, and ipamMarker what it prints on stderr.
const (
	ipamType   = "conformance-ipam"
	ipamMarker = "conformance-ipam was called"
)

// A called is one call of a plugin of the suite, as it saw it.
type called struct {
	Type      string            `json:"type"`
	Verb      string            `json:"verb"`
	Env       map[string]string `json:"env"` // the variables of the protocol that are set
	Stdin     []byte            `json:"stdin"`
	Program   string            `json:"program"`   // the path that it was called by
	Namespace string            `json:"namespace"` // the network namespace that it ran in
	HasNetns  bool              `json:"hasNetns"`  // CNI_NETNS leads to a network namespace
}

// An ipamOrder tells the suite's IPAM plugin what to do. It is the object ipam.
type ipamOrder struct {
	Type   string                `json:"type"`
	Result json.RawMessage       `json:"result"`
	Fail   map[string]spec.Error `json:"fail,omitempty"` // by verb
}

// parentType is the plugin that an IPAM plugin is told to be run by.
const parentType = "conformance-parent"

// ipamConf is the object ipam by which a container gets its address.
func ipamConf(c *container, change func(*ipamOrder)) string {
	o := ipamOrder{Type: ipamType, Result: json.RawMessage("{}")}
	if c != nil {
		o.Result = json.RawMessage(fmt.Sprintf(`{"cniVersion":"1.1.0","ips":[{"address":"%s","gateway":"%s"}],`+
			`"routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["%s"]}}`, c.addr, gateway(), nameserver))
	}
	if change != nil {
		change(&o)
	}
	return string(must(json.Marshal(o)))
}

// serve is this program as a plugin of the suite.
func serve(name string, stdin io.Reader, stdout, stderr io.Writer) int {
	in, err := io.ReadAll(stdin)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	verb := os.Getenv("CNI_COMMAND")
	if verb == "VERSION" {
		b, _ := json.Marshal(spec.VersionInfo{CNIVersion: spec.Newest, SupportedVersions: spec.Versions()})
		stdout.Write(b)
		return 0
	}
	if err := record(name, verb, in); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	if name != ipamType {
		return act(name, verb, in, stdout, stderr)
	}
	fmt.Fprintln(stderr, ipamMarker)
	var conf struct {
		CNIVersion spec.Version
		IPAM       ipamOrder
	}
	if err := json.Unmarshal(in, &conf); err != nil {
		return refuse(stdout, "", &spec.Error{Code: spec.CodeDecode, Msg: err.Error()})
	}
	if e, ok := conf.IPAM.Fail[verb]; ok {
		return refuse(stdout, conf.CNIVersion, &e)
	}
	if verb != "ADD" {
		return 0
	}
	r, err := spec.DecodeResult(conf.IPAM.Result, spec.Newest)
	if err != nil {
		return refuse(stdout, conf.CNIVersion, spec.AsError(err, spec.CodeConfig))
	}
	return answerWith(stdout, r, conf.CNIVersion)
}

// answerWith prints a result in a version.
func answerWith(stdout io.Writer, r *spec.Result, v spec.Version) int {
	b, err := r.Encode(v)
	if err != nil {
		return refuse(stdout, v, spec.AsError(err, spec.CodeConfig))
	}
	stdout.Write(b)
	return 0
}

func refuse(stdout io.Writer, v spec.Version, e *spec.Error) int {
	stdout.Write(e.Encode(v))
	return 1
}

// record notes a call. The number of its file is that of the calls before, for one call runs at a time.
func record(name, verb string, stdin []byte) error {
	c := called{Type: name, Verb: verb, Env: map[string]string{}, Stdin: stdin, Program: os.Args[0]}
	c.Namespace, _ = os.Readlink("/proc/self/ns/net")
	if ns, err := kernel.Open(os.Getenv("CNI_NETNS")); err == nil {
		c.HasNetns = os.Getenv("CNI_NETNS") != ""
		ns.Close()
	}
	for _, v := range os.Environ() {
		if key, value, _ := strings.Cut(v, "="); strings.HasPrefix(key, "CNI_") {
			c.Env[key] = value
		}
	}
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(logDir, ".new")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	for n := 0; ; n++ {
		if err := os.Link(f.Name(), fmt.Sprintf("%s/%06d", logDir, n)); !errors.Is(err, os.ErrExist) {
			return errors.Join(err, os.Remove(f.Name()))
		}
	}
}

// furnish puts the suite's plugins into the host.
func furnish() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(delegates, 0o755), os.MkdirAll(logDir, 0o755)); err != nil {
		return err
	}
	for _, name := range ownPlugins() {
		err = errors.Join(err, os.Symlink(exe, filepath.Join(delegates, name)))
	}
	return err
}

// ownPlugins are the names by which this program is a plugin.
func ownPlugins() []string { return append(runtimePlugins(), ipamType) }

// calls returns the calls of the suite's plugins so far, the first one first.
func calls() (all []called) {
	files := must(filepath.Glob(logDir + "/[0-9]*"))
	slices.Sort(files)
	for _, file := range files {
		var c called
		if err := json.Unmarshal(must(os.ReadFile(file)), &c); err != nil {
			require(fmt.Errorf("%s: %w", file, err))
		}
		all = append(all, c)
	}
	return all
}
