// Package netconf is the networks of a host: their files and the built-in one, where their plugins are found and what
// runs them, pools of addresses, versions, overlaps. What a network would do to one container is in package target.
package netconf

import (
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
	"github.com/fairlead-cni/fairlead/cli/app"
	"github.com/fairlead-cni/fairlead/cli/attached"
	"github.com/fairlead-cni/fairlead/cli/term"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// ThrownAway is a file that only a throw-away host has, whose /run is its own.
const ThrownAway = StateDir + "/throw-away"

// StateDir holds what a `fairlead run` in progress has to remember. It dies with the boot, as its
// namespaces do.
const StateDir = record.RunDir

// pluginDirs are where distributions and orchestrators put plugins, in the order that they are searched.
func pluginDirs() []string {
	return []string{AdminDir, "/usr/lib/cni", "/usr/libexec/cni", "/usr/local/lib/cni", "/usr/local/libexec/cni"}
}

// AdminDir is where who runs the host puts plugins.
const AdminDir = "/opt/cni/bin"

// ConfDir is the directory of the network configurations.
func ConfDir() string {
	if dir := os.Getenv("NETCONFPATH"); dir != "" {
		return dir
	}
	return "/etc/cni/net.d"
}

// A Network is a list and where its plugins come from.
type Network struct {
	*spec.List
	BuiltIn    bool
	Remembered bool // no file says it
}

// DefaultNetwork is the name of the network that is there without any configuration.
const DefaultNetwork = "fairlead"

// Find finds the network of that name. A file that defines the default network comes before the one
// that is built in.
func Find(a *app.App, name string) (*Network, error) {
	if err := spec.ValidName(name); err != nil {
		return nil, app.Usage("network %q: %w", name, err)
	}
	l, err := spec.Load(ConfDir(), name)
	switch {
	case err == nil:
		return Loaded(a, l), nil
	case name == DefaultNetwork && errors.Is(err, spec.ErrNotFound):
		l, err := spec.ParseList(DefaultList(IPv6Here()))
		return &Network{List: l, BuiltIn: true}, err
	case a.Orphans:
		if l := Orphaned(name); l != nil {
			why := "no file defines network " + name + " any more"
			if !errors.Is(err, spec.ErrNotFound) {
				why = err.Error()
			}
			a.Note("warning: %s; this goes by what it was when it was attached to", why)
			return &Network{List: l, Remembered: true}, nil
		}
	}
	return nil, err
}

// FindOrFile finds the network of that name, or of a file that lies anywhere. A file of the working directory is
// meant where its name ends as those of configurations do and no network has the name.
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

// FindFile is the network of a file that lies anywhere.
func FindFile(a *app.App, file string) (*Network, error) {
	l, err := spec.LoadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		hint := "Give the path of a file; `fairlead net ls` lists the networks, and the file of each."
		if _, named := spec.Load(ConfDir(), file); named == nil { // --conf takes no name
			hint = "There is a network of that name: give it with --net."
		}
		return nil, app.Fail(app.ExitNotFound, hint, "%w", err)
	}
	if err != nil {
		return nil, err
	}
	return Loaded(a, l), nil
}

// Loaded is the network of a list that was read from a file, whose oddities are said.
func Loaded(a *app.App, l *spec.List) *Network {
	n := &Network{List: l}
	for _, w := range n.FileWarnings() {
		a.Note("warning: %v", w)
	}
	return n
}

// Known fails for a network that nothing is attached to and no file defines: it is misspelt. All networks, the
// empty name, are known.
func Known(name string) error {
	if name == "" || name == DefaultNetwork {
		return nil
	}
	if err := spec.ValidName(name); err != nil {
		return app.Usage("network %q: %w", name, err)
	}
	if list, problems := (&attach.Runtime{}).List(name); len(list)+len(problems) > 0 {
		return nil
	}
	if _, err := spec.Load(ConfDir(), name); errors.Is(err, spec.ErrNotFound) {
		return err
	}
	return nil // what is wrong with its file is for others to say
}

// Orphaned is a network that attachments are left of, as they remember it.
func Orphaned(name string) *spec.List {
	list, _ := (&attach.Runtime{}).List(name)
	for _, c := range list {
		if l := c.AttachedBy(nil); l != nil {
			return l
		}
	}
	return nil
}

