package networks

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/target"
	"github.com/fairlead-cni/fairlead/internal/command/cli/validate"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// wish is what the user wants of a new network.
type wish struct {
	bridge, master       string
	vlan                 int
	subnets              []string
	ipv6, isolated, dhcp bool
	closed               bool // no masquerading
	names                bool // containers find each other by name
}

func newCommand(a *app.App) *cobra.Command {
	var w wish
	c := &cobra.Command{
		Use: "new NAME [FILE]", Args: app.Operands("NAME [FILE]"),
		Short: "Write the configuration of a new network",
		Long: `Write the configuration of a new network NAME to FILE, and print what an attachment to it would make. FILE is
NAME.conflist in $NETCONFPATH or /etc/cni/net.d by default; - is the standard output. An existing file is not changed.

By default the network is a bridge with the network's name, a subnet that nothing else on this host uses, masquerading
and published ports. With --master the containers are on the network of an interface of the host, by macvlan; their
addresses come from a DHCP server (--dhcp) or from a part of that network's subnet (--subnet). On a terminal, the command
asks for what no flag says.`,
		Example: `  fairlead net new lan --subnet 10.1.2.0/24 --ipv6
  fairlead net new db --isolated --no-masquerade
  fairlead net new apps --names
  fairlead net new office --master eth0 --dhcp`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := spec.ValidName(args[0]); err != nil {
				return app.Usage("network %q: %w", args[0], err)
			}
			file := filepath.Join(netconf.ConfDir(), args[0]+".conflist")
			if len(args) > 1 {
				file = args[1]
			}
			if app.IsTerminal(a.Stdin) && app.IsTerminal(a.Stderr) {
				w.ask(a, c, args[0])
			}
			return write(a, args[0], file, w)
		},
	}
	f := c.Flags()
	f.StringVar(&w.bridge, "bridge", "", "`NAME` of the bridge (default: the network's)")
	f.StringVar(&w.master, "master", "", "`LINK` of the host whose network the containers are on, by macvlan")
	f.IntVar(&w.vlan, "vlan", 0, "`NUMBER` of the containers' VLAN on the bridge")
	f.StringArrayVar(&w.subnets, "subnet", nil, "`PREFIX` to allocate addresses from; once for each family")
	f.BoolVar(&w.ipv6, "ipv6", false, "add an IPv6 subnet that derives from the network's name")
	f.BoolVar(&w.dhcp, "dhcp", false, "get addresses from a DHCP server on the link")
	f.BoolVar(&w.isolated, "isolated", false, "isolate containers from each other and from networks with a policy")
	f.BoolVar(&w.names, "names", false,
		"let the containers find each other by name, by the plugin alias and fairlead dns")
	f.BoolVar(&w.closed, "no-masquerade", false, "do not masquerade what leaves the network")
	return c
}

// ask asks for what no flag says.
func (w *wish) ask(a *app.App, c *cobra.Command, name string) {
	in := bufio.NewReader(a.Stdin)
	said := func(flags ...string) bool {
		return slices.ContainsFunc(flags, func(f string) bool { return c.Flags().Changed(f) })
	}
	question := func(text, otherwise string) string {
		fmt.Fprintf(a.Stderr, "%s [%s]: ", text, otherwise)
		line, _ := in.ReadString('\n')
		return cmp.Or(strings.TrimSpace(line), otherwise)
	}
	yes := func(text string) bool { return strings.HasPrefix(strings.ToLower(question(text+" (y/n)", "n")), "y") }
	if !said("bridge", "master") {
		if link := question("Host interface for macvlan, or none for a bridge",
			"none"); link != "none" {
			w.master = link
		} else {
			w.bridge = question("Name of the bridge", w.link(name))
		}
	}
	if w.master != "" && !said("subnet", "dhcp") {
		if subnet := question("Subnet of the link's network, or dhcp", "dhcp"); subnet != "dhcp" {
			w.subnets = []string{subnet}
		}
		w.dhcp = len(w.subnets) == 0
	} else if !said("subnet", "dhcp") {
		if subnet := question("Subnet", "a free one"); subnet != "a free one" {
			w.subnets = []string{subnet}
		}
	}
	if !said("ipv6") && !w.dhcp {
		w.ipv6 = yes("Add an IPv6 subnet?")
	}
	if !said("isolated") && w.master == "" {
		w.isolated = yes("Isolate containers from each other and from networks with a policy?")
	}
	if !said("names") && w.master == "" && !w.dhcp {
		w.names = yes("Let the containers find each other by name?")
	}
}

