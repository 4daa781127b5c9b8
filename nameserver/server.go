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

// A Server is the name server of a node.
type Server struct {
	ctx       context.Context
	dir       string // of the records
	log       *slog.Logger
	holder    func(inode uint32) string
	index     *index
	resolvers resolvers
	forwards  limit
	conns     limit

	reading   sync.Mutex // who reads a record later has the newer one
	mu        sync.Mutex
	listeners map[netip.Addr]*listener
	failed    map[netip.Addr]error // of those that it cannot listen on
}

// Settings are what a Server is told.
type Settings struct {
	Memory     record.Store              // where the records are
	ResolvConf string                    // of the host
	Log        *slog.Logger              // which addresses it listens on, and which it cannot listen on
	Holder     func(inode uint32) string // the program that has a socket, for errors
}

// Socket is where plugins look for the server that answers from the records of a Store.
func Socket(m record.Store) string { return names.Socket(m) }

// retry is how long the server goes on without an address that another program has, before it tries again.
const retry = 5 * time.Second

// Serve answers until ctx ends. Socket is where it is told of records. Ready is called when the records are read.
func Serve(ctx context.Context, set Settings, socket net.Listener, ready func()) error {
	defer socket.Close()
	s := &Server{ctx: ctx, dir: set.Memory.Dir, log: set.Log, holder: set.Holder, index: newIndex(),
		resolvers: resolvers{path: set.ResolvConf},
		forwards:  limit{all: mostForwards, each: mostOfAClient},
		conns:     limit{all: mostConns, each: mostConnsOfOne},
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

// follow reads what changes in the directory of the records.
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
		if lost { // else it was another plugin's record
			s.adjust()
		}
	}
}

// recordKey is the key of the record in a file of that name. One that is being written has another name.
func recordKey(file string) (key string, ok bool) {
	key, ok = strings.CutPrefix(file, names.Kept+".")
	return key, ok && strings.Count(key, ".") == 1
}

// readAll reads all records, and drops those that are there no longer.
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

// read reads one record, and reports whether it is there. One that cannot be read now stays as it was.
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

// answerQuestions answers plugins. Only root can ask, so there is no bound.
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

// told is the answer to a plugin.
func (s *Server) told(q names.Question) error {
	if q.Record != "" {
		if strings.ContainsRune(q.Record, '/') || !s.read(q.Record) {
			return fmt.Errorf("there is no record %s in %s", q.Record, s.dir)
		}
	}
	s.adjust()
	if len(s.index.listens(q.Network)) == 0 { // of a network to come, only who has all addresses is in the way
		var errs []error
		for _, proto := range []byte{kernel.UDP, kernel.TCP} {
			if others := s.others(proto, netip.IPv4Unspecified()); others != "" {
				errs = append(errs, fmt.Errorf("port %d is taken: %s", dnsPort, others))
			}
		}
		return errors.Join(errs...)
	}
	return s.deaf(q.Network)
}
