package doctor

import (
	"cmp"
	"debug/buildinfo"
	"fmt"
	"os/exec"
	"regexp"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/spec"
)

// client is a program of this host that reads network configurations.
type client struct {
	Name    string
	Version string
	Speaks  spec.Version // the newest CNI version that it accepts in a file
}

// Clients returns the installed clients whose CNI version is known from their program or from the list of Debian's
// packages.
func Clients() (all []client) {
	dpkg, _ := plainfile.ReadLinked("/var/lib/dpkg/status", 4*plainfile.MaxSize)
	for _, name := range []string{"containerd", "crio", "podman"} {
		if name == "podman" && !podmanByCNI() {
			continue
		}
		c := packaged(dpkg, name)
		path, _ := exec.LookPath(name)
		if info, err := buildinfo.ReadFile(path); err == nil {
			for _, m := range info.Deps {
				if m.Path == "github.com/containernetworking/cni" {
					c = client{name, cmp.Or(c.Version, info.Main.Version), ofLibrary(m.Version)}
				}
			}
		}
		if c.Speaks != "" {
			all = append(all, c)
		}
	}
	return all
}

// ofLibrary returns the newest CNI version that a release of the reference's library accepts.
func ofLibrary(release string) spec.Version {
	major, minor := release2(strings.TrimPrefix(release, "v"))
	switch {
	case major > 1 || major == 1 && minor >= 2:
		return spec.V110
	case major == 1:
		return spec.V100
	}
	return spec.V040
}

// packaged returns a client according to the list of Debian's packages.
func packaged(status []byte, name string) client {
	const later = `\n(?:.+\n)*?`                                     // on a later line of the entry, which ends at an empty one
	entry := regexp.MustCompile(`\nPackage: ` + name + `(?:\.io)?` + // Docker's is containerd.io
		later + `Status: .* installed` + later + `Version: (.+)`)
	found := entry.FindSubmatch(append([]byte("\n"), status...))
	if found == nil {
		return client{}
	}
	version := string(found[1])
	major, _ := release2(version)
	first := map[string]int{"containerd": 2, "podman": 5}[name] // the first release that accepts 1.1.0
	switch {
	case first == 0 || major == 0:
		return client{}
	case major >= first:
		return client{name, version, spec.V110}
	}
	return client{name, version, spec.V100}
}

// release2 returns the first two numbers of a version, without an epoch.
func release2(version string) (major, minor int) {
	release := version[strings.Index(version, ":")+1:]
	fmt.Sscanf(release, "%d.%d", &major, &minor) // what does not follow is 0
	return major, minor
}

// podmanByCNI reports whether podman uses CNI and not netavark.
func podmanByCNI() bool {
	noted, _ := plainfile.ReadLinked("/var/lib/containers/storage/defaultNetworkBackend", plainfile.MaxSize)
	text, _ := plainfile.ReadLinked("/etc/containers/containers.conf", plainfile.MaxSize)
	configured := regexp.MustCompile(`(?m)^\s*network_backend\s*=\s*["']?cni["']?\s*$`)
	return strings.TrimSpace(string(noted)) == "cni" || configured.Match(text)
}

// understood adds a finding for each client that refuses the network's file. No client reads the built-in network.
func (d *Doctor) understood(l *spec.List, all []client) {
	if l.File == "" || !netconf.Newer(l) {
		return
	}
	for _, c := range all {
		if !c.Speaks.AtLeast(spec.V110) {
			what := fmt.Sprintf("cniVersion is %s, and %s %s takes up to %s", l.CNIVersion, c.Name, c.Version, c.Speaks)
			d.add(VersionTooNew, "network "+l.Name, what, nil, "FILE", l.File)
		}
	}
}
