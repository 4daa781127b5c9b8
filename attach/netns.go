package attach

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
)

// errNoNamespace is returned for a path that exists and is not a namespace, because nothing is mounted there any more.
var errNoNamespace = errors.New("not a namespace")

// A namespace identifies a network namespace of this boot. Inode numbers are reused, so equal ones prove little;
// different ones prove that two namespaces are different.
type namespace struct{ dev, inode uint64 }

// lookAt identifies the namespace at path.
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

// ownNamespace identifies the namespace in which plugins are executed. The caller's thread may be locked into another
// one, and so may the main thread, which /proc/self refers to. A new goroutine never runs on those.
func ownNamespace() (n namespace, err error) {
	done := make(chan struct{})
	go func() {
		n, err = lookAt("/proc/thread-self/ns/net")
		close(done)
	}()
	<-done
	return n, err
}

// identity returns the string that the cache stores for a namespace: boot, device and inode. After a reboot the first
// containers get the same inode numbers as the first containers before.
func (n namespace) identity(bootID func() (string, error)) (string, error) {
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

// identity returns the identity of the namespace at path.
func identity(path string) (string, error) {
	n, err := lookAt(path)
	if err != nil {
		return "", err
	}
	return n.identity(bootID)
}

// netnsForDel returns the CNI_NETNS for DEL: path, or nothing if path is the runtime's own namespace, is not the one
// that ADD saw, or no longer exists. A path such as /proc/PID/ns/net may later belong to another process, and a plugin
// that used it would remove that container's interfaces, or the host's. A plugin without CNI_NETNS treats the namespace
// as gone (clause P12). If the namespace cannot be identified, that is an error and no plugin is called.
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
	id, err := now.identity(bootID)
	if err != nil {
		return "", err
	}
	if own == now && !r.override() || seen != "" && id != seen {
		return "", nil
	}
	return path, nil
}

// unanswered reports whether an error says nothing about the file, but only that the question failed.
func unanswered(err error) bool {
	if errors.Is(err, ErrCorrupt) || errors.Is(err, plainfile.ErrNotPlain) {
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

// override reports whether the reference's variable is set that lets plugins work in the host's namespace.
func (r *Runtime) override() bool {
	var value string
	for _, e := range r.environ() {
		if v, ok := strings.CutPrefix(e, "CNI_NETNS_OVERRIDE="); ok {
			value = v
		}
	}
	return value == "1" || strings.EqualFold(value, "true")
}
