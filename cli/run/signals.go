package run

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// signals receives what a command should hear of. What is ignored stays ignored, for the command inherits
// that too. SIGTSTP and its like are left to stop this program as they stop the command beside it.
func signals() <-chan os.Signal {
	c := make(chan os.Signal, 16)
	for _, s := range []syscall.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGCONT,
		unix.SIGWINCH,
	} {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
	return c
}

// ends reports whether a signal asks a program to end.
func ends(s os.Signal) bool {
	return s == unix.SIGHUP || s == unix.SIGINT || s == unix.SIGQUIT || s == unix.SIGTERM
}

// typed reports whether a key of the terminal sent the signal. Then the command has heard it, for it is left
// in the process group that it was started in, and to forward it would be to send it twice. Go does not
// say who sent a signal, so one that a key sends is taken for typed while we are in the foreground.
func typed(s os.Signal) bool {
	if s != unix.SIGINT && s != unix.SIGQUIT {
		return false
	}
	tty, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false // no terminal
	}
	defer unix.Close(tty)
	foreground, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}
