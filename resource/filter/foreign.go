package filter

import (
	"errors"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// ReferenceNFT runs fn, and runs it again if another transaction came between. On a kernel without nf_tables, there
// is nothing to remove.
func ReferenceNFT(w *kernel.World, fn func(*nft.Conn) error) error {
	n, err := nft.Open(w.Host)
	if err == nil {
		if err = fn(n); errors.Is(err, unix.ENOENT) {
			err = fn(n)
		}
	}
	return ExceptUnavailable(err)
}
