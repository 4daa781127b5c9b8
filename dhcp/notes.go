package dhcp

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/spec"
)

// StateDir is where leases are kept, a file each, and notes for a daemon that is not there.
const StateDir = "/var/lib/cni/dhcp"

// The ends of the names of lease files and of notes.
const (
	LeaseSuffix = ".lease"
	NoteSuffix  = ".deleted"
)

func stem(dir string, o spec.Owner) string {
	n, h := identity.NetworkHash(o.Network), identity.OwnerHash(o)
	return filepath.Join(dir, hex.EncodeToString(n[:])+"."+hex.EncodeToString(h[:]))
}

// MaxFile is more than any lease or note has, in bytes.
const MaxFile = 1 << 20

// LeaseFile is the file of an owner's lease of one protocol.
func LeaseFile(dir string, o spec.Owner, protocol string) string {
	return stem(dir, o) + "." + protocol + LeaseSuffix
}

// LeaveNote says, for the next daemon to read, that an owner whose lease nobody could give back was deleted. Where
// there is no lease there is nothing to say, and left is false.
func LeaveNote(dir string, o spec.Owner) (left bool, err error) {
	files, err := filepath.Glob(stem(dir, o) + ".*" + LeaseSuffix)
	if err != nil || len(files) == 0 {
		return false, err
	}
	b, err := json.Marshal(o)
	if err != nil {
		return false, err
	}
	note := stem(dir, o) + NoteSuffix
	_ = os.Remove(note) // whatever it is: a pipe would be waited for
	return true, os.WriteFile(note, b, 0o600)
}

// TakeNotes are the owners that were deleted while there was no daemon. Take is called with each, and then its note
// goes.
func TakeNotes(dir string, take func(spec.Owner)) error {
	files, err := filepath.Glob(filepath.Join(dir, "*"+NoteSuffix))
	for _, f := range files {
		b, rerr := spec.ReadPlain(f, MaxFile)
		var o spec.Owner
		if rerr == nil {
			rerr = json.Unmarshal(b, &o)
		}
		if rerr == nil {
			take(o)
		}
		if errors.Is(rerr, fs.ErrNotExist) {
			continue
		}
		// a torn one says nothing: a lease that has no link is dropped anyway
		err = errors.Join(err, rerr, os.Remove(f))
	}
	return err
}
