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

// StateDir contains the leases, one file each, and notes for a daemon that is not running.
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

// MaxFile limits the size of leases and notes in bytes.
const MaxFile = 1 << 20

// LeaseFile returns the path of the file of an owner's lease of one protocol.
func LeaseFile(dir string, o spec.Owner, protocol string) string {
	return stem(dir, o) + "." + protocol + LeaseSuffix
}

// LeaveNote tells the next daemon, by a file, that an owner was deleted whose lease could not be released. If the owner
// has no lease, LeaveNote writes nothing and left is false.
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

// DropNote removes the note of an owner, whose leases are released: it would end the next ones, too.
func DropNote(dir string, o spec.Owner) { _ = os.Remove(stem(dir, o) + NoteSuffix) }

// TakeNotes calls take with each owner that was deleted while no daemon ran, and then removes its note.
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
		if rmerr := os.Remove(f); !errors.Is(rmerr, fs.ErrNotExist) {
			rerr = errors.Join(rerr, rmerr)
		}
		// a torn one says nothing: a lease that has no link is dropped anyway
		err = errors.Join(err, rerr)
	}
	return err
}
