package graph

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
)

// attachedConf is what a graph shows of the list that an attachment was made by.
type attachedConf struct {
	Type   string // of the first plugin
	Bridge string
	Master string
	Mode   string
	marks  []string // VLANs, policies and limits
}

// configOf reads the list that an attachment was made by, if it is known.
func configOf(c attach.Cached) (a attachedConf) {
	l := c.AttachedBy(nil)
	if l == nil {
		return a
	}
	for i, p := range l.WrittenOut().Plugins {
		var conf struct {
			Bridge, Master, Mode, VrfName, IngressPolicy string
			IPMasq, PortIsolation, MacSpoofChk           bool
			Vlan, VlanID, VxlanID                        int
			IngressRate, EgressRate                      float64
			Trunk                                        json.RawMessage
		}
		raw, err := p.Object.MarshalJSON()
		if err != nil || json.Unmarshal(raw, &conf) != nil {
			continue
		}
		if i == 0 {
			a.Type, a.Bridge, a.Master, a.Mode = p.Type, conf.Bridge, conf.Master, conf.Mode
		}
		if p.Type == "bandwidth" {
			a.limits(c.Capabilities["bandwidth"])
		}
		for _, w := range []struct {
			is   bool
			word string
		}{
			{conf.IPMasq, "masquerade"},
			{conf.IngressPolicy != "" && conf.IngressPolicy != "open", conf.IngressPolicy},
			{conf.PortIsolation, "port isolation"},
			{conf.MacSpoofChk, "MAC check"},
			{conf.VrfName != "", "VRF " + conf.VrfName},
			{conf.VlanID != 0, fmt.Sprintf("VLAN %d", conf.VlanID)},
			{p.Type == "ovs" && conf.Vlan != 0, fmt.Sprintf("VLAN %d", conf.Vlan)},
			{p.Type == "ovs" && conf.Trunk != nil, "trunk"},
			{conf.VxlanID != 0, fmt.Sprintf("VXLAN %d", conf.VxlanID)},
			{conf.IngressRate > 0, "to it " + bitRate(conf.IngressRate)},
			{conf.EgressRate > 0, "from the container " + bitRate(conf.EgressRate)},
		} {
			if w.is && !slices.Contains(a.marks, w.word) {
				a.marks = append(a.marks, w.word)
			}
		}
	}
	return a
}

// limits adds the rates of the capability bandwidth.
func (a *attachedConf) limits(capability any) {
	raw, err := json.Marshal(capability)
	var rates struct{ IngressRate, EgressRate float64 }
	if err != nil || json.Unmarshal(raw, &rates) != nil {
		return
	}
	if rates.IngressRate > 0 {
		a.marks = append(a.marks, "to it "+bitRate(rates.IngressRate))
	}
	if rates.EgressRate > 0 {
		a.marks = append(a.marks, "from the container "+bitRate(rates.EgressRate))
	}
}

// bitRate returns a rate with its unit; n is in bits per second.
func bitRate(n float64) string {
	unit := "bit/s"
	for _, larger := range []string{"kbit/s", "Mbit/s", "Gbit/s"} {
		if n < 1000 {
			break
		}
		n, unit = n/1000, larger
	}
	return fmt.Sprintf("%.4g %s", n, unit)
}
