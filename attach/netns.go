package attach

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/fairlead-cni/fairlead/spec"
)

// errNoNamespace: the path exists, and is no namespace: its mount is gone.
var errNoNamespace = errors.New("not a namespace")

// A namespace is a network namespace of this boot. Inodes are used again, so equal ones prove little;
// different ones prove that these are two namespaces.
type namespace struct{ dev, inode uint64 }

// lookAt finds the namespace at path.
func lookAt(path string) (namespace, error) {
	if path == "" {
		return namespace{}, errors.New("no path is given")
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0) // a pipe must not be waited for
	if err != nil {
		return namespace{}, err
	}
	defer f.Close()
	var fs syscall.Statfs_t
	var st syscall.Stat_t
	if err := errors.Join(syscall.Fstatfs(int(f.Fd()), &fs), syscall.Fstat(int(f.Fd()), &st)); err != nil {
		return namespace{}, fmt.Errorf("stat %s: %w", path, err)
	}
	const nsfs = 0x6e736673
	if int64(fs.Type) != nsfs {
		return namespace{}, fmt.Errorf("%s: %w", path, errNoNamespace)
	}
	return namespace{uint64(st.Dev), st.Ino}, nil
}

// ownNamespace is the one that plugins run in. The caller's thread may be locked into another one, and
// so may be the main thread, which /proc/self stands for; a goroutine of its own never runs on those.
func ownNamespace() (n namespace, err error) {
	done := make(chan struct{})
	go func() {
		n, err = lookAt("/proc/thread-self/ns/net")
		close(done)
	}()
	<-done
	return n, err
}

// identity is what the cache remembers of a namespace: boot, device and inode. After another boot the
// first containers get the inodes of the last boot's first containers.
func (n namespace) identity() (string, error) {
	boot, err := bootID()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s/%d:%d", boot, n.dev, n.inode), nil
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// identity is the identity of the namespace at path.
func identity(path string) (string, error) {
	n, err := lookAt(path)
	if err != nil {
		return "", err
	}
	return n.identity()
}

// netnsForDel is what DEL tells the plugins: path, or nothing where path is the runtime's own namespace, or another one
// than ADD saw, or none any more. A namespace path such as /proc/PID/ns/net outlives its process and comes back as
// somebody else's; a plugin that believed it would take his interfaces, or the host's, down. A plugin that gets no
// namespace takes the container's for vanished (clause P12). Where it cannot be told which namespace it is, that is an
// error, and no plugin is asked.
func (r *Runtime) netnsForDel(path, seen string) (string, error) {
	if path == "" {
		return "", nil
	}
	now, err := lookAt(path)
	switch {
	case errors.Is(err, errNoNamespace):
		return "", nil
	case unanswered(err):
		return "", err
	case err != nil: // it leads nowhere, as the plugins will see
		return path, nil
	}
	own, err := ownNamespace()
	if err != nil {
		return "", err
	}
	id, err := now.identity()
	if err != nil {
		return "", err
	}
	if own == now && !r.override() || seen != "" && id != seen {
		return "", nil
	}
	return path, nil
}

// unanswered reports whether an error says nothing of the file that was asked about, but only that it could not be
// asked.
func unanswered(err error) bool {
	if errors.Is(err, ErrCorrupt) || errors.Is(err, spec.ErrNotPlain) {
		return false
	}
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EPERM,
		syscall.EACCES, syscall.EINTR, syscall.EIO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// override tells whether the reference's variable for plugins that may work in the host's own namespace
// is set.
func (r *Runtime) override() bool {
	var value string
	for _, e := range r.environ() {
		if v, ok := strings.CutPrefix(e, "CNI_NETNS_OVERRIDE="); ok {
			value = v
		}
	}
	return value == "1" || strings.EqualFold(value, "true")
}
