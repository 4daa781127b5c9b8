package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// What a step can change, and so what has to be looked at after it.
type touched int

const (
	nothing touched = iota // a lock
	files
	links
	rules
)

// A step is a system call that can change something others see. It waits for its turn.
type step struct {
	held    *nstest.Held
	name    string // the call and its object
	touches touched
	links   []string     // that a message names by number: the link itself, and the bridge that it is a port of
	wait    *unix.Stat_t // the file of a lock that the call waits for
	turn    bool         // that lock only keeps calls in order
	shared  bool
}

// calls are the system calls that can be steps.
func calls() []uint32 {
	return []uint32{unix.SYS_OPENAT, unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_FLOCK, unix.SYS_MKDIRAT,
		unix.SYS_LINKAT, unix.SYS_SYMLINKAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_UNLINKAT, unix.SYS_WRITE,
		unix.SYS_PWRITE64, unix.SYS_FTRUNCATE, unix.SYS_CONNECT}
}

// stepOf is nil for a call that changes nothing that others see.
func stepOf(h *nstest.Held) *step {
	s := &step{held: h, touches: files}
	switch h.Number {
	case unix.SYS_FLOCK:
		s.flock()
	case unix.SYS_SENDTO:
		s.send(h.Bytes(1, min(h.Args[2], 1<<16)))
	case unix.SYS_CONNECT:
		if strings.Contains(string(h.Bytes(1, min(h.Args[2], unix.SizeofSockaddrUnix))), rpc.DefaultSocket) {
			s.name, s.touches = connectsDaemon, nothing
		}
	case unix.SYS_SENDMSG:
		s.name, s.touches = "sendmsg", rules
	case unix.SYS_OPENAT:
		if h.Args[2]&unix.O_CREAT != 0 {
			s.name = "create " + s.at(0, 1)
		}
	case unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_FTRUNCATE:
		if path := s.open(0); filepath.IsAbs(path) && !strings.HasPrefix(path, "/dev/") && int32(h.Args[0]) > 2 {
			s.name = "write " + path
		}
		if strings.Contains(s.name, "/proc/") {
			s.touches = links
		}
	case unix.SYS_MKDIRAT:
		s.name = "mkdir " + s.at(0, 1)
	case unix.SYS_LINKAT:
		s.name = "link " + s.at(2, 3)
	case unix.SYS_SYMLINKAT:
		s.name = "symlink " + s.at(1, 2)
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		s.name = "rename " + s.at(2, 3)
	case unix.SYS_UNLINKAT:
		s.name = "unlink " + s.at(0, 1)
	}
	s.name = varying.ReplaceAllString(s.name, "*")
	if s.name == "" || private(s.name) {
		return nil
	}
	return s
}

// connectsDaemon is the step before a call asks the DHCP daemon.
const connectsDaemon = "connect " + rpc.DefaultSocket

// varying are parts of names that differ from run to run.
var varying = regexp.MustCompile(`\.[0-9]{6,}|\.fairlead-[0-9]+|#[0-9]+ \(deleted\)|/proc/[0-9]+|(tmp|pipe|socket):?\[?[0-9]+\]?`)

// crucial reports whether a step touches what calls beside each other decide by, or comes before a lock. The others are
// many, and who goes between them matters seldom: others cannot see them, or they wait for a lock anyway.
func (s *step) crucial() bool { return !minor.MatchString(s.name) }

var minor = regexp.MustCompile(`/history/|/\.fairlead-index/|last_reserved_ip|^(trylock|unlock) |linkprop|neigh|write /proc/|` +
	`/\* [0-9]|\.new [0-9]|\.tmp [0-9]|addr default|route default|newlink eth0`)

// objects are what a step is about: paths, links, addresses, sets. A step on rules alone is about the packet filter.
func (s *step) objects() (list []string) {
	for word := range strings.FieldsSeq(s.name) {
		if _, err := strconv.Atoi(word); err != nil && !verbs.MatchString(word) {
			list = append(list, word)
		}
	}
	if len(list) == 0 && s.touches == rules {
		list = []string{"rules"}
	}
	return append(list, s.links...)
}

