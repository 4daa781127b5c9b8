package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// format is the version of the lease files. A daemon leaves a file with a greater version alone.
const format = 1

// A leaseFile is the content of a lease file.
type leaseFile struct {
	Format   int             `json:"format"`
	Protocol string          `json:"protocol"`
	Ask      dhcp.Ask        `json:"ask"`
	Netns    string          `json:"netns"`            // path, as the runtime gave it
	Identity kernel.Identity `json:"identity"`         // of the namespace, for a path may lead to another one later
	Index    int             `json:"index"`            // of the link
	Metric   int             `json:"metric,omitempty"` // of the lease's routes; zero is the kernel's choice
	Boot     string          `json:"boot"`
	Uptime   time.Duration   `json:"uptime"`        // when Lease.Asked was; the wall clock may be set
	Off      bool            `json:"off,omitempty"` // the addresses were taken off the link
	Lease    *dhcp.Lease     `json:"lease"`

	Placed bool `json:"placed,omitempty"` // the addresses were seen on the link once, so they are to be there
	// what may be on the link yet, for Lease could not be put there; nil: it could
	Was *dhcp.Lease `json:"was,omitempty"`
}

// A store is the directory of the lease files. The files are synced, because a lease must survive a crash.
type store struct{ dir string }

const (
	unfinished = ".new"
	broken     = "broken" // the directory that unreadable files are put into
)

func (s store) path(o spec.Owner, protocol string) string {
	return dhcp.LeaseFile(s.dir, o, protocol)
}

// save writes a record in one step.
func (s store) save(r leaseFile) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	path := s.path(r.Ask.Owner, r.Protocol)
	if err := write(path, append(b, '\n')); err != nil {
		return spec.Errorf(spec.CodeIO, "keep the lease: %w", err)
	}
	return nil
}

func write(path string, b []byte) error {
	f, err := os.OpenFile(path+unfinished, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NONBLOCK, 0o600)
	if err != nil {
		os.Remove(path + unfinished) // a pipe of that name
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(path+unfinished, path)
	}
	if err != nil {
		os.Remove(path + unfinished)
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// remove removes the file of a lease. It is not an error if there is none.
func (s store) remove(o spec.Owner, protocol string) error {
	err := os.Remove(s.path(o, protocol))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return spec.Errorf(spec.CodeIO, "forget the lease: %w", err)
	}
	return syncDir(s.dir)
}

// load reads all leases. A file that cannot be read is moved aside with a warning, or left in place if a newer daemon
// wrote it. It does not affect other leases.
func (s store) load() (records []leaseFile, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		switch {
		case strings.HasSuffix(e.Name(), unfinished):
			os.Remove(path) // what a killed daemon was writing
			continue
		case !strings.HasSuffix(e.Name(), dhcp.LeaseSuffix):
			continue
		}
		r, err := s.read(path)
		var newer *newerError
		switch {
		case errors.As(err, &newer):
			slog.Error("a lease is left alone", "file", path, "reason", err)
		case err != nil:
			slog.Error("a lease file cannot be used, and is put aside", "file", path, "reason", err, "to",
				filepath.Join(s.dir, broken))
			if err := s.putAside(path); err != nil {
				slog.Error("put aside", "error", err)
			}
		default:
			records = append(records, r)
		}
	}
	return records, nil
}

type newerError struct{ format int }

func (e *newerError) Error() string {
	return fmt.Sprintf("a newer daemon wrote it, in format %d; this one reads %d", e.format, format)
}

func (s store) read(path string) (r leaseFile, err error) {
	b, err := plainfile.Read(path, dhcp.MaxFile)
	if err != nil {
		return r, err
	}
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return r, fmt.Errorf("the file is incomplete or not JSON: %w", err)
	}
	if head.Format > format {
		return r, &newerError{head.Format}
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, err
	}
	switch {
	case r.Format < 1:
		return r, errors.New(`"format" is missing`)
	case r.Lease == nil || len(r.Lease.Addresses)+len(r.Lease.Delegated) == 0:
		return r, errors.New("the lease has no address")
	case path != s.path(r.Ask.Owner, r.Protocol):
		return r, fmt.Errorf("the file is the lease of %s and %s under another name", r.Ask.Owner, r.Protocol)
	}
	return r, r.possible()
}

// possible returns an error if no server can have given the lease, because the daemon relies on valid values.
func (r *leaseFile) possible() error {
	var own func(netip.Addr) bool
	switch r.Protocol {
	case dhcp.DHCPv4:
		own = netip.Addr.Is4
	case dhcp.DHCPv6, dhcp.SLAAC:
		own = func(a netip.Addr) bool { return a.Is6() && !a.Is4In6() }
	default:
		return nil // which resume leaves alone
	}
	for _, l := range []*dhcp.Lease{r.Lease, r.Was} {
		if l == nil {
			continue
		}
		if r.Protocol == dhcp.DHCPv4 && (l == r.Lease && len(l.Addresses) != 1 || len(l.Delegated) > 0) {
			return errors.New("the lease does not have exactly one address")
		}
		for _, a := range slices.Concat(l.Addresses, l.Delegated) {
			if !own(a.Prefix.Addr()) || a.Prefix.Bits() < 1 {
				return fmt.Errorf("the lease has the invalid address %q", a.Prefix)
			}
		}
		for _, a := range append(slices.Clone(l.NTP), l.Gateway, l.Server.Addr) {
			if a.IsValid() && !own(a) {
				return fmt.Errorf("the lease has the invalid address %q", a)
			}
		}
		for _, rt := range l.Routes {
			if !own(rt.Dst.Addr()) || rt.Dst.Bits() < 0 || rt.GW.IsValid() && !own(rt.GW) {
				return fmt.Errorf("the lease has an invalid route to %q by %q", rt.Dst, rt.GW)
			}
		}
		if l.Valid <= 0 || l.T1 < 0 || l.T2 < 0 {
			return fmt.Errorf("the lease has the invalid times %v, %v, %v", l.T1, l.T2, l.Valid)
		}
	}
	return nil
}

func (s store) putAside(path string) error {
	dir := filepath.Join(s.dir, broken)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.Rename(path, filepath.Join(dir, filepath.Base(path)))
}

// stamp records when the lease was asked for, on a clock that cannot be set.
func (r *leaseFile) stamp() {
	r.Boot = bootID()
	r.Uptime = uptime() - time.Since(r.Lease.Asked)
}

// awake converts the time of stamp to one of this process, and reports whether it is valid. A time in the future was
// written by mistake and says nothing about the rest of the lease.
func (r *leaseFile) awake() bool {
	since := uptime() - r.Uptime
	l := *r.Lease
	r.Lease = &l
	if since < 0 {
		l.Asked = time.Now()
		return false
	}
	l.Asked = time.Now().Add(-since)
	return true
}

// bootID returns a text that identifies this boot, or an empty string if the kernel does not provide one.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

func uptime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
