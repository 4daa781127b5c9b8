package identity

import (
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
)

func TestTag(t *testing.T) {
	o := spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}
	n, h, text, ok := ParseTag(Tag(o))
	if !ok || n != NetworkHash("net") || h != OwnerHash(o) || text != "net/c1/eth0" {
		t.Errorf("tag %q came back as %x %x %q %v", Tag(o), n, h, text, ok)
	}
	if OwnerHash(spec.Owner{Network: "a", ContainerID: "bc"}) == OwnerHash(spec.Owner{Network: "ab", ContainerID: "c"}) {
		t.Error("two owners with one concatenation share a hash")
	}
	if name := LinkName("veth", o); len(name) != 15 {
		t.Errorf("link name %q has %d bytes", name, len(name))
	}
}
