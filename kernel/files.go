package kernel

import (
	"os"

	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// FilesLeft returns an error if the process may not open so many more files. The descriptor of the namespace, which has
// just been opened, tells how many are open.
func (ns *NS) FilesLeft(needed int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	if least := uint64(ns.FD + 1 + needed); limit.Cur < least {
		return spec.Errorf(spec.CodeTryAgain, "the limit of open files (RLIMIT_NOFILE) is %d, and %d are needed: "+
			"raise the limit of the runtime", limit.Cur, least)
	}
	return nil
}
