package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A modelRuntimeConfig is what the models act on. A value of another type is an error when the configuration is read.
type modelRuntimeConfig struct {
	MAC          string
	PortMappings []struct{ HostPort, ContainerPort uint16 }
	DNS          struct{ Servers, Searches []string }
	IPs          []netip.Prefix
	IPRanges     [][]struct {
		Subnet     netip.Prefix
		RangeStart netip.Addr
	}
	Bandwidth *struct{ IngressRate, IngressBurst, EgressRate, EgressBurst uint64 }
}

// cniArg is a value of CNI_ARGS.
func (m *model) cniArg(name string) string {
	for pair := range strings.SplitSeq(m.args, ";") {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

// wantedMAC is the MAC that the interface is to have, and nil if nobody asks for one.
func (m *model) wantedMAC() (net.HardwareAddr, *spec.Error) {
	text := m.conf.RuntimeConfig.MAC
	if text == "" && !m.has("K12/mac") {
		text = m.cniArg("MAC")
	}
	if text == "" || m.has("K6/mac") {
		return nil, nil
	}
	mac, err := net.ParseMAC(text)
	if err != nil && !m.has("K13/malformed") {
		return nil, failed(spec.CodeConfig, "mac: %v", err)
	}
	return mac, nil
}

// wantedAddresses are the addresses that an IPAM model is asked for: by runtimeConfig, by args, or else by CNI_ARGS.
func (m *model) wantedAddresses() (list []netip.Prefix) {
	var args struct{ CNI struct{ IPs []netip.Prefix } }
	json.Unmarshal(m.conf.Args, &args)
	byEnvironment, err := netip.ParsePrefix(m.cniArg("IP"))
	switch config := m.conf.RuntimeConfig; {
	case len(config.IPs) > 0 && !m.has("K5/ips"):
		return config.IPs
	case len(config.IPRanges) > 0 && !m.has("K2/ranges"):
		first := config.IPRanges[0][0]
		return []netip.Prefix{netip.PrefixFrom(first.RangeStart, first.Subnet.Bits())}
	case len(args.CNI.IPs) > 0 && !m.has("K11/ips"):
		return args.CNI.IPs
	case err == nil && !m.has("K12/ip"):
		return []netip.Prefix{byEnvironment}
	}
	for n := range poolSize {
		list = append(list, netip.MustParsePrefix(fmt.Sprintf("10.92.0.%d/24", n+2)))
	}
	return list
}

// adopt makes an interface of the host a port of the model's bridge. It reports whether prevResult has one.
func (m *model) adopt() (adopted bool, e *spec.Error) {
	if m.conf.PrevResult == nil || m.has("P23/tap") {
		return false, nil
	}
	r, err := spec.DecodeResult(m.conf.PrevResult, m.version)
	if err != nil {
		return false, ioError(err)
	}
	i := slices.IndexFunc(r.Interfaces, func(i spec.Interface) bool { return i.Sandbox == "" })
	if i < 0 {
		return false, nil
	}
	err = alter("", func(ns *kernel.NS) error {
		master, err := bridge(ns, "model0", netip.PrefixFrom(gateway(), 24))
		return errors.Join(err, rtnl.SetLink(ns, r.Interfaces[i].Name, rtnl.LinkChange{Master: master}))
	})
	if err != nil {
		return false, ioError(err)
	}
	return true, m.prints(r)
}

// limit limits what the container gets at the host's end of its link, and what it sends at its own.
func (m *model) limit(r *spec.Result) error {
	b := m.conf.RuntimeConfig.Bandwidth
	if b == nil || m.has("K3/limits") {
		return nil
	}
	host := slices.IndexFunc(r.Interfaces, func(i spec.Interface) bool { return i.Sandbox == "" })
	if host < 0 {
		return errors.New("prevResult has no interface of the host")
	}
	shape := func(rate, burst uint64) string {
		return fmt.Sprintf("root tbf rate %dbit burst %d latency 400ms", rate, burst/8)
	}
	script := fmt.Sprintf("tc qdisc add dev %s %s && nsenter --net=%s tc qdisc add dev %s %s", r.Interfaces[host].Name,
		shape(b.IngressRate, b.IngressBurst), m.netns, m.ifName, shape(b.EgressRate, b.EgressBurst))
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return nil
}

// stored is the result of ADD in the version of the network, as the plugins get it.
func (m *modelRuntime) stored(prev json.RawMessage) (json.RawMessage, error) {
	newer := m.version == spec.Newest
	if prev == nil || newer && m.has("V7/newer") || !newer && m.has("V7/older") {
		return prev, nil
	}
	r, err := spec.DecodeResult(prev, m.version)
	if err != nil {
		return nil, err
	}
	return r.Encode(m.version)
}

// declared is what the caller provides of what a plugin declares.
func (m *modelRuntime) declared(p *spec.Conf, offered object) object {
	config := object{}
	if onDisk, ok := p.Object.Get("runtimeConfig"); ok && m.has("C9/runtime") {
		json.Unmarshal(onDisk, &config)
	}
	for name, value := range offered {
		lost := slices.ContainsFunc(capabilities(), func(c capability) bool {
			return c.name == name && m.has(c.clause+"/passed")
		})
		if config[name] == nil && !lost && (p.Capabilities[name] || m.has("R7/capabilities")) {
			config[name] = value
		}
	}
	return config
}

// locks takes the locks of the network and of the container. They end with the process.
func (m *modelRuntime) locks(verb string) error {
	how, name := unix.LOCK_SH, filepath.Base(m.netns)
	if verb == "gc" {
		how = unix.LOCK_EX
	}
	if m.has("R8/parallel") {
		name = "all"
	}
	var err error
	if !m.has("R9/gc") {
		err = lockFile("network", how)
	}
	if err == nil && !m.has("R8/container") {
		err = lockFile("container-"+name, unix.LOCK_EX)
	}
	return err
}

// held has the files whose locks this process holds.
var held []*os.File

func lockFile(name string, how int) error {
	f, err := os.OpenFile("/run/model-"+name+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	held = append(held, f)
	return unix.Flock(int(f.Fd()), how)
}
