package trace

import (
	"cmp"

	"github.com/fairlead-cni/fairlead/internal/kernel/tc"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// The filters of packets that come in by a link, and of those that leave, in a qdisc clsact or ingress.
const (
	clsactIngress = tc.IngressHandle | 0xFFF2
	clsactEgress  = tc.IngressHandle | 0xFFF3
)

// Program is the kind of hop that is a BPF program. What it does is not known.
const Program = "program"

// atPrograms records as unknown the BPF programs that see the packet where it comes in by a link, or leaves.
func (w *walk) atPrograms(p *place, l *rtnl.Link, in bool) {
	ask := look("bpftool net show dev " + l.Name)
	parent, where := uint32(clsactEgress), "egress"
	tcx, netkit := tc.TCXEgress, tc.NetkitPrimary
	if in {
		parent, where = clsactIngress, "ingress"
		tcx, netkit = tc.TCXIngress, tc.NetkitPeer
		if l.XDP != 0 {
			w.unknown(p, Program, ask, "cannot tell what BPF program %d at XDP of %s does", l.XDP, l.Name)
		}
	}
	filters, err := tc.Filters(p.ns, l.Index, parent)
	if err != nil {
		w.unknown(p, Program, ask, "BPF programs at tc %s of %s could not be read: %v", where, l.Name, err)
	}
	for _, f := range filters {
		if f.Kind == "bpf" {
			w.unknown(p, Program, ask, "cannot tell what BPF program %s at tc %s of %s does",
				cmp.Or(f.Program, "without a name"), where, l.Name)
		}
	}
	w.attached(p, l, tcx, "tcx "+where)
	if l.Kind == "netkit" {
		w.attached(p, l, netkit, "netkit")
	}
}

// attached records as unknown the BPF programs at an attachment of a link.
func (w *walk) attached(p *place, l *rtnl.Link, at tc.Attachment, name string) {
	ask := look("bpftool net show dev " + l.Name)
	ids, err := tc.Programs(p.ns, l.Index, at)
	if err != nil {
		w.unknown(p, Program, ask, "BPF programs at %s of %s could not be read: %v", name, l.Name, err)
	}
	for _, id := range ids {
		w.unknown(p, Program, ask, "cannot tell what BPF program %d at %s of %s does", id, name, l.Name)
	}
}
