package plugin_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/internal/txtar"
	"github.com/fairlead-cni/fairlead/spec"
)

// blue is the container's namespace, as the examples of the specification call it.
const blue = "/var/run/netns/blue"

// specExamples are the JSON examples of the specification's documents, by document and heading, as package spec tests
// that they are read. Comments are taken out, and typographic quotation marks are JSON's.
func specExamples(t *testing.T) map[string]map[string]string {
	t.Helper()
	files, err := filepath.Glob("../spec/testdata/examples/*.txtar")
	if err != nil || len(files) != 5 {
		t.Fatalf("%d documents (%v), want 5", len(files), err)
	}
	all := map[string]map[string]string{}
	comment, quotes := regexp.MustCompile(`(?m)(^|\s)//.*$`), strings.NewReplacer("“", `"`, "”", `"`)
	for _, file := range files {
		doc := map[string]string{}
		a, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range a.Files {
			doc[strings.Split(f.Name, " | ")[1]] = quotes.Replace(comment.ReplaceAllString(f.Data, ""))
		}
		all[strings.TrimSuffix(filepath.Base(file), ".txtar")] = doc
	}
	return all
}

// A specCase is an example that a runtime can take as it stands, and what it says that the host has then.
type specCase struct {
	section  string
	needs    string                     // the plugin
	host     func(*testing.T)           // what the example takes for granted
	resolver string                     // line of resolv.conf
	offers   string                     // the runtime's capabilities
	there    func(specHost, specResult) // after ADD
}

// specCases are all of them, by the name of the test.
func specCases() map[string]specCase {
	return map[string]specCase{
		"bridge": {"Example configurations: bridge", "bridge", specBridge, "nameserver 10.1.0.1\n", "{}", specHost.onBridge},
		"ovs":    {"Example configurations: ovs", "ovs", specSwitch, "", "{}", specHost.onSwitch},
		"macvlan": {"Example configurations: macvlan", "macvlan", specUplink, "nameserver 10.0.0.1\n", "{}",
			specHost.onUplink},
		"chain": {"chain list", "bridge", specBridge, "nameserver 10.1.0.1\n",
			`{"mac":"00:11:22:33:44:66","portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`,
			specHost.inChain},
	}
}

// specBridge makes the bridge of the examples, with the MAC that they show and the gateway's address, and says that
// 10.1.0.4 was allocated last: the examples are about the container that gets 10.1.0.5.
func specBridge(t *testing.T) {
	withoutBridges(t)
	nstest.Run(t, "sh", "-ec", `ip link add cni0 address 00:11:22:33:44:55 type bridge; ip link set cni0 up
		ip addr add 10.1.0.1/16 dev cni0; sysctl -qw net.ipv6.conf.cni0.disable_ipv6=1
		rm -rf /var/lib/cni/networks; mkdir -p /var/lib/cni/networks/dbnet
		printf 10.1.0.4 > /var/lib/cni/networks/dbnet/last_reserved_ip.0`)
}

// specUplink makes an uplink that has the default route, and a DHCP server in its LAN, 10.0.0.0/24.
func specUplink(t *testing.T) {
	nstest.Need(t, "macvlan")
	lan := nstest.NewNS(t)
	nstest.Run(t, "sh", "-ec", "ip link add ens3 type veth peer name wire netns "+filepath.Base(lan)+
		"; sysctl -qw net.ipv6.conf.ens3.disable_ipv6=1; ip link set ens3 up;"+
		"ip addr add 10.0.0.2/24 dev ens3; ip route add default via 10.0.0.1")
	t.Cleanup(func() { nstest.Run(t, "ip", "link", "del", "ens3") })
	nstest.RunIn(t, lan, "sh", "-ec", "ip link set lo up; ip link set wire up; ip addr add 10.0.0.1/24 dev wire")
	dhcpServer(t, lan, "wire", "10.0.0")
}

// specSwitch makes the bridge of Open vSwitch, in userspace for kernels without its module, and a DHCP server on it.
// The server is on the bridge's own link: one behind a veth pair would leave checksums to a card, which this datapath
// is not.
func specSwitch(t *testing.T) {
	o := nstest.NewOVS(t, "")
	t.Cleanup(func() { o.Ctl(t, "del-br", "ovs0") })
	o.Ctl(t, "add-br", "ovs0", "--", "set", "bridge", "ovs0", "datapath_type=netdev")
	nstest.Run(t, "sh", "-ec",
		"sysctl -qw net.ipv6.conf.ovs0.disable_ipv6=1; ip link set ovs0 up; ip addr add 10.5.0.1/24 dev ovs0")
	dhcpServer(t, "/proc/self/ns/net", "ovs0", "10.5.0")
}

// A specHost is a host with the plugins and the command in dir, and its container blue.
type specHost struct {
	*testing.T
	dir string
}

