package dhcp

import (
	"encoding/hex"
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

// LeaveNote tells the next daemon, by an empty file, that an owner was deleted whose lease could not be released. If
// the owner has no lease, LeaveNote writes nothing and left is false.
func LeaveNote(dir string, o spec.Owner) (left bool, err error) {
	files, err := filepath.Glob(stem(dir, o) + ".*" + LeaseSuffix)
	if err != nil || len(files) == 0 {
		return false, err
	}
	f, err := os.OpenFile(note(dir, o), os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return true, nil
	}
	if err != nil {
		return true, err
	}
	return true, f.Close()
}

func note(dir string, o spec.Owner) string { return stem(dir, o) + NoteSuffix }

// DropNote removes the note of an owner, whose leases are released: it would end the next ones, too.
func DropNote(dir string, o spec.Owner) { _ = os.Remove(note(dir, o)) }

// TakeNotes calls take with each of the owners that was deleted while no daemon ran, and then removes its note.
func TakeNotes(dir string, owners []spec.Owner, take func(spec.Owner)) error {
	of := map[string]spec.Owner{}
	for _, o := range owners {
		of[note(dir, o)] = o
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"+NoteSuffix))
	for _, f := range files {
		if o, has := of[f]; has {
			take(o)
		}
		if rmerr := os.Remove(f); !errors.Is(rmerr, fs.ErrNotExist) {
			err = errors.Join(err, rmerr)
		}
	}
	return err
}
