// Package netconf is the networks of a host: their files and the built-in one, the directories and versions of their
// plugins, address pools and overlaps. What a network would do to one container is in package target.
package netconf

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// ThrownAway is a file that exists only in a throw-away host, which has a /run of its own.
const ThrownAway = StateDir + "/throw-away"

// StateDir holds the state of each running `fairlead run`. A reboot clears it, as it ends the namespaces.
const StateDir = record.RunDir

// pluginDirs returns where distributions and orchestrators install plugins, in search order.
func pluginDirs() []string {
	return []string{AdminDir, "/usr/lib/cni", "/usr/libexec/cni", "/usr/local/lib/cni", "/usr/local/libexec/cni"}
}

// AdminDir is where the administrator installs plugins.
const AdminDir = "/opt/cni/bin"

// ConfDir returns the directory of the network configurations.
func ConfDir() string {
	if dir := os.Getenv("NETCONFPATH"); dir != "" {
		return dir
	}
	return "/etc/cni/net.d"
}

// Network is a list, and where its plugins come from.
type Network struct {
	*spec.List
	BuiltIn    bool
	Remembered bool // only the cache has it, no file
}

// DefaultNetwork is the name of the network that exists without a configuration.
const DefaultNetwork = "fairlead"

// Find finds the network called name. A file that defines the default network replaces the built-in one.
func Find(a *app.App, name string) (*Network, error) {
	if err := spec.ValidName(name); err != nil {
		return nil, app.Usage("network %q: %w", name, err)
	}
	l, err := spec.Load(ConfDir(), name)
	switch {
	case err == nil:
		return Loaded(a, l), nil
	case name == DefaultNetwork && errors.Is(err, spec.ErrNotFound):
		return &Network{List: builtIn(), BuiltIn: true}, nil
	case a.Orphans:
		if l := Orphaned(name); l != nil {
			why := "no usable file defines network " + name
			if !errors.Is(err, spec.ErrNotFound) {
				why = err.Error()
			}
			a.Note("warning: %s; the configuration that it was attached with is used", why)
			return &Network{List: l, Remembered: true}, nil
		}
	}
	return nil, err
}

// FindOrFile finds the network called arg, or the one in the file arg. In the working directory, arg is a file if it
// has a configuration's suffix and no network has that name.
func FindOrFile(a *app.App, arg string) (*Network, error) {
	if !strings.Contains(arg, "/") {
		n, err := Find(a, arg)
		if !errors.Is(err, spec.ErrNotFound) || !slices.Contains([]string{".conflist", ".conf", ".json"},
			filepath.Ext(arg)) {
			return n, err
		}
		if _, absent := os.Stat(arg); absent != nil {
			return nil, err
		}
	}
	return FindFile(a, arg)
}

// FindFile returns the network that a file at any path defines.
func FindFile(a *app.App, file string) (*Network, error) {
	l, err := spec.LoadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		hint := "Give the path of a file; `fairlead net ls` lists the networks and their files."
		if _, named := spec.Load(ConfDir(), file); named == nil { // --conf takes a path, not a name
			hint = "A network has that name: use --net."
		}
		return nil, app.Fail(app.ExitNotFound, hint, "%w", err)
	}
	if err != nil {
		return nil, err
	}
	return Loaded(a, l), nil
}

// Loaded returns the network of a list read from a file, and prints the warnings about that file.
func Loaded(a *app.App, l *spec.List) *Network {
	n := &Network{List: l}
	app.Warn(a, n.FileWarnings())
	return n
}

// Known fails for a network that has no attachment and no file, such as a misspelt name. The empty name means all
// networks and is known.
func Known(name string) error {
	if name == "" || name == DefaultNetwork {
		return nil
	}
	if err := spec.ValidName(name); err != nil {
		return app.Usage("network %q: %w", name, err)
	}
	if list, problems := attached.List(name); len(list)+len(problems) > 0 {
		return nil
	}
	if _, err := spec.Load(ConfDir(), name); errors.Is(err, spec.ErrNotFound) {
		return err
	}
	return nil // errors in its file are reported elsewhere
}

// Orphaned returns the list of a network that only the cache knows, or nil.
func Orphaned(name string) *spec.List {
	list, _ := attached.List(name)
	for _, c := range list {
		if l := c.AttachedBy(nil); l != nil {
			return l
		}
	}
	return nil
}

