package run

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// signals receives the signals to forward to the command. Ignored signals stay ignored, and the command inherits
// that. SIGTSTP and similar signals are not forwarded: they stop this program and the command alike.
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

// typed reports whether a key of the terminal sent the signal. Then the command received it too, because it is in
// the same process group, and must not get it twice. Go does not tell the sender, so a signal that a key can send
// counts as typed while this process is in the foreground.
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
