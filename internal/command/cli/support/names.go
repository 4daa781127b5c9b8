package support

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/calls"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/calllog"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
)

// nameList is the set of names on a host, in each form in which they occur in text.
type nameList map[string]bool

func (l nameList) add(all ...string) {
	for _, n := range all {
		escaped, _ := json.Marshal(n)
		var plain bytes.Buffer
		e := json.NewEncoder(&plain)
		e.SetEscapeHTML(false)
		e.Encode(n) // encoding text cannot fail
		for _, form := range []string{n, withoutQuotes(escaped), withoutQuotes(plain.Bytes()),
			string(term.Printable(n))} {
			if form != "" && form != "default" && form != "localhost" && !strings.HasPrefix(form, "kube-") {
				l[form] = true
			}
		}
	}
}

func withoutQuotes(text []byte) string {
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(string(text)), `"`), `"`)
}

// id adds a container's ID if a person chose it, or cnitool derived it from a path.
func (l nameList) id(id string) {
	if attached.ShortID(id) == id { // cnitool's derives from a path, which can be guessed
		l.add(id)
	}
}

// netns adds the name of a namespace.
func (l nameList) netns(path string) {
	if path != "" && !strings.HasPrefix(path, "/proc/") {
		l.add(filepath.Base(path))
	}
}

// mac adds a MAC without colons, as in an alias. MACs with colons are recognised by their form.
func (l nameList) mac(mac string) {
	if a, err := net.ParseMAC(mac); err == nil && slices.Max(a) > 0 {
		l.add(strings.ReplaceAll(a.String(), ":", ""))
	}
}

// hiddenNames returns the names of containers, pods and the host as they occur in text, including those of
// containers that only the log knows.
func hiddenNames(list []attach.Cached, log []calls.Line) []string {
	all := nameList{}
	for _, c := range list {
		all.id(c.ContainerID)
		all.add(strings.Split(attached.Name(c), "/")...)
		for _, kv := range c.Args {
			if strings.Contains(kv[0], "POD") || strings.Contains(kv[0], "NAME") {
				all.add(kv[1])
			}
		}
		all.netns(c.Netns)
		all.add(texts(c.Capabilities["aliases"])...)
		if c.Result != nil {
			all.add(append(c.Result.DNS.Search, c.Result.DNS.Domain)...)
			for _, i := range c.Result.Interfaces {
				all.mac(i.MAC)
			}
		}
	}
	all.of(log)
	leases, _ := filepath.Glob(leaseDir + "/*/*")
	for _, path := range leases[:min(len(leases), mostFiles*mostFiles)] {
		if b, err := plainfile.Read(path, 4096); err == nil && strings.Count(filepath.Base(path), ".")+
			strings.Count(filepath.Base(path), ":") > 1 {
			first, _, _ := strings.Cut(string(b), "\n")
			all.id(strings.TrimSpace(first))
		}
	}
	if host, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(host, ".")
		all.add(host, short)
	}
	links, _ := net.Interfaces()
	for _, l := range links {
		all.mac(l.HardwareAddr.String())
	}
	return slices.Collect(maps.Keys(all))
}

// of adds the names in lines of the log and in the arguments of this process, which the bundle contains too.
func (l nameList) of(log []calls.Line) {
	args := regexp.MustCompile(`\w*(?:POD|NAME)\w*=([^;\s"'\\…]+)`)
	netns := regexp.MustCompile(`netns/([^/\s"':;,()…]+)`)
	within := func(text string) {
		for _, re := range []*regexp.Regexp{args, netns} {
			for _, match := range re.FindAllStringSubmatch(text, -1) {
				l.add(match[1])
			}
		}
	}
	for _, line := range log {
		l.id(line.Container)
		l.add(strings.Split(line.Pod, "/")...)
		within(line.Error)
		for _, s := range line.Steps {
			within(s.Step)
		}
	}
	within(os.Getenv("CNI_ARGS"))
	l.netns(os.Getenv("CNI_NETNS"))
	l.id(os.Getenv("CNI_CONTAINERID"))
}

// calls returns the lines of the log.
func (c *collector) calls() ([]calls.Line, error) {
	ctx, cancel := context.WithTimeout(c.ctx, partTime)
	defer cancel()
	log, _ := calllog.OpenCalls(true) // as for log.txt; its problems are in another part
	return log.Read(ctx)
}