// The default network's subnet avoids those of podman (10.88.0.0/16 and above), Docker (172.17 and above), flannel
// and kubeadm (10.244), k3s (10.42) and libvirt (192.168.122).
const (
	DefaultBridge  = "fairlead0"
	DefaultSubnet4 = "10.87.0.0/16"
	DefaultSubnet6 = "fdfa:171e:ad::/64"
)

// Object is a JSON object.
type Object = map[string]any

// DefaultList returns the configuration of the default network: a bridge with masquerading, published ports, and
// accepts in the host's firewall. More are further plugins of the list.
func DefaultList(ipv6 bool, more ...Object) []byte {
	ranges := [][]Object{{{"subnet": DefaultSubnet4}}}
	if ipv6 {
		ranges = append(ranges, []Object{{"subnet": DefaultSubnet6}})
	}
	b, err := json.Marshal(Object{
		"cniVersion": "1.1.0",
		"name":       DefaultNetwork,
		"plugins": append([]Object{
			{"type": "bridge", "bridge": DefaultBridge, "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
				"ipam": Object{"type": "host-local", "ranges": ranges}},
			{"type": "portmap", "capabilities": Object{"portMappings": true}},
			{"type": "firewall"},
		}, more...),
	})
	if err != nil {
		panic(err) // the values are maps, strings and booleans
	}
	return b
}

// builtIn returns the list of the default network.
func builtIn() *spec.List {
	l, err := spec.ParseList(DefaultList(IPv6Here()))
	if err != nil {
		panic(err) // a test parses it
	}
	return l
}

// Lists returns the networks that the files define, and the problems of files. With a default, the built-in network is
// among them, unless a file defines it.
func Lists(withDefault bool) (lists []*spec.List, problems []error) {
	lists, problems = spec.LoadDir(ConfDir())
	isDefault := func(l *spec.List) bool { return l.Name == DefaultNetwork }
	if withDefault && !slices.ContainsFunc(lists, isDefault) {
		lists = append(lists, builtIn())
	}
	return lists, problems
}

// IPv6Here reports whether the kernel has IPv6. It lacks IPv6 after a boot with ipv6.disable=1.
func IPv6Here() bool {
	_, err := os.Stat("/proc/net/if_inet6")
	return err == nil
}

// Runtime returns the Runtime for n's plugins.
func Runtime(a *app.App, n *Network) (*attach.Runtime, error) {
	dirs, itself := Search(n)
	if itself || os.Getenv("CNI_PATH") == "" && !installed(n, dirs, remembered(n.Name)...) {
		own, err := OwnPlugins()
		if err != nil {
			return nil, fmt.Errorf("make a plugin directory of fairlead itself: %w", err)
		}
		dirs = append(dirs, own)
	}
	stderr := term.NewScreen(a.Stderr)
	return &attach.Runtime{PluginDirs: dirs, Stderr: stderr, Vanished: attached.Vanished, Run: Runner(a, stderr)}, nil
}

// Add attaches a namespace to n with r, unless the file of n has been removed since it was read: the program that
// removes it holds the network while it looks for attachments.
func (n *Network) Add(ctx context.Context, r *attach.Runtime, at attach.Attachment) (*spec.Result, error) {
	if n.File != "" && !n.Remembered {
		release, err := r.ShareNetwork(ctx, n.Name)
		if err != nil {
			return nil, err
		}
		defer release()
		if _, err := os.Lstat(n.File); errors.Is(err, fs.ErrNotExist) {
			return nil, app.Fail(app.ExitNotFound, "`fairlead net ls` lists the networks.",
				"network %s was removed in the meantime: %s is gone", n.Name, n.File)
		}
	}
	return r.Add(ctx, n.List, at)
}

// Runner returns what runs plugins: this process for a plugin of this program or of its release, else a process of its
// own. Logs go to stderr.
func Runner(a *app.App, stderr io.Writer) invoke.Runner {
	if a.Exec {
		return invoke.Run
	}
	sdk.LogTo(stderr)
	return sdk.Here(plugin.All(), func(path string) bool { return sameRelease(path, a.Version) })
}

