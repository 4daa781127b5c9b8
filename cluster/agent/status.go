package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/resource/overlay"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A view is what the last comparison knew.
type view struct {
	nodes []directory.Node // settled
	ups   []uplink
	peers []overlay.Peer
	links []uplink // also those by which there are no peers
}

// Status returns what the last comparison found. It may be called at any time, by any goroutine.
func (a *Agent) Status() agentstatus.Status {
	last := a.status.Load()
	if last == nil {
		none := a.describe(view{}, nil)
		last = &none
	}
	s := *last
	s.Nodes, s.Problems = slices.Clone(s.Nodes), slices.Clone(s.Problems)
	a.paths.describe(&s)
	a.counts.describe(&s, a.Meter, a.Source)
	if a.Describe != nil {
		a.Describe(&s)
	}
	return s
}

// describe says what a comparison knew, and what it could not do.
func (a *Agent) describe(v view, err error) agentstatus.Status {
	s := agentstatus.Status{Version: agentstatus.Version, Cluster: a.Cluster, Network: a.Network, Node: a.Node,
		Agent: a.Version, Source: a.Source.String()}
	mtus := map[string]int{} // by devices
	for i, d := range a.devices(v.ups) {
		if len(v.ups) == 0 {
			break
		}
		s.Devices = append(s.Devices, a.describeDevice(d, v.ups[i]))
		mtus[d.name] = d.mtu
	}
	without := map[string]bool{} // nodes of which an entry could not be made
	for _, d := range spec.DifferencesIn(err) {
		s.Problems = append(s.Problems, problemOf(d))
		without[d.Object] = true
	}
	for _, n := range v.nodes {
		said := agentstatus.Node{Name: n.Name, Endpoints: n.Endpoints, Prefixes: n.Prefixes, MAC: n.MAC,
			PublicKey: n.Tunnel.Key, Way: agentstatus.None}
		i := slices.IndexFunc(v.peers, func(p overlay.Peer) bool { return p.Node == n.Name })
		switch {
		case n.Name == a.Node && len(v.ups) > 0:
			said.Way, said.Endpoint, said.MTU = agentstatus.Here, v.ups[0].addr, a.leastMTU(v.ups)
		case i >= 0 && !without[n.Name]:
			p := v.peers[i]
			said.Way, said.Endpoint, said.MTU = agentstatus.VXLAN, p.Endpoint, mtus[p.Device]
			switch {
			case a.Mode == WireGuard:
				said.Way, said.MTU = agentstatus.WireGuard, mtus[a.Tunnel.Device]
			case direct(p):
				said.Way, said.Endpoint, said.MTU = agentstatus.Direct, p.Direct[0].Via, a.leastMTU(v.ups)
			}
			if p.MTU != 0 {
				said.MTU = p.MTU
			}
		}
		if said.Way == agentstatus.None && len(n.Prefixes) == 0 && !without[n.Name] && !hasProblem(s, n.Name) {
			s.Problems = append(s.Problems, agentstatus.Problem{Kind: agentstatus.NoWay, Node: n.Name,
				Text: a.Source.noRange(n.Name).What + ", so its containers have no addresses"})
		}
		s.Nodes = append(s.Nodes, said)
	}
	return s
}

func hasProblem(s agentstatus.Status, node string) bool {
	return slices.ContainsFunc(s.Problems, func(p agentstatus.Problem) bool { return p.Node == node })
}

// A soleListener listens as long as it has the lock.
type soleListener struct {
	net.Listener
	lock *os.File
}

// Close implements net.Listener.
func (l soleListener) Close() error { return errors.Join(l.Listener.Close(), l.lock.Close()) }

// lockSuffix is what the name of a socket's lock has behind the socket's.
const lockSuffix = ".lock"

// closers are closed together.
type closers []io.Closer

// Close implements io.Closer.
func (all closers) Close() error {
	var errs []error
	for _, c := range all {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// LockDevice keeps other agents from the devices, those of other networks too, until the lock is closed.
func (a *Agent) LockDevice() (io.Closer, error) {
	var all closers
	for _, path := range a.deviceLocks() {
		f, err := lock(path)
		if err != nil {
			return nil, errors.Join(err, all.Close())
		}
		all = append(all, f)
	}
	return all, nil
}

func (a *Agent) deviceLocks() (paths []string) {
	for _, name := range []string{a.Device, a.Tunnel.Device} {
		paths = append(paths, filepath.Join(grant.Dir, "device-"+name+lockSuffix))
	}
	return paths
}

// lock takes a lock, which ends with the process. The file has the process' number for people, unless it has no room for it.
func lock(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		pid := make([]byte, 20)
		n, _ := f.ReadAt(pid, 0)
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		return nil, fmt.Errorf("process %s is the agent of this network or device on this node already (it has locked %s): "+
			"end it, or give this agent another --network, --device, --vxlan-id and --wireguard-device", strings.TrimSpace(string(pid[:n])), f.Name())
	}
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintln(f, os.Getpid())
	}
	return f, nil
}

// Listen listens at a Unix socket, in the place of an agent that has ended. Beside one that runs it is an error.
func Listen(socket string) (net.Listener, error) {
	lock, err := lock(socket + lockSuffix)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(err, lock.Close())
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(err, l.Close(), lock.Close())
	}
	return soleListener{l, lock}, nil
}

// Serve answers at l what [agentstatus.Ask] asks, until ctx ends.
func (a *Agent) Serve(ctx context.Context, l net.Listener) {
	mux := a.mux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(a.Status()); err != nil {
			a.Log.Debug("status was not sent", "cause", err)
		}
	})
	mux.HandleFunc("POST /trace", func(w http.ResponseWriter, r *http.Request) {
		p, err := agentstatus.PacketOf(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a.follow(r.Context(), p)) // who asked may be gone
	})
	if a.Ask != nil {
		mux.HandleFunc("POST /want", func(w http.ResponseWriter, r *http.Request) {
			want, err := grant.WantOf(r.URL.Query())
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			err = a.Ask(r.Context(), want)
			var refusal *grant.Refusal
			switch {
			case errors.As(err, &refusal):
				w.WriteHeader(http.StatusConflict)
				_ = json.NewEncoder(w).Encode(refusal) // who asked may be gone
			case err != nil:
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
			}
		})
	}
	for pattern, answer := range a.Answers {
		mux.HandleFunc(pattern, answer)
	}
	a.serve(ctx, l, mux)
}

// serve answers at l until ctx ends.
func (a *Agent) serve(ctx context.Context, l net.Listener, mux *http.ServeMux) {
	server := &http.Server{Handler: mux, ReadTimeout: time.Minute, WriteTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(a.Log.Handler(), slog.LevelDebug)}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		a.Log.Error("the agent answers no requests any more", "at", l.Addr(), "cause", err)
	}
}
