package filter

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// A Tx is the work of one call on a table: what it reads and the transaction that depends on it.
type Tx struct {
	*nft.Conn
	Table *nft.Table
	gen   *uint32 // the generation that is read
	again bool
	known *known // nil: every call looks for itself
}

// Transact runs fn, and runs it again if another transaction came between the reads of fn and its own transaction. A
// lock in /run makes that rare. Correctness does not depend on the lock, because its holder may be a stopped process.
func Transact(ctx context.Context, w *kernel.World, t *nft.Table, fn func(Tx) error) error {
	conn, err := nft.Open(w.Host)
	if err != nil {
		return err
	}
	done, err := w.Host.Turn(ctx, "nft")
	if err != nil {
		return err
	}
	defer done()
	t.Ends = nft.EndsElements()
	return Tx{Conn: conn, Table: t, gen: new(uint32), known: knownOf(ctx)}.Attempt(ctx, fn)
}

// Attempt is Transact for a caller that holds the lock.
func (f Tx) Attempt(ctx context.Context, fn func(Tx) error) (err error) {
	torn, busy := 0, 0
	for range 1000 { // each time another process was faster
		if *f.gen, err = f.Generation(); err != nil {
			return err
		}
		read := *f.gen
		switch err = fn(f); {
		case err == nil || ctx.Err() != nil:
			return err
		case errors.Is(err, unix.ERESTART):
		case !f.again && (errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT)):
			f.again = true // what always stands is not as the cheap look at it says
		case errors.Is(err, unix.EBUSY) && busy < 20:
			busy++ // a key came and went so often within a second that the kernel is sorting its set anew
		default: // what was read of two generations is no answer
			if now, gerr := f.Generation(); gerr != nil || now == read || *f.gen != read || torn == 10 {
				return err
			}
			torn++
		}
	}
	return err
}

// Write commits a transaction that depends on everything read since the last one.
func (f Tx) Write(b *nft.Batch) error {
	if b.Empty() {
		return nil
	}
	if f.Table.Ends {
		if ending, err := f.Ending(b); err != nil {
			return err
		} else if ending != nil {
			b = ending
		}
	}
	was := *f.gen
	if err := f.CommitAt(b, was); err != nil {
		return err
	}
	*f.gen = max(was+1, 1) // and not what it is by now: what others have changed since was not read
	f.known.wrote(was, *f.gen)
	return nil
}

// ExceptUnavailable returns err, or nil if the kernel has no nf_tables: what it cannot have is removed.
func ExceptUnavailable(err error) error {
	if Unavailable(err) {
		return nil
	}
	return err
}

// Unavailable reports whether err means that the kernel has no nf_tables.
func Unavailable(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EINVAL) ||
		errors.Is(err, unix.EOPNOTSUPP)
}