// specResult is what the tests ask of a result of any version.
type specResult struct {
	*spec.Result
	stdout []byte
}

func newSpecHost(t *testing.T) specHost {
	t.Helper()
	h := specHost{t, newRunner(t, chain{}).dir}
	exe, err := os.Executable()
	if err == nil {
		err = os.Symlink(exe, filepath.Join(h.dir, "fairlead"))
	}
	if err == nil {
		err = nstest.MakeNS(blue)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nstest.RemoveNS(blue) })
	return h
}

// run runs a program of the host, and returns its output and what it says of a failure.
func (h specHost) run(env []string, stdin, name string, args ...string) (stdout []byte, err error) {
	cmd := exec.Command(filepath.Join(h.dir, name), args...)
	cmd.Env = append(os.Environ(), append(env, "CNI_PATH="+h.dir, "NETCONFPATH="+h.dir+"/net.d")...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(args, " "), err, out.Bytes(), stderr.Bytes())
	}
	return out.Bytes(), nil
}

// plugin runs one verb of a plugin with a configuration as it stands.
func (h specHost) plugin(verb, typ, conf string) ([]byte, error) {
	env := []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=blue", "CNI_NETNS=" + blue, "CNI_IFNAME=eth0"}
	return h.run(env, conf, typ)
}

// sees compares what a command prints, on the host or in the container, with a regular expression.
func (h specHost) sees(where, command, want string) {
	h.Helper()
	out, err := nstest.Output(where, exec.Command("sh", "-ec", command))
	if err != nil || !regexp.MustCompile(want).Match(out) {
		h.Errorf("%s prints %q (%v), want %s", command, out, err, want)
	}
}

// onBridge is what the bridge example says.
func (h specHost) onBridge(r specResult) {
	h.Helper()
	h.sees("", "ip -br link show master cni0", `^veth`)
	h.sees(blue, "ip -br addr show eth0", `UP +10\.1\.0\.5/16 `)
	h.sees("", "head -1 /var/lib/cni/networks/dbnet/10.1.0.5", `^(blue|cnitool-\w+)\s`)
	h.answered(r, "10.1.0.5/16", "10.1.0.1")
	if len(r.Interfaces) != 3 || r.Interfaces[0].Name != "cni0" || r.Interfaces[2].Name != "eth0" {
		h.Errorf("interfaces %+v", r.Interfaces)
	}
	h.sees(blue, "ping -c1 -W600 10.1.0.1", "1 received")
}

// answered compares the result's address, and its gateway, which is the name server too.
func (h specHost) answered(r specResult, address, gateway string) {
	h.Helper()
	if len(r.IPs) != 1 || r.IPs[0].Address.String() != address || r.IPs[0].Gateway.String() != gateway ||
		!slices.Equal(r.DNS.Nameservers, []string{gateway}) {
		h.Errorf("result %s, want %s, gateway and name server %s", r.stdout, address, gateway)
	}
}

// inChain is what the lists say: the bridge, and what tuning and, in 1.0.0, portmap bring.
func (h specHost) inChain(r specResult) {
	h.Helper()
	h.onBridge(r)
	h.sees(blue, "cat /proc/sys/net/core/somaxconn", "^500\n")
	h.sees("", "cat /proc/sys/net/core/somaxconn", "^4096\n")
	if r.CNIVersion != spec.V100 {
		return
	}
	h.sees(blue, "ip route show default", `^default via 10\.1\.0\.1 dev eth0`)
	h.published("00:11:22:33:44:66", "10.1.0.1")
}

// published expects the container's MAC, and that its port 80 answers at the host's port 8080, also of the bridge's
// address.
func (h specHost) published(mac, gateway string) {
	h.Helper()
	h.sees(blue, "ip link show eth0", mac)
	p := newPlaces(h.T)
	p.open("blue", blue)
	p.serve("blue")
	for _, addr := range []string{"127.0.0.1:8080", gateway + ":8080"} {
		c, err := (&net.Dialer{Deadline: nstest.Deadline(h)}).Dial("tcp", addr)
		if err != nil {
			h.Error(err)
			continue
		}
		c.SetDeadline(nstest.Deadline(h))
		name := make([]byte, 4)
		if _, err := c.Read(name); err != nil || string(name) != "blue" {
			h.Errorf("at %s answers %q, %v", addr, name, err)
		}
		c.Close()
	}
}

// onUplink is what the macvlan example says.
func (h specHost) onUplink(r specResult) {
	h.Helper()
	h.sees(blue, "ip -d link show eth0", `eth0@if\d+: .*,UP[,>](?s).* macvlan mode bridge`)
	h.sees(blue, "ip -br addr show eth0", `10\.0\.0\.\d+/24`)
	h.sees(blue, "ip route show 10.0.0.0/8", `^10\.0\.0\.0/8 via 10\.0\.0\.1 dev eth0`)
	h.sees(blue, "ping -c1 -W600 10.0.0.1", "1 received")
	h.answered(r, r.IPs[0].Address.String(), "10.0.0.1")
}

