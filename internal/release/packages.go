package main

import (
	"cmp"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/apk"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// A product is a package in all formats.
type product struct {
	name, description string
	scripts           string // what comes before "postinstall.sh" and "preremove.sh" in their paths; empty: none
	tree              []file
}

// packages writes the packages of one architecture: one with what every host needs, one with the agent of a cluster's
// nodes, one with an etcd, and one with the program that tests any plugin. The agent and the etcd are each larger than
// the first.
func (r release) packages(arch string, tree []file) error {
	scratch, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	const scripts = "packaging/scripts/"
	// Its scripts install the plugins where runtimes search them: the package has none of its files there, because those
	// of the reference's packages are there.
	main := product{name: "fairlead", tree: without(tree, otherFiles()...), scripts: scripts, description: "Container networking: CNI plugins " +
		"and the command fairlead\n" +
		"All plugins of the Container Network Interface as one static program, and a command that connects\n" +
		"network namespaces, shows what is attached, and finds what is wrong."}
	agent := product{name: "fairlead-agent", tree: within(tree, agentFiles()...), scripts: scripts + "agent-",
		description: "Connects the pods of a Kubernetes node with those of other nodes\n" +
			"Keeps a VXLAN device and routes as the cluster's Node objects say, and grants the node's range to the plugin\n" +
			"cluster of the package fairlead."}
	store := product{name: "fairlead-store", tree: within(tree, storeFiles()...), scripts: scripts + "store-",
		description: "Etcd for nodes that share pools of addresses\n" +
			"One to three machines of a fleet without Kubernetes run it, where there is no other etcd. The command\n" +
			"fairlead cluster init starts it."}
	conformance := product{name: "fairlead-conformance", tree: within(tree, conformanceFiles()...),
		description: "Tests any CNI plugin and runtime against the specification\n" +
			"Each check is named by a clause of the Container Network Interface, and runs in a throw-away host."}
	for _, p := range []product{main, agent, store, conformance} {
		for _, format := range []string{"deb", "rpm", "apk"} {
			if err := r.pack(p, arch, format, scratch); err != nil {
				return err
			}
		}
	}
	return nil
}

// agentFiles are the files of the package fairlead-agent.
func agentFiles() []string {
	return []string{"bin/fairlead-agent", "lib/systemd/system/fairlead-agent.service"}
}

// storeFiles are the files of the package fairlead-store.
func storeFiles() []string {
	return []string{"bin/fairlead-store", "lib/systemd/system/fairlead-store.service"}
}

// conformanceFiles are the files of the package fairlead-conformance.
func conformanceFiles() []string { return []string{"bin/fairlead-conformance"} }

// otherFiles are the files of packages other than fairlead.
func otherFiles() []string { return slices.Concat(agentFiles(), storeFiles(), conformanceFiles()) }

// pack writes one package.
func (r release) pack(p product, arch, format, scratch string) error {
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	info, err := r.info(p, arch, format, scratch)
	if err != nil {
		return err
	}
	info = nfpm.WithDefaults(info)
	return r.create(packager.ConventionalFileName(info),
		func(w io.Writer) error { return packager.Package(info, w) })
}

// info describes one package.
func (r release) info(p product, arch, format, scratch string) (*nfpm.Info, error) {
	info := &nfpm.Info{
		Name: p.name, Arch: map[string]string{"arm": "arm7"}[arch], Platform: "linux", Version: r.version,
		Release: "1",
		Section: "net", Priority: "optional", Maintainer: "Fairlead's authors", Vendor: "Fairlead",
		License:  "Apache-2.0",
		Homepage: "https://github.com/fairlead-cni/fairlead", MTime: r.date, DisableGlobbing: true,
		Description: p.description,
	}
	info.Arch = cmp.Or(info.Arch, arch)
	if p.scripts != "" {
		after, err := r.script(p.scripts+"postinstall.sh", scratch)
		if err != nil {
			return nil, err
		}
		before, err := r.script(p.scripts+"preremove.sh", scratch)
		if err != nil {
			return nil, err
		}
		info.Scripts = nfpm.Scripts{PostInstall: after, PreRemove: before}
		info.APK.Scripts.PostUpgrade = after
	}
	info.RPM.BuildHost, info.RPM.Group = "release", "System Environment/Base"
	for _, f := range p.tree {
		c, err := content(f, format, scratch)
		if err != nil {
			return nil, err
		}
		c.FileInfo = &files.ContentFileInfo{Owner: "root", Group: "root", Mode: f.mode, MTime: r.date}
		info.Contents = append(info.Contents, c)
	}
	return info, nil
}

// script is a copy of a script whose time is that of the release: a package of Alpine's has the time of the file.
func (r release) script(source, scratch string) (string, error) {
	text, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	to := filepath.Join(scratch, filepath.Base(source))
	return to, errors.Join(os.WriteFile(to, text, 0o755), os.Chtimes(to, r.date, r.date))
}

// content is a file as a package has it. Packages know no hard links, so the plugins are symbolic ones there.
func content(f file, format, scratch string) (*files.Content, error) {
	c := &files.Content{Source: f.source, Destination: "/usr/" + f.path}
	if f.link != "" {
		c.Type, c.Source = files.TypeSymlink, path.Base(f.link)
	}
	if format == "deb" {
		c.Destination = strings.Replace(c.Destination, "/zsh/site-functions/", "/zsh/vendor-completions/", 1)
		c.Destination = strings.Replace(c.Destination, "/doc/fairlead/LICENSE", "/doc/fairlead/copyright", 1)
	}
	if !strings.HasPrefix(f.path, "lib/systemd/") {
		return c, nil
	}
	// The reference's packages have units of the names cni-dhcp.service and cni-dhcp.socket.
	const theirs, ours = "cni-dhcp.", "fairlead-dhcp."
	c.Destination = strings.Replace(c.Destination, theirs, ours, 1)
	text, err := os.ReadFile(f.source)
	if err != nil {
		return nil, err
	}
	c.Source = filepath.Join(scratch, path.Base(c.Destination))
	return c, errors.Join(err, os.WriteFile(c.Source, []byte(strings.ReplaceAll(string(text), theirs, ours)), 0o644))
}
