package resource

import (
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// What is remembered of an attachment: that we have made it, and that it was handed over, which only counts without
// the former.
const (
	MadeRecord   = "netns"
	HandedRecord = "handed"
)

// Whoever is root in a container may call its links what he likes, and write any mark on them. So which of them is an
// attachment's, what ADD wrote down decides: a link's index and kind. Name, mark and address say it only where a killed
// ADD wrote nothing, and never that a link is somebody else's.

// A Made is what is remembered of where an attachment's link was made, under MadeRecord.
type Made struct {
	kernel.Identity            // of the container's namespace, which another may have the path of by now
	Path            string     // empty in the records of earlier versions
	Owner           spec.Owner // likewise
}

// Open is the namespace, or nil if it is gone.
func (m Made) Open() (*kernel.NS, error) { return kernel.Reopen(m.Path, m.Identity) }