var verbs = regexp.MustCompile(`^((new|del|set)[a-z]+|create|write|mkdir|link|symlink|rename|unlink|lock|trylock|unlock|index|sendmsg|` +
	`delete-flow|connect)$`)

// private reports whether a step concerns the program alone: links to itself as the plugins, the log of calls, and
// numbers of namespaces, which the DHCP daemon asks for whenever it hears of a link.
func private(name string) bool {
	return strings.Contains(name, "/plugins-") || strings.Contains(name, "/var/log/") ||
		strings.Contains(name, "(deleted)") || strings.Contains(name, "/fairlead/calls") || name == "newnsid"
}

// reads is the file of the state that a call opens to read, or "".
func reads(h *nstest.Held) string {
	if h.Number != unix.SYS_OPENAT || h.Args[2]&unix.O_CREAT != 0 {
		return ""
	}
	path := (&step{held: h}).at(0, 1)
	if strings.HasPrefix(path, "/run/cni/") || strings.HasPrefix(path, "/var/lib/cni/") {
		return path
	}
	return ""
}

// open is the path of the file that an argument is the descriptor of.
func (s *step) open(arg int) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", s.held.PID, int32(s.held.Args[arg])))
	return path
}

// at is the path that two arguments name: relative to a directory, or by itself.
func (s *step) at(dir, name int) string {
	path := s.held.Text(name)
	if !filepath.IsAbs(path) && int32(s.held.Args[dir]) >= 0 {
		path = filepath.Join(s.open(dir), path)
	}
	return path
}

func (s *step) flock() {
	s.touches = nothing
	how := int(s.held.Args[1])
	path := s.open(0)
	var st unix.Stat_t
	named := unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", s.held.PID, int32(s.held.Args[0])), &st) == nil
	switch {
	case how&unix.LOCK_UN != 0:
		s.name = "unlock " + path
	case how&unix.LOCK_NB != 0:
		s.name = "trylock " + path
	default:
		s.name = "lock " + path
		s.shared, s.turn = how&unix.LOCK_SH != 0, filepath.Base(path) == "nft.lock"
		if named {
			s.wait = &st
		}
	}
}

// blocked reports whether a step would wait in the kernel for a lock. It tries to take the lock: /proc/locks may lack
// one that is there, while others come and go.
func (s *step) blocked() bool {
	if s.wait == nil {
		return false
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/fd/%d", s.held.PID, int32(s.held.Args[0])), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	how := unix.LOCK_EX
	if s.shared {
		how = unix.LOCK_SH
	}
	return unix.Flock(fd, how|unix.LOCK_NB) == unix.EWOULDBLOCK
}

// blockedBy are the processes that hold a lock, as far as /proc/locks shows them. It may pass over one, and there is
// none where a lock was given back since it was tried. So no player seen means: look again.
func (s *step) blockedBy() (pids []int) {
	if s.wait == nil {
		return nil
	}
	const looks = 5
	for n := 0; n < looks && pids == nil; n++ {
		pids, _ = locks(s.wait)
	}
	return pids
}

// locks are the processes that /proc/locks names for locks of a file.
func locks(st *unix.Stat_t) (pids []int, err error) {
	list, err := os.ReadFile("/proc/locks")
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(list)) {
		// 7: FLOCK  ADVISORY  WRITE 4711 00:2d:193 0 EOF
		if word := strings.Fields(line); len(word) == 8 && word[5] == file {
			pid, _ := strconv.Atoi(word[4])
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// send names the messages of a netlink socket that change something, and those to a DHCP server in packets of IPv4.
func (s *step) send(b []byte) {
	const ipv4 = 4<<4 | 5
	if len(b) > 0 && b[0] == ipv4 && int(binary.NativeEndian.Uint32(b)) > len(b) {
		s.name, s.touches = "message of DHCP", nothing
		return
	}
	var names []string
	for len(b) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(b))
		kind, flags := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:])
		if length < unix.SizeofNlMsghdr || length > len(b) {
			break
		}
		name := s.message(kind, flags, b[unix.SizeofNlMsghdr:length])
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
		b = b[min(len(b), (length+3)&^3):]
	}
	s.name = strings.Join(names, " ")
}

