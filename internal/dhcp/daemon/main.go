package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/dhcp/rpc"
	"golang.org/x/sys/unix"
)

// options has the values of the flags.
type options struct {
	Settings
	pidfile, socket string
}

// flags defines the flags: the reference's and some of our own.
func flags(o *options) *flag.FlagSet {
	fl := flag.NewFlagSet("dhcp daemon", flag.ContinueOnError)
	fl.StringVar(&o.pidfile, "pidfile", "", "`file` to write the process ID to; an absolute path")
	fl.StringVar(&o.socket, "socketpath", rpc.DefaultSocket,
		"`path` of the socket to listen on; the hostprefix comes before it")
	fl.StringVar(&o.HostPrefix, "hostprefix", "",
		"`directory` that the host's files are in, where the daemon runs in a container")
	fl.StringVar(&o.StateDir, "statedir", dhcp.StateDir,
		"`directory` to keep the leases in; the hostprefix comes before it")
	fl.BoolVar(&o.Broadcast, "broadcast", false,
		"have servers broadcast their answers, for links that take in nothing else")
	fl.DurationVar(&o.Timeout, "timeout", 10*time.Second, "how long one try to renew a lease takes")
	fl.DurationVar(&o.Resend, "resendmax", 16*time.Second, "the longest pause before a message is sent again")
	fl.DurationVar(&o.Patience, "resendtimeout", 60*time.Second, "how long ADD tries to get a lease")
	return fl
}

// Flags returns the help text of Main's flags.
func Flags() string {
	var b strings.Builder
	fl := flags(new(options))
	fl.SetOutput(&b)
	fl.PrintDefaults()
	return b.String()
}

// Main runs `dhcp daemon` and returns the exit status.
func Main(args []string, stderr io.Writer) int {
	var o options
	fl := flags(&o)
	fl.SetOutput(io.Discard) // it would print all flags below each error
	err := fl.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(stderr, "dhcp daemon keeps the leases that the IPAM plugin dhcp asks for.")
		fl.SetOutput(stderr)
		fl.PrintDefaults()
		return 0
	}
	if err == nil {
		err = usage(fl, o.pidfile, o.Settings)
	}
	if err != nil {
		fmt.Fprintf(stderr, "dhcp daemon: %v\n  dhcp daemon -help lists the flags.\n", err)
		return 2
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(stderr, nil)))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := serve(ctx, o.Settings, o.socket, o.pidfile); err != nil {
		fmt.Fprintln(stderr, "dhcp daemon:", err)
		return 1
	}
	return 0
}

func usage(fl *flag.FlagSet, pidfile string, s Settings) error {
	switch {
	case fl.NArg() > 0:
		return fmt.Errorf("%q: want only flags", fl.Args())
	case pidfile != "" && !filepath.IsAbs(pidfile):
		return fmt.Errorf("-pidfile %s: want an absolute path", pidfile)
	case s.Timeout <= 0 || s.Resend <= 0 || s.Patience <= 0:
		return errors.New("-timeout, -resendmax and -resendtimeout must be greater than zero")
	}
	return nil
}

func serve(ctx context.Context, s Settings, socket, pidfile string) error {
	l, err := Listener(filepath.Join(s.HostPrefix, socket), 0o660)
	if err != nil {
		return err
	}
	defer l.Close()
	d, err := New(s)
	if err != nil {
		return err
	}
	defer d.Close()
	if pidfile != "" {
		f, err := os.OpenFile(pidfile, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NONBLOCK, 0o644)
		if err != nil {
			return err
		}
		_, err = f.WriteString(strconv.Itoa(os.Getpid()))
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		defer os.Remove(pidfile)
	}
	slog.Info("ready", "socket", l.Addr(), "leases", len(d.list()), "in", d.store.dir)
	Notify("READY=1")
	return d.Serve(ctx, l)
}

// Listener returns the socket that systemd opened for this process (LISTEN_FDS). Without one, it opens a socket at path
// with that mode, unless another process listens there.
func Listener(path string, mode fs.FileMode) (net.Listener, error) {
	if os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) {
		n, _ := strconv.Atoi(os.Getenv("LISTEN_FDS"))
		if n != 1 {
			return nil, fmt.Errorf("systemd passed %d sockets (LISTEN_FDS): want one", n)
		}
		for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
			os.Unsetenv(name)
		}
		const first = 3 // SD_LISTEN_FDS_START
		unix.CloseOnExec(first)
		f := os.NewFile(first, "LISTEN_FD_3")
		defer f.Close()
		return net.FileListener(f)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := vacate(path); err != nil {
		return nil, err
	}
	old := unix.Umask(int(0o777 &^ mode)) // nothing else runs yet that would make files
	l, err := net.Listen("unix", path)
	unix.Umask(old)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// vacate removes the socket of a daemon that was killed. It is an error if a process listens on the socket.
func vacate(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	conn, err := net.DialTimeout("unix", path, 5*time.Second)
	switch {
	case err == nil:
		conn.Close()
		return fmt.Errorf("another daemon listens on %s", path)
	case !errors.Is(err, syscall.ECONNREFUSED):
		return err
	}
	return os.Remove(path)
}

// Notify tells systemd the state, if systemd waits for it (Type=notify).
func Notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		slog.Warn("tell systemd", "error", err)
		return
	}
	defer conn.Close()
	conn.Write([]byte(state))
}
