package nameserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/resource/names"
	"github.com/fairlead-cni/fairlead/spec"
)

// Server is the name server of a node.
type Server struct {
	ctx       context.Context
	dir       string // directory of the records
	log       *slog.Logger
	holder    func(inode uint32) string
	index     *index
	resolvers resolvers
	forwards  *limit
	conns     *limit

	reading   sync.Mutex // held while a record is read, so that an older version never replaces a newer one
	mu        sync.Mutex
	listeners map[netip.Addr]*listener
	failed    map[netip.Addr]error // errors of addresses that it cannot listen on
}

// Settings configure a Server.
type Settings struct {
	Memory     record.Store              // the store of the records
	ResolvConf string                    // path of the host's resolv.conf
	Log        *slog.Logger              // logs the addresses it listens on, and those it cannot
	Holder     func(inode uint32) string // names the program that has a socket, for errors
}

// Socket returns the path of the socket on which plugins reach the server for the records of a Store.
func Socket(m record.Store) string { return names.Socket(m) }

// retry is the time until the server tries again to listen on an address that another program uses.
const retry = 5 * time.Second

// Serve answers queries until ctx ends. Plugins announce records on socket. Serve calls ready once all records are
// read.
func Serve(ctx context.Context, set Settings, socket net.Listener, ready func()) error {
	defer socket.Close()
	s := &Server{ctx: ctx, dir: set.Memory.Dir, log: set.Log, holder: set.Holder, index: newIndex(),
		resolvers: resolvers{path: set.ResolvConf},
		forwards:  newLimit(mostForwards, mostOfAClient), conns: newLimit(mostConns, mostConnsOfOne),
		listeners: map[netip.Addr]*listener{}, failed: map[netip.Addr]error{}}
	defer s.close()
	w, err := watch(s.dir)
	if err != nil {
		return err
	}
	defer w.close()
	s.readAll()
	s.adjust()
	ready()
	go s.answerQuestions(socket)
	changed := make(chan error, 1)
	go func() { changed <- s.follow(w) }()
	again := time.NewTicker(retry)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-changed:
			return err
		case <-again.C:
			if s.deaf("") != nil {
				s.adjust()
			}
		}
	}
}

func (s *Server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		l.close()
	}
}

// follow reads the records that change in the directory.
func (s *Server) follow(w *watcher) error {
	for {
		changed, lost, err := w.next()
		if err != nil {
			return err
		}
		if lost {
			s.readAll()
		}
		for _, name := range changed {
			if key, ok := recordKey(name); ok {
				s.read(key)
				lost = true
			}
		}
		if lost { // else it was the record of another plugin
			s.adjust()
		}
	}
}

// recordKey returns the key of the record in a file of that name. A file that is still being written has another
// form of name.
func recordKey(file string) (key string, ok bool) {
	key, ok = strings.CutPrefix(file, names.Kept+".")
	return key, ok && strings.Count(key, ".") == 1
}

// readAll reads all records, and drops those that no longer exist.
func (s *Server) readAll() {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		s.log.Error("read the records", "error", err)
		return
	}
	there := map[string]bool{}
	for _, e := range entries {
		if key, ok := recordKey(e.Name()); ok {
			there[key] = true
			s.read(key)
		}
	}
	for _, key := range s.index.keys() {
		if !there[key] {
			s.index.put(key, nil)
		}
	}
}

// read reads one record, and reports whether it exists. If it cannot be read now, the old one stays.
func (s *Server) read(key string) bool {
	s.reading.Lock()
	defer s.reading.Unlock()
	b, err := spec.ReadPlain(filepath.Join(s.dir, names.Kept+"."+key), spec.MaxFile)
	var r names.Record
	if err == nil {
		err = json.Unmarshal(b, &r)
		of := spec.Owner{Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName}
		if err == nil && names.RecordOf(r.Network, identity.OwnerHash(of)) != key {
			err = errors.New("the content belongs to another attachment than the file name")
		}
	}
	switch {
	case err == nil:
		s.index.put(key, &r)
		return true
	case !errors.Is(err, fs.ErrNotExist):
		s.log.Error("read a record", "record", key, "error", err)
		return false
	}
	s.index.put(key, nil)
	return false
}

// answerQuestions answers plugins on the socket. Only root can connect, so their number is not limited.
func (s *Server) answerQuestions(socket net.Listener) {
	for {
		c, err := socket.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(names.AskTime))
			var q names.Question
			var a names.Answer
			err := json.NewDecoder(io.LimitReader(c, names.AskSize)).Decode(&q)
			if err == nil {
				err = s.told(q)
			}
			if err != nil {
				a.Error = err.Error()
			}
			json.NewEncoder(c).Encode(a)
		}()
	}
}

// told returns the answer to a plugin.
func (s *Server) told(q names.Question) error {
	if q.Record != "" {
		if strings.ContainsRune(q.Record, '/') || !s.read(q.Record) {
			return fmt.Errorf("there is no record %s in %s", q.Record, s.dir)
		}
	}
	s.adjust()
	// for a network without containers, only a program that has all addresses is a conflict
	if len(s.index.listens(q.Network)) == 0 {
		var errs []error
		for _, proto := range []byte{kernel.UDP, kernel.TCP} {
			if others := s.others(proto, netip.IPv4Unspecified()); others != "" {
				errs = append(errs, fmt.Errorf("port %d is in use: %s", dnsPort, others))
			}
		}
		return errors.Join(errs...)
	}
	return s.deaf(q.Network)
}