// result reads what a plugin or the command printed.
func (h specHost) result(stdout []byte, v spec.Version) specResult {
	h.Helper()
	r, err := spec.DecodeResult(stdout, v)
	if err != nil {
		h.Fatalf("%v: %s", err, stdout)
	}
	return specResult{r, stdout}
}

// must ends the test where a verb failed.
func (h specHost) must(out []byte, err error) []byte {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
	return out
}

// refused expects an error in these words.
func (h specHost) refused(words string) func([]byte, error) {
	return func(_ []byte, err error) {
		h.Helper()
		if err == nil || !strings.Contains(err.Error(), words) {
			h.Errorf("%v, want it to say %q", err, words)
		}
	}
}

// reason is what is wrong with a document, without the place.
func reason(err error) string {
	var f *spec.FileError
	if errors.As(err, &f) {
		return f.Err.Error()
	}
	return err.Error()
}

// configure has the command know a network.
func (h specHost) configure(conf string) (file string) {
	h.Helper()
	file = filepath.Join(h.dir, "net.d", "10-example.conf")
	if strings.Contains(conf, `"plugins"`) {
		file += "list"
	}
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(conf), 0o644)); err != nil {
		h.Fatal(err)
	}
	return file
}

// byCommand has the command carry the container through its life on an example's network.
func (h specHost) byCommand(c specCase, conf string) {
	h.Helper()
	file := h.configure(conf)
	l, err := spec.ParseList([]byte(conf))
	if err != nil {
		h.refused(reason(err))(h.run(nil, "", "fairlead", "plan", file))
		return
	}
	before, caps := state(h.T), []string{"CAP_ARGS=" + c.offers}
	out := h.must(h.run(caps, "", "fairlead", "add", l.Name, blue))
	c.there(h, h.result(out, l.CNIVersion))
	if l.CNIVersion.AtLeast(spec.V040) {
		h.must(h.run(caps, "", "fairlead", "check", l.Name, blue))
	}
	h.must(h.run(caps, "", "fairlead", "del", l.Name, blue))
	same(h.T, "DEL", before)
	if c.resolver == "" {
		return
	}
	dns := h.must(h.run(caps, "", "fairlead", "run", "--net", l.Name, "--", "cat", "/etc/resolv.conf"))
	if !strings.Contains(string(dns), c.resolver) {
		h.Errorf("resolv.conf of a command on %s: %q, want %q", l.Name, dns, c.resolver)
	}
	same(h.T, "run", before)
}

// byPlugin has the plugin's program carry the container through its life with a configuration as it stands; CHECK and
// DEL get the result of ADD beside it, as from a runtime.
func (h specHost) byPlugin(c specCase, conf string) {
	h.Helper()
	parsed, err := spec.ParseConf([]byte(conf))
	if err != nil {
		h.refused(reason(err))(h.plugin("ADD", c.needs, conf))
		return
	}
	before := state(h.T)
	out := h.must(h.plugin("ADD", c.needs, conf))
	c.there(h, h.result(out, parsed.CNIVersion))
	if !parsed.CNIVersion.AtLeast(spec.V040) {
		h.refused(`"cniVersion": "0.3.1",
    "code": 1,`)(h.plugin("CHECK", c.needs, conf))
	} else {
		conf = strings.TrimSuffix(strings.TrimSpace(conf), "}") + `, "prevResult": ` + string(out) + "}"
		h.must(h.plugin("CHECK", c.needs, conf))
	}
	h.must(h.plugin("DEL", c.needs, conf))
	same(h.T, "DEL", before)
}

