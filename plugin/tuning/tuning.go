// Package tuning changes settings of an interface that a plugin before it made, and of its container's network.
package tuning

import (
	"strings"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/resource/tune"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the tuning plugin.
var Plugin = sdk.Chained("tuning", "changes sysctls, and the MAC, MTU and other attributes of a container's interface",
	want, func(c conf) []plan.Kind {
		return []plan.Kind{tune.TuningKind(sdk.First(c.DataDir, dataDir))}
	}).KnowsArgs("MAC")

type conf struct {
	Sysctl   sysctls `json:"sysctl"`                              // settings below net of the container's network namespace; IFNAME stands for the interface's name; each has to match a line of /etc/cni/tuning/allowlist.conf, a regular expression, where that file exists
	MAC      string  `json:"mac" want:"mac"`                      // of the interface; not together with bridge's macspoofchk, unless bridge is told the same
	MTU      int     `json:"mtu" want:"0|68..65535 bytes"`        // 68 to 65535 bytes; at least 1280 where the interface has IPv6 addresses
	Promisc  bool    `json:"promisc"`                             // receive every packet; false leaves it as it is
	AllMulti *bool   `json:"allmulti"`                            // receive every multicast packet, or not; default: as it is
	TxQLen   *int    `json:"txQLen" want:"0..2147483647 packets"` // packets that may wait to be sent; default: as it is
	DataDir  string  `json:"dataDir"`                             // where the reference plugin keeps what was before, and this one too for its sake; default /run/cni/tuning

	RuntimeConfig struct {
		MAC string `json:"mac" want:"mac"` // of the interface (clause K6); wins over the MAC of CNI_ARGS, which wins over mac
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			Sysctl   sysctls `json:"sysctl"`                              // added to sysctl; wins where both name one
			MAC      string  `json:"mac" want:"mac"`                      // wins over all others
			MTU      *int    `json:"mtu" want:"0|68..65535 bytes"`        // wins over mtu
			Promisc  *bool   `json:"promisc"`                             // wins over promisc
			AllMulti *bool   `json:"allmulti"`                            // wins over allmulti
			TxQLen   *int    `json:"txQLen" want:"0..2147483647 packets"` // wins over txQLen
		} `json:"cni"`
	} `json:"args"`
}

const (
	allowList = "/etc/cni/tuning/allowlist.conf"
	dataDir   = "/run/cni/tuning"
)

func want(c conf, r *sdk.Request) (sdk.Answer, error) {
	t := tune.Tuning{Owner: r.Owner, Link: r.IfName, DataDir: sdk.First(c.DataDir, dataDir), AllowList: allowList}
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
	mac := sdk.Asked(sdk.Ask{Key: "args.cni.mac", Value: c.Args.CNI.MAC},
		sdk.Ask{Key: "runtimeConfig.mac", Value: c.RuntimeConfig.MAC}, r.ArgMAC(), sdk.Ask{Key: "mac", Value: c.MAC})
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
			return spec.Errorf(spec.CodeConfig, "%s: %d: %s has %s, and below 1280 the kernel takes IPv6 off a link", mtu, t.MTU,
				r.IfName, ip.Address)
		}
		t.Announce = append(t.Announce, ip.Address)
	}
	return nil
}
