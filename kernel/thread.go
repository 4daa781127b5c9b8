package kernel

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Do runs fn on a thread inside the namespace. Opening sockets and reading /proc/sys/net depend on the thread's
// namespace. Do starts the thread on first use. The thread runs nothing else and Close ends it; Stranded describes
// the exception.
func (ns *NS) Do(fn func() error) error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.Path == "" {
		return fn() // every thread of the process is in it
	}
	if ns.Stranded != nil {
		if home, leave := ns.wayBack(); home >= 0 {
			defer leave()
			return ns.inNetns(home, fn)
		}
		ns.Stranded = nil
	}
	if ns.work == nil {
		work, entered := make(chan func()), make(chan error)
		onDisposableThread(func() {
			if err := unix.Setns(ns.FD, unix.CLONE_NEWNET); err != nil {
				entered <- fmt.Errorf("enter netns %s: %w", ns.Path, err)
				return
			}
			entered <- nil
			for f := range work {
				f()
			}
		})
		if err := <-entered; err != nil {
			return err
		}
		ns.work = work
	}
	done := make(chan error)
	ns.work <- func() { done <- fn() }
	return <-done
}

// wayBack locks the caller's thread and opens the namespace that it is in, until leave is called. Home is -1 where the
// thread could not come back: where its namespace is of another user namespace than the program, which may enter a
// container's and not this one. All threads of a view are in one namespace, which is tried once.
func (ns *NS) wayBack() (home int, leave func()) {
	runtime.LockOSThread()
	if ns.view != nil && ns.view.host.view.returns() {
		return ns.view.host.FD, runtime.UnlockOSThread
	}
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		if err = unix.Setns(home, unix.CLONE_NEWNET); err == nil {
			return home, func() { unix.Close(home); runtime.UnlockOSThread() }
		}
		unix.Close(home)
	}
	runtime.UnlockOSThread()
	return -1, nil
}

// inNetns runs fn on the caller's thread, which is at home and locked.
func (ns *NS) inNetns(home int, fn func() error) error {
	if err := unix.Setns(ns.FD, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter netns %s: %w", ns.Path, err)
	}
	defer func() {
		// What this thread did next would be done to the container instead of the host.
		if err := unix.Setns(home, unix.CLONE_NEWNET); err != nil {
			ns.Stranded(fmt.Errorf("leave netns %s: %w", ns.Path, err))
		}
	}()
	return fn()
}

// onDisposableThread runs fn on a thread that ends with it. The process's first thread never ends: in a daemon it would
// keep the namespace that it was in last, and all that is in there, for good.
func onDisposableThread(fn func()) {
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		if unix.Gettid() != unix.Getpid() {
			fn()
			return
		}
		begun := make(chan struct{})
		go func() {
			runtime.LockOSThread() // on another thread, for the first one is held until here
			close(begun)
			fn()
		}()
		<-begun
		runtime.UnlockOSThread()
	}()
}