// The default network's addresses keep out of the way of podman (10.88.0.0/16 and upwards), Docker (172.17
// and upwards), flannel and kubeadm (10.244), k3s (10.42) and libvirt (192.168.122).
const (
	DefaultBridge  = "fairlead0"
	DefaultSubnet4 = "10.87.0.0/16"
	DefaultSubnet6 = "fdfa:171e:ad::/64"
)

// An Object is a JSON object.
type Object = map[string]any

// DefaultList is the default network: a bridge that reaches the outside by masquerade, published ports, and passage
// through whatever firewall the host has. More are plugins after these.
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
		panic(err) // maps, texts and booleans
	}
	return b
}

// IPv6Here reports whether the kernel has IPv6 (a boot with ipv6.disable=1 has not).
func IPv6Here() bool {
	_, err := os.Stat("/proc/net/if_inet6")
	return err == nil
}

// Runtime is what runs n's plugins.
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

// Runner is what runs a plugin: this process, where the plugin that is found is this very program. What it
// logs goes to stderr.
func Runner(a *app.App, stderr io.Writer) invoke.Runner {
	if a.Exec {
		return invoke.Run
	}
	sdk.LogTo(stderr)
	return sdk.Here(plugin.All())
}

// Search is where n's plugins are looked for. Where CNI_PATH does not say it, these are the usual
// directories, and then, if they lack one, this program, which is every plugin of its own. The built-in
// network is written for the latter, and a throw-away host is for trying it.
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
		if own, err := OwnPlugins(); err == nil { // what the machine has comes after them
			return append([]string{own}, dirs...), false
		}
	}
	return dirs, !installed(n, dirs)
}

// remembered are the lists that the attachments of a network were made by.
func remembered(name string) (lists []*spec.List) {
	seen := map[string]bool{}
	all, _ := (&attach.Runtime{}).List(name)
	for _, c := range all {
		if l := c.AttachedBy(nil); l != nil && !seen[string(c.Config)] {
			seen[string(c.Config)] = true
			lists = append(lists, l)
		}
	}
	return lists
}

// installed reports whether dirs have all plugins of n, and of other lists, so that none of our own is needed.
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

// anyInstalled reports whether dir has a plugin of n that this program has too: then it is to be used as it is there.
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

// OwnPlugins is a plugin directory whose entries are links to this program. It is made once for a program
// file and then left, for others may be looking at it.
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
		exe = fmt.Sprintf("/proc/%d/exe", os.Getpid()) // it was replaced, or lies below another mount
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
		// Not to /proc/self/exe, which would be another's program where its plugin looks for a delegate.
		if err := os.Symlink(exe, filepath.Join(dir, p.Name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return dir, nil
}

// Whole is the list as one document, with what a drop-in folder added.
func Whole(l *spec.List) (json.RawMessage, error) {
	plugins := []spec.Object{}
	for _, p := range l.Plugins {
		plugins = append(plugins, p.Object)
	}
	return json.Marshal(map[string]any{
		"cniVersion": l.CNIVersion, "cniVersions": l.CNIVersions, "name": l.Name, "plugins": plugins,
		"disableCheck": l.DisableCheck, "disableGC": l.DisableGC, "loadOnlyInlinedPlugins": true,
	})
}

// DeclaredCapabilities are all that n's plugins declare, in order.
func (n *Network) DeclaredCapabilities() []string {
	var names []string
	for name, on := range n.Capabilities() {
		if on {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Publishes reports whether n has a plugin that publishes ports.
func (n *Network) Publishes() bool { return slices.Contains(n.DeclaredCapabilities(), "portMappings") }

// Types are n's plugins, in order.
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

// Configured are the networks as their files define them now.
func Configured() []*spec.List {
	lists, _ := spec.LoadDir(ConfDir()) // a file with mistakes does not define what is attached
	return lists
}

// CompleteNetworks are the names of networks, for a shell.
func CompleteNetworks(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	names := []string{DefaultNetwork}
	lists, _ := spec.LoadDir(ConfDir())
	for _, l := range lists {
		names = append(names, l.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
