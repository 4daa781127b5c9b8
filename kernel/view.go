package kernel

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// A view keeps the answers about one namespace.
type view struct {
	host *NS // the namespace that OpenView opened

	mu      sync.Mutex
	answers map[any]answer
	inner   map[string]*NS // of host: containers by their paths
	room    int            // of host: how many more containers may stay open
	returns func() bool    // of host: whether a thread of this process may enter it
}

type answer struct {
	value any
	err   error
}

// OpenView opens the namespace of this process for a program that only looks. Each question that packages ask by Once
// goes to the kernel once; then it has the same answer until Close. Containers that Enter opens stay open as long, each
// with its own answers, and no thread of its own: see Stranded, which is lost.
func OpenView(lost func(error)) (*NS, error) {
	ns, err := Open("")
	if err != nil {
		return nil, err
	}
	ns.Stranded = lost
	ns.view = &view{host: ns, answers: map[any]answer{}, inner: map[string]*NS{}, room: roomForViews(),
		returns: sync.OnceValue(func() bool { return unix.Setns(ns.FD, unix.CLONE_NEWNET) == nil })}
	return ns, nil
}

// roomForViews returns for how many containers there are descriptors, each with some sockets.
func roomForViews() int {
	const each, most = 8, 1 << 14
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int(min(limit.Cur, most) / each)
}

// Enter opens the namespace at path, as Open does. If ns is of a view, path leads to the same NS each time, and its
// Close waits for that of the view. Beyond the limit of descriptors each call opens the namespace anew.
func (ns *NS) Enter(path string) (*NS, error) {
	if ns == nil || ns.view == nil || path == "" {
		return Open(path)
	}
	host := ns.view.host
	v := host.view
	v.mu.Lock()
	defer v.mu.Unlock()
	if in := v.inner[path]; in != nil {
		return in, nil
	}
	in, err := Open(path)
	if err != nil {
		return nil, err
	}
	in.Stranded = host.Stranded
	if v.room > 0 {
		v.room--
		in.view = &view{host: host, answers: map[any]answer{}}
		v.inner[path] = in
	}
	return in, nil
}

// Keeps reports whether ns is of a view, so that Once keeps its answers.
func (ns *NS) Keeps() bool { return ns.view != nil }

// Once returns the answer to a question about ns. If ns is of a view, ask is called for the first such question alone.
// An error is an answer if the kernel gave it. The caller must not change what it gets.
func Once[T any](ns *NS, question any, ask func() (T, error)) (T, error) {
	if ns.view == nil {
		return ask()
	}
	ns.view.mu.Lock()
	defer ns.view.mu.Unlock()
	if known, ok := ns.view.answers[question]; ok {
		value, _ := known.value.(T)
		return value, known.err
	}
	value, err := ask()
	if errno := unix.Errno(0); err == nil || errors.As(err, &errno) && !Unanswered(err) {
		ns.view.answers[question] = answer{value, err}
	}
	return value, err
}

// Forget makes the next questions go to the kernel, about ns and, if ns is the host, about its containers.
func (ns *NS) Forget() {
	if ns.view == nil {
		return
	}
	ns.view.mu.Lock()
	defer ns.view.mu.Unlock()
	clear(ns.view.answers)
	for _, in := range ns.view.inner {
		in.Forget()
	}
}

// leave reports whether ns is a container of a view, which closes it.
func (ns *NS) leave() bool { return ns.view != nil && ns.view.host != ns }

// closeInner closes the containers of a view.
func (ns *NS) closeInner() {
	if ns.view == nil {
		return
	}
	for _, in := range ns.view.inner {
		in.view = nil
		in.Close()
	}
}
