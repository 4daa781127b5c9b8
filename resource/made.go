package resource

import (
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/spec"
)

// The names of records of an attachment: that this program has made it, and that it was handed over to the reference
// plugins. The second counts only without the first.
const (
	MadeRecord   = "netns"
	HandedRecord = "handed"
)

// Root in a container may give its links any name and any mark. So which of them is an
// attachment's, what ADD wrote down decides: a link's index and kind. Name, mark and address say it only where a killed
// ADD wrote nothing, and never that a link is another program's.

// A Made is the record MadeRecord: in which namespace an attachment's link was made.
type Made struct {
	kernel.Identity            // of the container's namespace, which another may have the path of by now
	Path            string     // empty in the records of earlier versions
	Owner           spec.Owner // likewise

	// Ranges are those of the network when the attachment was made, if there were several of one family: an address of
	// each, and its gateway.
	Ranges []spec.IP `json:",omitempty"`
}

// CollectMade deletes these records of a network's attachments that are not valid. A plugin of another program may
// still need other records.
func CollectMade(w *kernel.World, network string, valid []spec.Owner) error {
	living := map[[8]byte]bool{}
	for _, o := range valid {
		living[identity.OwnerHash(o)] = true
	}
	return w.Store.Sweep(network, func(record string, owner [8]byte) bool {
		return living[owner] || record != MadeRecord && record != HandedRecord
	})
}

// Open opens that namespace. It returns nil if the namespace is gone.
func (m Made) Open() (*kernel.NS, error) { return kernel.Reopen(m.Path, m.Identity) }
