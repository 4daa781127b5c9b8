package nameserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
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

	reading   sync.Mutex      // held while a record is read, so that an older version never replaces a newer one
	unread    map[string]bool // records that could not be read; "": there may be more
	blind     atomic.Bool     // there are such records, so a name that is not found may exist
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

// retry is the time until the server tries again to listen on an address that another program uses, and to read records
// that it could not read.
const retry = 5 * time.Second

// Serve answers queries until ctx ends. Plugins announce records on socket. Serve calls ready once all records are
// read.
func Serve(ctx context.Context, set Settings, socket net.Listener, ready func()) error {
	defer socket.Close()
	s := &Server{ctx: ctx, dir: set.Memory.Dir, log: set.Log, holder: set.Holder, index: newIndex(),
		resolvers: resolvers{path: set.ResolvConf},
		forwards:  newLimit(mostForwards, mostOfAClient), conns: newLimit(mostConns, mostConnsOfOne),
		unread: map[string]bool{}, listeners: map[netip.Addr]*listener{}, failed: map[netip.Addr]error{}}
	defer s.close()
	w, err := watch(s.dir)
	if err != nil {
		return err
	}
	defer w.close()
	s.readAll()
	s.adjust()
	ready()
	ended := make(chan error, 2)
	go func() { ended <- s.answerQuestions(socket) }()
	go func() { ended <- s.follow(w) }()
	again := time.NewTicker(retry)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case <-again.C:
			blind := s.blind.Load()
			if blind {
				s.readAll()
			}
			if blind || s.deaf("") != nil {
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
	clear(s.listeners)
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
		s.reading.Lock()
		defer s.reading.Unlock()
		s.missed("", true)
		return
	}
	there := map[string]bool{}
	for _, e := range entries {
		if key, ok := recordKey(e.Name()); ok {
			there[key] = true
			s.read(key)
		}
	}
	s.reading.Lock()
	others := slices.AppendSeq(s.index.keys(), maps.Keys(s.unread))
	s.missed("", false)
	s.reading.Unlock()
	for _, key := range others {
		if key != "" && !there[key] {
			s.read(key)
		}
	}
}

// missed notes whether a record could not be read. The caller holds reading.
func (s *Server) missed(key string, is bool) {
	if delete(s.unread, key); is {
		s.unread[key] = true
	}
	s.blind.Store(len(s.unread) > 0)
}

// read reads one record, and returns an error if there is none. If it cannot be read now, the old one stays.
func (s *Server) read(key string) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	b, err := plainfile.Read(filepath.Join(s.dir, names.Kept+"."+key), plainfile.MaxSize)
	s.missed(key, err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, plainfile.ErrNotPlain))
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
		return nil
	case errors.Is(err, fs.ErrNotExist):
		s.index.put(key, nil)
	default:
		s.log.Error("read a record", "record", key, "error", err)
	}
	return fmt.Errorf("there is no record %s in %s that can be read: %w", key, s.dir, err)
}

// answerQuestions answers plugins on the socket. Only root can connect, so their number is not limited.
func (s *Server) answerQuestions(socket net.Listener) error {
	for {
		c, err := socket.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(names.AskTime))
			var q names.Question
			var a names.Answer
			err := json.NewDecoder(io.LimitReader(c, names.AskSize)).Decode(&q)
			if err == nil {
				err = s.answerPlugin(q)
			}
			if err != nil {
				a.Error = err.Error()
			}
			json.NewEncoder(c).Encode(a)
		}()
	}
}

// answerPlugin returns the answer to a plugin.
func (s *Server) answerPlugin(q names.Question) error {
	if q.Record != "" {
		if strings.ContainsRune(q.Record, '/') {
			return fmt.Errorf("there is no record %s in %s", q.Record, s.dir)
		}
		if err := s.read(q.Record); err != nil {
			return err
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