// Search returns the directories in which n's plugins are searched, and whether this program stands in for missing
// ones. CNI_PATH replaces the usual directories. The built-in network uses only this program. In a throw-away host,
// this program comes first unless plugins are installed in its AdminDir.
func Search(n *Network) (dirs []string, itself bool) {
	if path := os.Getenv("CNI_PATH"); path != "" {
		return filepath.SplitList(path), false
	}
	if n.BuiltIn {
		return nil, true
	}
	for _, dir := range pluginDirs() {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			dirs = append(dirs, dir)
		}
	}
	if _, err := os.Stat(ThrownAway); err == nil && !anyInstalled(n, AdminDir) {
		if own, err := OwnPlugins(); err == nil { // the machine's plugins follow
			return append([]string{own}, dirs...), false
		}
	}
	return dirs, !installed(n, dirs)
}

// remembered returns the lists by which the attachments of a network were made.
func remembered(name string) (lists []*spec.List) {
	seen := map[string]bool{}
	all, _ := attached.List(name)
	for _, c := range all {
		if l := c.AttachedBy(nil); l != nil && !seen[string(c.Config)] {
			seen[string(c.Config)] = true
			lists = append(lists, l)
		}
	}
	return lists
}

// installed reports whether dirs have all plugins of n and of others, so that this program need not stand in.
func installed(n *Network, dirs []string, others ...*spec.List) bool {
	has := func(typ string) bool {
		return typ == "" || slices.ContainsFunc(dirs, func(dir string) bool {
			_, err := os.Stat(filepath.Join(dir, typ))
			return err == nil
		})
	}
	for _, l := range append(others, n.List) {
		for _, p := range (&Network{List: l}).every() {
			if !has(p.Type) || !has(p.IPAMType) {
				return false
			}
		}
	}
	return true
}

// anyInstalled reports whether dir has a plugin of n that this program contains too. Then the installed one is used.
func anyInstalled(n *Network, dir string) bool {
	for _, p := range n.every() {
		for _, typ := range []string{p.Type, p.IPAMType} {
			if st, err := os.Stat(filepath.Join(dir, typ)); OfType(typ) != nil && err == nil && !st.IsDir() {
				return true
			}
		}
	}
	return false
}

// OwnPlugins returns a plugin directory with links to this program. It is created once for each program file and
// kept, because other processes may use it.
func OwnPlugins() (dir string, err error) {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "", err
	}
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return "", err
	}
	if file, err := os.Stat(exe); err != nil || !os.SameFile(file, self) {
		exe = fmt.Sprintf("/proc/%d/exe", os.Getpid()) // the file was replaced, or is below another mount
	}
	state := StateDir
	if os.Geteuid() != 0 && os.Getenv("XDG_RUNTIME_DIR") != "" {
		state = filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "fairlead")
	}
	sum := sha256.Sum256([]byte(exe))
	dir = filepath.Join(state, "plugins-"+hex.EncodeToString(sum[:4]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, p := range plugin.All() {
		// The link must not be /proc/self/exe: that would be the plugin's program, if a plugin searches a delegate
		// there.
		if err := os.Symlink(exe, filepath.Join(dir, p.Name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return dir, nil
}

// Document returns the list as one document, including the plugins from its folder.
func Document(l *spec.List) (json.RawMessage, error) {
	plugins := []spec.Object{}
	for _, p := range l.Plugins {
		plugins = append(plugins, p.Object)
	}
	return json.Marshal(map[string]any{
		"cniVersion": l.CNIVersion, "cniVersions": l.CNIVersions, "name": l.Name, "plugins": plugins,
		"disableCheck": l.DisableCheck, "disableGC": l.DisableGC, "loadOnlyInlinedPlugins": true,
	})
}

// Publishes reports whether n has a plugin that publishes ports.
func (n *Network) Publishes() bool { return n.Capabilities()["portMappings"] }

// Types returns the types of n's plugins, in order.
func (n *Network) Types() string {
	var types []string
	for _, p := range n.WrittenOut().Plugins {
		t := p.Type
		if p.IPAMType != "" {
			t += "+" + p.IPAMType
		}
		types = append(types, t)
	}
	return strings.Join(types, ", ")
}

// Configured returns the networks that the files define now.
func Configured() []*spec.List {
	lists, _ := Lists(false) // a file with errors does not define attachments
	return lists
}

// CompleteNetworks completes names of networks, for a shell.
func CompleteNetworks(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	names := []string{DefaultNetwork}
	for _, l := range Configured() {
		names = append(names, l.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
