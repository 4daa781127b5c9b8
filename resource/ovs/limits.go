package ovs

import (
	"strconv"

	"github.com/fairlead-cni/fairlead/internal/ovsdb"
	"github.com/fairlead-cni/fairlead/resource"
)

// Limits are rates of a port, in bits per second and bits; zero is no limit.
type Limits struct {
	Policing, PolicingBurst int64 // of what comes from the container (ingress_policing_rate); what is beyond is dropped
	Shaping                 int64 // of what goes to the container (QoS linux-htb); what is beyond waits
}

func (l Limits) String() string {
	return resource.Line(resource.Opt("ingress_policing_rate", l.Policing/1000),
		resource.Opt("ingress_policing_burst", l.PolicingBurst/1000),
		resource.Opt("qos linux-htb max-rate", l.Shaping))
}

// police adds to a row of an interface, whose columns count kilobits.
func (l Limits) police(row map[string]any) {
	if l.Policing != 0 {
		row["ingress_policing_rate"], row["ingress_policing_burst"] = l.Policing/1000, l.PolicingBurst/1000
	}
}

// shape is the row of a QoS, or nil.
func (l Limits) shape() map[string]any {
	if l.Shaping == 0 {
		return nil
	}
	return map[string]any{"type": "linux-htb", "other_config": ovsdb.Map{"max-rate": strconv.FormatInt(l.Shaping, 10)}}
}

// compare is the drift of an interface's row, a port's, and the owner's QoS.
func (l Limits) compare(iface, port ovsdb.Row, qos []ovsdb.Row, d *resource.Drift) {
	if l.Policing != 0 {
		rate, _ := iface.Int("ingress_policing_rate")
		burst, _ := iface.Int("ingress_policing_burst")
		want(d, "ingress_policing_rate", l.Policing/1000, rate)
		want(d, "ingress_policing_burst", l.PolicingBurst/1000, burst)
	}
	if l.Shaping == 0 {
		return
	}
	have := ""
	for _, q := range qos {
		if q.UUID("_uuid") == port.UUID("qos") {
			have = q.Text("type") + " " + q.Map("other_config")["max-rate"]
		}
	}
	want(d, "qos", "linux-htb "+strconv.FormatInt(l.Shaping, 10), have)
}