// byRequests gives the plugins of the list the requests that the document shows for them, one after the other.
func (h specHost) byRequests(c specCase, doc map[string]string) {
	h.Helper()
	before := state(h.T)
	ask := func(verb string, n int, typ string) ([]byte, error) {
		h.Helper()
		conf := doc[fmt.Sprintf("chain %s %d %s", verb, n, typ)]
		if conf == "" {
			h.Fatalf("no request %s %d %s", verb, n, typ)
		}
		return h.plugin(verb, typ, conf)
	}
	out := h.must(ask("ADD", 1, "bridge"))
	first := h.result(out, spec.V100)
	h.onBridge(first)
	h.likeAnswer(first, doc["chain ADD 1 bridge, answer"])
	conf, err := spec.ParseConf([]byte(doc["chain ADD 2 tuning"]))
	if err != nil {
		h.Fatal(err)
	}
	out, version := h.must(ask("ADD", 2, "tuning")), conf.CNIVersion
	h.sees(blue, "cat /proc/sys/net/core/somaxconn", "^500\n")
	answer := cmp.Or(doc["chain ADD 2 tuning, answer"], rawPrevResult(h.T, conf))
	sameDocument(h.T, out, answer)
	switch version {
	case spec.V100: // the requests lack the route of the list: the document forgets it
		sameDocument(h.T, h.must(ask("ADD", 3, "portmap")), answer)
		h.published("00:11:22:33:44:66", "10.1.0.1")
		h.refused("route default via 10.1.0.1 dev cont/eth0: is missing")(ask("CHECK", 1, "bridge"))
		nstest.RunIn(h, blue, "ip", "route", "add", "default", "via", "10.1.0.1")
		h.must(ask("CHECK", 1, "bridge"))
		h.must(ask("CHECK", 2, "tuning"))
		h.must(ask("CHECK", 3, "portmap"))
		h.must(ask("DEL", 1, "portmap"))
		h.must(ask("DEL", 2, "tuning"))
		h.must(ask("DEL", 3, "bridge"))
	case spec.V040: // its previous result is of another network
		h.refused("addr cont/eth0 10.0.0.5/32: is missing")(ask("CHECK", 1, "bridge"))
		h.must(ask("CHECK", 2, "tuning"))
		fallthrough
	default:
		h.must(ask("DEL", 1, "tuning"))
		h.must(ask("DEL", 2, "bridge"))
	}
	same(h.T, "DEL", before)
}

// likeAnswer compares a result with the document's, where it shows one, but for the container's own MACs, the host-side
// name, and the route that the document's request lacks.
func (h specHost) likeAnswer(r specResult, answer string) {
	h.Helper()
	if answer == "" {
		return
	}
	want := h.result([]byte(answer), spec.V100)
	for i := range want.Interfaces[1:] {
		want.Interfaces[i+1].MAC = r.Interfaces[i+1].MAC
	}
	want.Interfaces[1].Name, want.Routes = r.Interfaces[1].Name, nil
	wanted, err := want.Encode(spec.V100)
	if err != nil {
		h.Fatal(err)
	}
	sameDocument(h.T, r.stdout, string(wanted))
}

// rawPrevResult is the previous result of a request, as it stands.
func rawPrevResult(t *testing.T, conf *spec.Conf) string {
	t.Helper()
	prev, ok := conf.Object.Get("prevResult")
	if !ok {
		t.Fatal("the request has no previous result")
	}
	return string(prev)
}

// sameDocument compares two JSON objects but for cniVersion, which the examples leave out.
func sameDocument(t *testing.T, got []byte, want string) {
	t.Helper()
	var docs [2]map[string]any
	for i, b := range [][]byte{got, []byte(want)} {
		if err := json.Unmarshal(b, &docs[i]); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		delete(docs[i], "cniVersion")
	}
	if !reflect.DeepEqual(docs[0], docs[1]) {
		t.Errorf("%s, want %s", got, want)
	}
}

// onSwitch is what the ovs example says. Its VXLAN has nobody at the other end: the example names no other host.
func (h specHost) onSwitch(r specResult) {
	h.Helper()
	h.sees("", "ovs-vsctl list-ports ovs0", `(?m)^veth`)
	h.sees(blue, "ip -br addr show eth0", `UP +10\.5\.0\.\d+/24`)
	for _, dst := range []string{"10.3.0.0/16", "10.4.0.0/16"} {
		h.sees(blue, "ip route show "+dst, `via 10\.5\.0\.1 dev eth0`)
	}
	h.sees(blue, "ping -c1 -W600 10.5.0.1", "1 received")
	if len(r.IPs) != 1 || r.IPs[0].Gateway.String() != "10.5.0.1" {
		h.Errorf("result %s", r.stdout)
	}
}

// TestSpecExamples attaches a container by each configuration of the specification's documents as it stands, but for
// its comments, through the command and through the plugin's program, and asks ip(8) for all that the example says.
//
// clause: V4 V8 C3 C4 C5 C11 C12 P7 R2 R3 R7
func TestSpecExamples(t *testing.T) {
	docs, cases := specExamples(t), specCases()
	seen := 0
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		for _, which := range slices.Sorted(maps.Keys(cases)) {
			c, doc := cases[which], docs[name]
			conf, ok := doc[c.section]
			if !ok {
				continue
			}
			seen++
			nstest.Apart(t, name+"/"+which+"/fairlead", func(t *testing.T) {
				c.host(t)
				newSpecHost(t).byCommand(c, conf)
			})
			nstest.Apart(t, name+"/"+which+"/plugins", func(t *testing.T) {
				c.host(t)
				if which == "chain" {
					newSpecHost(t).byRequests(c, doc)
				} else {
					newSpecHost(t).byPlugin(c, conf)
				}
			})
		}
	}
	if seen < 10 {
		t.Errorf("%d examples: are they all here?", seen)
	}
}