// link returns the name of the bridge.
func (w *wish) link(name string) string {
	if spec.ValidIfName(name) != nil {
		sum := sha256.Sum256([]byte(name))
		name = fmt.Sprintf("br-%x", sum[:4])
	}
	return cmp.Or(w.bridge, name)
}

// write writes the file of a new network, if no error is found.
func write(a *app.App, name, file string, w wish) error {
	doc, l, err := w.list(name)
	if err != nil {
		return err
	}
	var bad []error
	for _, r := range validate.Examine(file, doc, true).Remarks {
		if r.Severity == validate.Error {
			bad = append(bad, errors.New(r.Problem))
		} else {
			a.Note("warning: %s", r.Problem)
		}
	}
	if len(bad) > 0 {
		return app.Usage("network %s: %w", name, errors.Join(bad...))
	}
	lists := netconf.Configured()
	for _, other := range lists {
		if other.Name == name {
			return app.Fail(app.ExitUsage, "Choose another name, or remove that file first.",
				"network %s exists already: %s", name, other.File)
		}
	}
	for _, w := range netconf.Overlaps(l, netconf.Wires(lists), map[[2]string]bool{}) {
		a.Note("warning: %v", w)
	}
	out := a.Stdout
	if file == "-" {
		if !a.JSON() {
			if _, err := a.Stdout.Write(doc); err != nil {
				return err
			}
			out = a.Stderr
		}
	} else if err := app.CreateFile(file, doc); err != nil {
		return err
	}
	t := &target.Target{Network: &netconf.Network{List: l}, Attachment: target.ExampleAttachment()}
	steps, err := t.Plan()
	if err != nil {
		return err
	}
	if a.JSON() {
		return a.PrintJSON(struct {
			File    string          `json:"file,omitempty"`
			List    json.RawMessage `json:"list"`
			Plugins []target.Step   `json:"plugins"`
		}{strings.TrimSuffix(file, "-"), doc, steps})
	}
	if file != "-" {
		if order := placed(file); order != "" {
			a.Note("warning: %s", order)
		}
		a.Note("%s is written; an add would make this:", file)
	}
	warn(a, t)
	t.Tree(a.Style(out), steps).Print(out, a.Style(out))
	return nil
}

// warn says why an add to a new network would fail now.
func warn(a *app.App, t *target.Target) {
	lacks := t.Lacks()
	app.Warn(a, lacks)
	rt, err := netconf.Runtime(a, t.Network)
	if err != nil || len(lacks) > 0 {
		return
	}
	if _, _, err := t.Serves(a.Interruptible(), rt); err != nil {
		a.Note("warning: an add would fail now: %v", err)
	}
}

// placed returns a warning if the file's name makes the network the default of runtimes.
func placed(file string) string {
	lists, _ := spec.LoadDir(filepath.Dir(file))
	if len(lists) < 2 || lists[0].File != file {
		return ""
	}
	return fmt.Sprintf("%s comes before %s by name: containerd and CRI-O use the first file, so they attach new "+
		"pods to this network",
		file, filepath.Base(lists[1].File))
}

