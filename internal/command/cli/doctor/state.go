package doctor

import (
	"path/filepath"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// ofState examines the files of attachments and leases.
func (d *Doctor) ofState() {
	for _, dir := range []string{"/var/lib/cni/results", "/var/lib/cni/networks", "/run/cni"} {
		d.writable(dir)
	}
	links, err := rtnl.Links(d.Host)
	if err != nil {
		d.Unexamined("the links of the host: %v", err)
	}
	if d.named || len(d.Unread) > 0 { // attachments that cannot be read are unknown
		return
	}
	known := map[[8]byte]bool{}
	for _, c := range d.All {
		known[identity.OwnerHash(c.Owner())] = true
	}
	for _, l := range links {
		_, owner, text, ok := identity.ParseTag(l.Alias)
		if ok && !known[owner] && !strings.Contains(text, "//") { // the network's own link
			d.add(CacheMissing, OnHost, "", []affected{{Container: text, Details: []string{"has link " + l.Name},
				short: text}})
		}
	}
}

// writable adds a finding if no file can be created in dir, or in its nearest existing parent.
func (d *Doctor) writable(dir string) {
	var st unix.Statfs_t
	for unix.Statfs(dir, &st) == unix.ENOENT {
		dir = filepath.Dir(dir)
	}
	switch {
	case st.Flags&unix.ST_RDONLY != 0:
		d.addWith(StateUnwritable, dir, "the file system of "+dir+" is read-only", nil,
			fix("mount -o remount,rw $(findmnt -n -o TARGET -T "+dir+")"))
	case st.Blocks > 0 && st.Bfree == 0, st.Files > 0 && st.Ffree == 0:
		d.addWith(StateUnwritable, dir, "no space left on the file system of "+dir, nil,
			look("df -h "+dir+" && df -i "+dir))
	}
}
