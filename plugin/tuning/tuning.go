// Package tuning changes settings of an interface that a plugin before it made, and of its container's network.
package tuning

import (
	"cmp"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/keys"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/resource/tune"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the tuning plugin.
var Plugin = sdk.Chained("tuning", "changes sysctls, and the MAC, MTU and other attributes of a container's interface",
	want, func(c conf) []plan.Kind {
		return []plan.Kind{tune.TuningKind(cmp.Or(c.DataDir, dataDir))}
	}).KnowsArgs("MAC")

type conf struct {
	// Sysctls below net, such as {"net.ipv4.conf.IFNAME.arp_filter": "1"}, set in the container's network namespace.
	// IFNAME stands for the name of the interface. If /etc/cni/tuning/allowlist.conf exists, each sysctl must match one
	// of its lines, which are regular expressions.
	Sysctl sysctls `json:"sysctl"`
	// MAC of the interface. With macspoofchk of the bridge plugin, bridge must get the same MAC: ADD fails with
	// another, because the bridge would drop all packets of the container. Default: unchanged.
	MAC string `json:"mac" want:"mac"`
	// MTU of the interface in bytes, 68 to 65535, and at least 1280 if it has IPv6 addresses. Default: unchanged.
	MTU int `json:"mtu" want:"0|68..65535 bytes"`
	// true: set the interface to promiscuous mode, so that it receives every packet. Default: false, unchanged.
	Promisc bool `json:"promisc"`
	// true: the interface receives every multicast packet; false: only those that it joined. Default: unchanged.
	AllMulti *bool `json:"allmulti"`
	// Length of the interface's transmit queue in packets. Default: unchanged.
	TxQLen *int `json:"txQLen" want:"0..2147483647 packets"`
	// Directory in which the earlier settings are stored, as by the reference plugin. Default: /run/cni/tuning.
	DataDir string `json:"dataDir"`

	RuntimeConfig struct {
		// MAC of the interface, set by the runtime (clause K6). Takes precedence over MAC of CNI_ARGS, and that over
		// mac.
		MAC string `json:"mac" want:"mac"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			// Sysctls in addition to sysctl. Takes precedence if both name one.
			Sysctl sysctls `json:"sysctl"`
			// MAC of the interface. Takes precedence over all other ways to set it.
			MAC string `json:"mac" want:"mac"`
			// Takes precedence over mtu.
			MTU *int `json:"mtu" want:"0|68..65535 bytes"`
			// Takes precedence over promisc.
			Promisc *bool `json:"promisc"`
			// Takes precedence over allmulti.
			AllMulti *bool `json:"allmulti"`
			// Takes precedence over txQLen.
			TxQLen *int `json:"txQLen" want:"0..2147483647 packets"`
		} `json:"cni"`
	} `json:"args"`
}

const (
	allowList = "/etc/cni/tuning/allowlist.conf"
	dataDir   = "/run/cni/tuning"
)

func want(c conf, r *sdk.Request) (sdk.Answer, error) {
	t := tune.Tuning{Owner: r.Owner, Link: r.IfName, DataDir: cmp.Or(c.DataDir, dataDir), AllowList: allowList}
	if strings.ContainsRune(c.DataDir, 0) {
		return sdk.Answer{}, spec.Errorf(spec.CodeConfig, "dataDir: %q: a path has no zero byte", c.DataDir)
	}
	var err error
	if t.Sysctls, err = merge(c.Sysctl, c.Args.CNI.Sysctl, r.IfName); err != nil {
		return sdk.Answer{}, err
	}
	if err := c.link(&t, r); err != nil {
		return sdk.Answer{}, err
	}
	var p plan.Plan
	if len(t.Sysctls) > 0 {
		p = append(p, plan.Prerequisite(sysctl.AllowList{File: allowList, Sysctls: t.Sysctls}))
	}
	return sdk.Answer{Plan: append(p, t)}, nil
}

// link is the part that the interface's attributes have.
func (c conf) link(t *tune.Tuning, r *sdk.Request) error {
	mac := keys.Asked(keys.Ask{Key: "args.cni.mac", Value: c.Args.CNI.MAC},
		keys.Ask{Key: "runtimeConfig.mac", Value: c.RuntimeConfig.MAC}, keys.ArgMAC(r),
		keys.Ask{Key: "mac", Value: c.MAC})
	t.MAC = strings.ToLower(mac.Value)
	t.MTU, t.Promisc, t.AllMulti, t.TxQLen = c.MTU, c.Promisc, c.AllMulti, c.TxQLen
	over := func(key string, there bool) string {
		if there {
			return "args.cni." + key
		}
		return key
	}
	args := c.Args.CNI
	if args.MTU != nil {
		t.MTU = *args.MTU
	}
	if args.Promisc != nil {
		t.Promisc = *args.Promisc
	}
	if args.AllMulti != nil {
		t.AllMulti = args.AllMulti
	}
	if args.TxQLen != nil {
		t.TxQLen = args.TxQLen
	}
	if err := mac.ValidMAC(); err != nil {
		return err
	}
	mtu := over("mtu", args.MTU != nil)
	for _, ip := range r.ContainerIPs() {
		if t.MTU != 0 && t.MTU < 1280 && ip.Address.Addr().Is6() {
			return spec.Errorf(spec.CodeConfig, "%s: %d: %s has %s, and the kernel turns off IPv6 on an interface "+
				"with an MTU below 1280",
				mtu, t.MTU, r.IfName, ip.Address)
		}
		t.Announce = append(t.Announce, ip.Address)
	}
	return nil
}