// list returns the network's document, and the same parsed.
func (w *wish) list(name string) (doc []byte, l *spec.List, err error) {
	type object = map[string]any
	switch {
	case w.bridge != "" && w.master != "":
		return nil, nil, app.Usage("--bridge and --master: give only one of them")
	case w.master != "" && (w.isolated || w.vlan != 0 || w.closed):
		return nil, nil, app.Usage("--master: --isolated, --vlan and --no-masquerade are for bridges: packets of a " +
			"macvlan do not pass the host")
	// with a subnet of its own it would reach no other host on the link
	case w.master != "" && !w.dhcp && len(w.subnets) == 0:
		return nil, nil, app.Usage("--master: addresses must be of the link's network: add --dhcp, or --subnet")
	case w.names && (w.master != "" || w.dhcp):
		return nil, nil, app.Usage("--names: the name server listens on the gateway's address, which must be the " +
			"host's: remove --master and --dhcp")
	case w.dhcp && (len(w.subnets) > 0 || w.ipv6):
		return nil, nil, app.Usage("--dhcp: the server allocates the addresses; remove --subnet and --ipv6")
	}
	if len(w.subnets) == 0 && !w.dhcp {
		w.subnets = []string{freeSubnet(name)}
	}
	if w.ipv6 {
		sum := sha256.Sum256([]byte(name))
		w.subnets = append(w.subnets, fmt.Sprintf("fd%x:%x:%x::/64", sum[:1], sum[1:3], sum[3:5]))
	}
	ipam := object{"type": "host-local"}
	var ranges [][]object
	for _, s := range w.subnets {
		ranges = append(ranges, []object{{"subnet": s}})
	}
	if ipam["ranges"] = ranges; w.dhcp {
		ipam = object{"type": "dhcp"}
	}
	plugins := []object{{"type": "macvlan", "master": w.master, "ipam": ipam}}
	if w.master == "" {
		bridge := object{"type": "bridge", "bridge": w.link(name), "hairpinMode": true, "ipam": ipam}
		if !w.dhcp {
			bridge["isDefaultGateway"], bridge["ipMasq"] = true, !w.closed
		}
		if w.vlan != 0 {
			bridge["access"] = w.vlan
		}
		firewall := object{"type": "firewall"}
		if w.isolated {
			firewall["ingressPolicy"] = "isolated"
		}
		plugins = []object{bridge, {"type": "portmap", "capabilities": object{"portMappings": true}}, firewall}
		if w.names {
			plugins = append(plugins, object{"type": "alias", "capabilities": object{"aliases": true}})
		}
	}
	if doc, err = written(name, plugins); err != nil {
		return nil, nil, err
	}
	l, err = spec.ParseList(doc)
	return doc, l, err
}

// written returns a list with one plugin per line, its type first.
func written(name string, plugins []map[string]any) ([]byte, error) {
	b := bytes.NewBufferString("{\n" + `  "cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"],` + "\n")
	fmt.Fprintf(b, "  \"name\": %q,\n  \"plugins\": [\n", name)
	for i, p := range plugins {
		typ := p["type"]
		delete(p, "type")
		rest, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		comma := ","
		if i == len(plugins)-1 {
			comma = ""
		}
		head := fmt.Sprintf("{\"type\": %q", typ)
		if len(p) > 0 {
			head += ", "
		}
		fmt.Fprintf(b, "    %s%s%s\n", head, strings.NewReplacer(`":`, `": `, `,"`, `, "`).Replace(string(rest[1:])), comma)
	}
	b.WriteString("  ]\n}\n")
	return b.Bytes(), nil
}

// freeSubnet returns a subnet that no network and no address or route of this host uses.
func freeSubnet(name string) string {
	lists := netconf.Configured()
	if l, err := spec.ParseList(netconf.DefaultList(false)); err == nil {
		l.File = "built in"
		lists = append(lists, l)
	}
	others := netconf.Wires(lists)
	subnet := netip.MustParsePrefix("10.90.0.0/24")
	for range 4096 {
		try := wish{subnets: []string{subnet.String()}}
		if _, l, err := try.list(name); err == nil && len(netconf.Overlaps(l, others, map[[2]string]bool{})) == 0 {
			break
		}
		next := subnet.Addr().As4()
		if next[2]++; next[2] == 0 {
			next[1]++
		}
		subnet = netip.PrefixFrom(netip.AddrFrom4(next), 24)
	}
	return subnet.String()
}