func (s *step) message(kind, flags uint16, body []byte) string {
	const nfTables, conntrack = 10, 1
	switch subsystem := kind >> 8; {
	case kind <= unix.RTM_DELLINK && len(body) < unix.SizeofIfInfomsg: // the begin and the end of a batch of nf_tables
		return ""
	case subsystem == 0 && kind >= unix.RTM_NEWLINK && flags&unix.NLM_F_DUMP != unix.NLM_F_DUMP:
		if kind%4 == unix.RTM_GETLINK%4 || flags&unix.NLM_F_REQUEST == 0 {
			return ""
		}
		s.touches = links
		if kind/4 == unix.RTM_NEWLINK/4 && len(body) >= unix.SizeofIfInfomsg {
			s.numbered(body[4:])
			s.numbered(attribute(body[unix.SizeofIfInfomsg:], unix.IFLA_MASTER))
		}
		return route(kind, body)
	case subsystem == nfTables && kind&0xff < 25:
		s.touches = rules
		name := nft[kind&0xff]
		if name == "newsetelem" || name == "delsetelem" {
			name += " " + text(attribute(body[min(4, len(body)):], 2))
		}
		return name
	case subsystem == conntrack && kind&0xff == 2:
		return "delete-flow"
	}
	return ""
}

// numbered adds the link that has a number, if there is one.
func (s *step) numbered(b []byte) {
	if len(b) < 4 {
		return
	}
	if l, err := net.InterfaceByIndex(int(binary.NativeEndian.Uint32(b))); err == nil {
		s.links = append(s.links, l.Name)
	}
}

// nft are the changing messages of nf_tables.
var nft = map[uint16]string{0: "newtable", 2: "deltable", 3: "newchain", 5: "delchain", 6: "newrule", 8: "delrule",
	9: "newset", 11: "delset", 12: "newsetelem", 14: "delsetelem", 18: "newobj", 20: "delobj", 22: "newflowtable",
	24: "delflowtable"}

// kinds are rtnetlink's, of four messages each: new, del, get, set.
var kinds = map[uint16]string{4: "link", 5: "addr", 6: "route", 7: "neigh", 8: "rule", 9: "qdisc", 10: "tclass",
	11: "tfilter", 22: "nsid", 26: "nexthop", 27: "linkprop"}

func route(kind uint16, body []byte) string {
	verb := []string{"new", "del", "get", "set"}[kind%4]
	name, known := kinds[kind/4]
	if !known {
		name = fmt.Sprint("rtnetlink-", kind/4)
	}
	object := ""
	switch name {
	case "link", "linkprop":
		if object = text(attribute(body[min(unix.SizeofIfInfomsg, len(body)):], unix.IFLA_IFNAME)); object == "" {
			object = fmt.Sprint("index ", binary.NativeEndian.Uint32(body[4:]))
		}
	case "addr":
		object = address(attribute(body[min(unix.SizeofIfAddrmsg, len(body)):], unix.IFA_ADDRESS))
	case "route":
		object = address(attribute(body[min(unix.SizeofRtMsg, len(body)):], unix.RTA_DST))
	}
	return strings.TrimSpace(verb + name + " " + object)
}

func attribute(b []byte, wanted uint16) []byte {
	for len(b) >= 4 {
		length, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if length < 4 || length > len(b) {
			return nil
		}
		if kind&0x3fff == wanted {
			return b[4:length]
		}
		b = b[min(len(b), (length+3)&^3):]
	}
	return nil
}

func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

func address(b []byte) string {
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return "default"
	}
	return a.String()
}
