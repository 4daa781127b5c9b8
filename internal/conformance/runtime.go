package conformance

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// netDir has the network of a trial of a runtime.
const netDir = "/run/conformance/net.d"

// runtimePlugins are the suite's plugins that a runtime runs, in the order of the list.
func runtimePlugins() []string {
	return []string{"conformance-a", "conformance-b", "conformance-c"}
}

// An order tells a plugin of the suite what to do. It is the key "conformance" of its configuration. The keys of its
// maps are verbs.
type order struct {
	Fail  map[string]spec.Error `json:"fail,omitempty"`
	Print map[string]string     `json:"print,omitempty"` // on stdout, and exit with 0
	Exit  map[string]string     `json:"exit,omitempty"`  // with status 3, and this on stderr
	Kill  []string              `json:"kill,omitempty"`  // itself
	Wait  map[string]point      `json:"wait,omitempty"`  // until the check lets it go on
}

// A diskNetwork is the network of a trial of a runtime, as it is written to the disk.
type diskNetwork struct {
	keys    map[string]any            // of the list
	plugins map[string]map[string]any // further keys of the plugins, by the last letter of their types
}

// write writes the network. Its version is the newest unless keys say another.
func (n diskNetwork) write() {
	doc := map[string]any{"cniVersion": spec.Newest, "name": network}
	var plugins []map[string]any
	for _, typ := range runtimePlugins() {
		p := map[string]any{"type": typ}
		maps.Copy(p, n.plugins[typ[len(typ)-1:]])
		plugins = append(plugins, p)
	}
	doc["plugins"] = plugins
	maps.Copy(doc, n.keys)
	writeNetwork("10-conformance.conflist", doc)
}

func writeNetwork(name string, doc any) {
	path := filepath.Join(netDir, name)
	require(os.MkdirAll(filepath.Dir(path), 0o755))
	require(os.WriteFile(path, must(json.Marshal(doc)), 0o644))
}

// orderKey is a plugin's order as a further key.
func orderKey(o order) map[string]any { return map[string]any{"conformance": o} }

// call calls the runtime under test. Vars join its environment.
func (t *trial) call(verb string, c *container, vars ...string) *answer {
	ctx, cancel := context.WithTimeout(t.ctx, t.limit)
	defer cancel()
	argv := slices.Concat(t.subject.Command, []string{verb, cmp.Or(t.network, network), c.netns})
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	own := append([]string{"CNI_PATH=" + delegates, "NETCONFPATH=" + netDir, "CNI_IFNAME=" + c.ifName}, vars...)
	cmd.Env = append(os.Environ(), own...)
	var stdout, stderr bounded
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = invoke.DefaultGrace
	a := &answer{request: request{verb: verb}, failed: cmd.Run()}
	switch {
	case errors.Is(a.failed, exec.ErrWaitDelay):
		a.failed = nil // it exited with 0, and left a daemon that holds the pipes
	case a.failed != nil && ctx.Err() != nil:
		a.failed = fmt.Errorf("killed after %v (--timeout)", t.limit)
	}
	a.stdout, a.stderr = stdout.kept, string(stderr.kept)
	a.exit = cmd.ProcessState.ExitCode()
	for _, word := range slices.Concat(own, argv) {
		a.line = append(a.line, quoted(word))
	}
	if errors.Is(a.failed, exec.ErrNotFound) || errors.Is(a.failed, os.ErrNotExist) {
		require(a.failed)
	}
	return a
}

// works calls the runtime, which must succeed, and returns the calls of plugins that it made for it.
func (t *trial) works(verb string, c *container, vars ...string) []called {
	log := t.made(verb, c, vars...)
	t.last.expect(t.last.failed == nil, verb+" to succeed")
	return log
}

// breaks calls the runtime, which must fail, and returns the calls of plugins that it made for it.
func (t *trial) breaks(verb string, c *container, vars ...string) []called {
	log := t.made(verb, c, vars...)
	t.last.expect(t.last.failed != nil, "a non-zero exit status of "+verb)
	return log
}

// made calls the runtime, and returns the calls of plugins that it made. Questions of their versions do not count.
func (t *trial) made(verb string, c *container, vars ...string) []called {
	before := len(calls())
	t.last = t.call(verb, c, vars...)
	return calls()[before:]
}

// sequence is the calls as verbs and last letters: "ADD a, ADD b".
func sequence(log []called) string {
	var words []string
	for _, c := range log {
		words = append(words, c.Verb+" "+c.Type[len(c.Type)-1:])
	}
	if len(words) == 0 {
		return "no calls"
	}
	return strings.Join(words, ", ")
}

// ordered fails where the calls are of another sequence.
func ordered(log []called, want string) {
	got := sequence(log)
	expect(got == want, want, "%s", got)
}

// mentions reports whether a runtime said a word.
func (a *answer) mentions(word string) bool {
	return strings.Contains(string(a.stdout), word) || strings.Contains(a.stderr, word)
}

// beginning makes a container and the network.
func (t *trial) beginning(n diskNetwork) *container {
	n.write()
	return t.container("c1")
}

// running is beginning, and the ADD.
func (t *trial) running(n diskNetwork) (*container, []called) {
	c := t.beginning(n)
	return c, t.works("add", c)
}

// given is a key of the configuration that a plugin got.
func (c called) given(key string) json.RawMessage {
	doc, err := members(c.Stdin)
	if err != nil {
		return nil
	}
	return doc[key]
}

// act does what a plugin of the suite does for a runtime, and returns its exit status.
func act(name, verb string, in []byte, stdout, stderr io.Writer) int {
	var conf struct {
		CNIVersion  spec.Version
		PrevResult  json.RawMessage
		Conformance order
	}
	if err := json.Unmarshal(in, &conf); err != nil {
		return refuse(stdout, "", &spec.Error{Code: spec.CodeDecode, Msg: err.Error()})
	}
	o := conf.Conformance
	if slices.Contains(o.Kill, verb) {
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			self.Kill()
			select {}
		}
	}
	if at, ok := o.Wait[verb]; ok {
		at.wait()
	}
	if text, ok := o.Exit[verb]; ok {
		fmt.Fprintln(stderr, text)
		return 3
	}
	if text, ok := o.Print[verb]; ok {
		fmt.Fprintln(stdout, text)
		return 0
	}
	if e, ok := o.Fail[verb]; ok {
		return refuse(stdout, conf.CNIVersion, &e)
	}
	if verb != "ADD" {
		return 0
	}
	r, err := extended(name, conf.PrevResult, conf.CNIVersion)
	if err != nil {
		return refuse(stdout, conf.CNIVersion, spec.AsError(err, spec.CodeDecode))
	}
	return answerWith(stdout, r, conf.CNIVersion)
}

// extended is the result of a plugin of the suite. The first plugin makes the interface, for a runtime may look for it.
// Each plugin leaves its name in dns.search.
func extended(name string, prev json.RawMessage, v spec.Version) (r *spec.Result, err error) {
	if prev == nil {
		ifName, netns := os.Getenv("CNI_IFNAME"), os.Getenv("CNI_NETNS")
		r = &spec.Result{Interfaces: []spec.Interface{{Name: ifName, Sandbox: netns}}}
		err = alter(netns, func(ns *kernel.NS) error {
			_, err := bridge(ns, ifName, netip.Prefix{})
			if errors.Is(err, rtnl.ErrLinkExists) {
				err = nil // of an ADD before: that a second one is refused is the runtime's part
			}
			return err
		})
	} else {
		r, err = spec.DecodeResult(prev, v)
	}
	if err == nil {
		r.DNS.Search = append(r.DNS.Search, name)
	}
	return r, err
}
