package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// A view is what the kernel and the file systems say, one text a thing, by what can change it.
type view map[touched][]string

// linksOf are the links, addresses and routes of a namespace; "" is the host's. It reads them itself: it has to see
// what Fairlead's own reader may not.
func linksOf(netns string) (all []string, err error) {
	err = nstest.In(netns, func() error {
		names := map[uint32]string{}
		messages := map[int][]syscall.NetlinkMessage{}
		for _, kind := range []int{unix.RTM_GETLINK, unix.RTM_GETADDR, unix.RTM_GETROUTE} {
			b, err := syscall.NetlinkRIB(kind, unix.AF_UNSPEC)
			if err != nil {
				return err
			}
			if messages[kind], err = syscall.ParseNetlinkMessage(b); err != nil {
				return err
			}
		}
		for _, m := range messages[unix.RTM_GETLINK] {
			if m.Header.Type == unix.RTM_NEWLINK {
				names[binary.NativeEndian.Uint32(m.Data[4:])] = text(attribute(m.Data[unix.SizeofIfInfomsg:], unix.IFLA_IFNAME))
			}
		}
		for _, kind := range []int{unix.RTM_GETLINK, unix.RTM_GETADDR, unix.RTM_GETROUTE} {
			for _, m := range messages[kind] {
				if line := describe(m, names); line != "" {
					all = append(all, line)
				}
			}
		}
		return nil
	})
	return all, err
}

func describe(m syscall.NetlinkMessage, names map[uint32]string) string {
	index := func(b []byte) string {
		if len(b) < 4 {
			return "none"
		}
		return names[binary.NativeEndian.Uint32(b)]
	}
	switch m.Header.Type {
	case unix.RTM_NEWLINK:
		attrs := m.Data[unix.SizeofIfInfomsg:]
		flags := binary.NativeEndian.Uint32(m.Data[8:])
		return fmt.Sprintf("link %s master %s mac %x mtu %x up %v alias %s", names[binary.NativeEndian.Uint32(m.Data[4:])],
			index(attribute(attrs, unix.IFLA_MASTER)), attribute(attrs, unix.IFLA_ADDRESS),
			attribute(attrs, unix.IFLA_MTU), flags&unix.IFF_UP != 0, text(attribute(attrs, unix.IFLA_IFALIAS)))
	case unix.RTM_NEWADDR:
		if m.Data[3] == unix.RT_SCOPE_LINK {
			return ""
		}
		return fmt.Sprintf("addr %s/%d dev %s", address(attribute(m.Data[unix.SizeofIfAddrmsg:], unix.IFA_ADDRESS)), m.Data[1],
			names[binary.NativeEndian.Uint32(m.Data[4:])])
	case unix.RTM_NEWROUTE:
		attrs := m.Data[unix.SizeofRtMsg:]
		to := address(attribute(attrs, unix.RTA_DST))
		if m.Data[4] == unix.RT_TABLE_LOCAL || strings.HasPrefix(to, "fe80:") || strings.HasPrefix(to, "ff00:") {
			return "" // follows from addresses
		}
		return fmt.Sprintf("route %s/%d via %s dev %s", to, m.Data[1], address(attribute(attrs, unix.RTA_GATEWAY)),
			index(attribute(attrs, unix.RTA_OIF)))
	}
	return ""
}

// A seen is what was looked at since the last step.
type seen struct {
	rules string
	files map[string]string
}

// ruleset is what nft(8) prints.
func (s *stage) ruleset() (string, error) {
	if s.seen.rules != "" {
		return s.seen.rules, nil
	}
	var stderr bytes.Buffer
	cmd := exec.Command("nft", "list", "ruleset")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("nft list ruleset: %w %s", err, stderr.Bytes())
	}
	s.seen.rules = string(out) + "\n"
	return s.seen.rules, nil
}

var elements = regexp.MustCompile(`(?s)elements = \{ (.*?) \}\n`)

// elementsOf are the elements of all sets, each with its set.
func elementsOf(rules string) (all []string) {
	set := ""
	for part := range strings.SplitSeq(rules, "\n\t}\n") {
		for line := range strings.Lines(part) {
			if words := strings.Fields(line); len(words) > 2 && (words[0] == "set" || words[0] == "map") {
				set = words[1]
			}
		}
		found := elements.FindStringSubmatch(part + "\n")
		if found == nil {
			continue
		}
		for _, e := range splitOutsideQuotes(found[1]) {
			if !strings.Contains(e, " expires ") { // an element that ends
				all = append(all, set+" "+e)
			}
		}
	}
	return all
}

func splitOutsideQuotes(text string) (parts []string) {
	quoted, begin := false, 0
	for i, r := range text {
		switch {
		case r == '"':
			quoted = !quoted
		case r == ',' && !quoted:
			parts = append(parts, strings.TrimSpace(text[begin:i]))
			begin = i + 1
		}
	}
	return append(parts, strings.TrimSpace(text[begin:]))
}

// filesOf are the files of the state, with their content. Those that only help to find things faster, locks of
// containers, and the log of calls, are left out.
func (s *stage) filesOf() (map[string]string, error) {
	if s.seen.files != nil {
		return s.seen.files, nil
	}
	found := map[string]string{}
	for _, dir := range []string{"/run/cni", "/var/lib/cni"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			switch {
			case os.IsNotExist(err):
				return nil
			case err != nil:
				return err
			case hint.MatchString(path):
				return nil
			case d.Type()&fs.ModeSymlink != 0:
				found[path], _ = os.Readlink(path)
			case d.Type().IsRegular():
				b, _ := os.ReadFile(path)
				found[path] = string(b)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	s.seen.files = found
	return found, nil
}

var hint = regexp.MustCompile(`/\.fairlead-index/|/plugins-|/calls|last_reserved_ip|/netns/|repair\.json|/history/|/container-ctr`)

// private reports whether a step on files can have changed nothing of another container than that of its call, which may be nil:
// it is about its own files, files that only help to find things faster, or temporary ones.
func (s *step) private(c *container) bool {
	for _, path := range s.objects() {
		own := c != nil && (strings.Contains(path, c.hash) || strings.Contains(path, c.id))
		if !own && !hint.MatchString(path) && !strings.Contains(path, "*") {
			return false
		}
	}
	return true
}

// own is what belongs to a container alone.
func (s *stage) own(c *container, what touched) (mine []string, err error) {
	switch what {
	case links:
		return s.ownLinks(c)
	case rules:
		text, err := s.ruleset()
		if err != nil {
			return nil, err
		}
		for _, e := range elementsOf(text) {
			if strings.Contains(e, c.hash) {
				mine = append(mine, e)
			}
		}
	case files:
		all, err := s.filesOf()
		if err != nil {
			return nil, err
		}
		for path, content := range all {
			if strings.HasSuffix(path, ".lease.new") {
				continue
			}
			content = lasting(path, content)
			if strings.Contains(path, c.hash) || strings.Contains(path, c.id) || strings.HasPrefix(content, c.id+"\r\n") {
				mine = append(mine, path+": "+content)
			}
		}
	}
	slices.Sort(mine)
	return mine, err
}

// lasting is what stays the same of the content of a file: of a lease of DHCP, which the daemon renews, the addresses.
func lasting(path, content string) string {
	var r struct {
		Off   bool
		Lease struct {
			Addresses []struct{ Prefix netip.Prefix }
		}
	}
	if !strings.HasSuffix(path, dhcp.LeaseSuffix) || json.Unmarshal([]byte(content), &r) != nil {
		return content
	}
	return fmt.Sprint(r)
}

func (s *stage) ownLinks(c *container) (mine []string, err error) {
	host, err := linksOf("")
	if err != nil {
		return nil, err
	}
	name := ""
	for _, line := range host {
		if strings.Contains(line, c.hash) {
			name = strings.Fields(line)[1]
		}
	}
	for _, line := range host {
		if name != "" && slices.Contains(strings.Fields(line), name) {
			mine = append(mine, "host "+line)
		}
	}
	inside, err := linksOf(c.netns)
	for _, line := range inside {
		mine = append(mine, "cont "+line)
	}
	slices.Sort(mine)
	return mine, err
}

// whole is everything of the host, for what is left in the end.
func (s *stage) whole() ([]string, error) {
	all, err := linksOf("")
	if err != nil {
		return nil, err
	}
	text, err := s.ruleset()
	if err != nil {
		return nil, err
	}
	all = append(all, strings.Split(elements.ReplaceAllString(text, "\n"), "\n")...)
	all = append(all, elementsOf(text)...)
	found, err := s.filesOf()
	for _, path := range slices.Sorted(maps.Keys(found)) {
		all = append(all, "file "+path)
	}
	for _, f := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if b, _ := os.ReadFile("/proc/sys/net/" + f); strings.TrimSpace(string(b)) != "0" {
			all = append(all, f)
		}
	}
	return all, err
}

// mentions are the things that name a container.
func (s *stage) mentions(c *container) (all []string, err error) {
	found, err := s.filesOf()
	if err != nil {
		return nil, err
	}
	named := func(text string) bool { return strings.Contains(text, c.hash) || strings.Contains(text, c.id) }
	for path, content := range found {
		if named(path + content) {
			all = append(all, "file "+path+": "+content)
		}
	}
	text, err := s.ruleset()
	if err != nil {
		return nil, err
	}
	for _, e := range elementsOf(text) {
		if named(e) {
			all = append(all, "element "+e)
		}
	}
	host, err := linksOf("")
	for _, line := range host {
		if named(line) {
			all = append(all, line)
		}
	}
	slices.Sort(all)
	return all, err
}

// addresses are those of all containers' interfaces, with who has them.
func (s *stage) addresses() (of map[netip.Addr][]string, err error) {
	of = map[netip.Addr][]string{}
	for _, c := range s.containers {
		if c.gone {
			continue
		}
		lines, err := linksOf(c.netns)
		if err != nil {
			return nil, err
		}
		for _, line := range lines {
			text, isAddr := strings.CutPrefix(line, "addr ")
			if p, err := netip.ParsePrefix(strings.Fields(text + " x")[0]); isAddr && err == nil && !p.Addr().IsLoopback() {
				of[p.Addr()] = append(of[p.Addr()], c.id)
			}
		}
	}
	return of, nil
}

// difference is what only one of two lists has.
func difference(before, after []string) string {
	const enough = 20 // for a person
	lines := 0
	var b strings.Builder
	count := map[string]int{}
	for _, line := range before {
		count[line]++
	}
	for _, line := range after {
		count[line]--
	}
	for _, line := range slices.Sorted(maps.Keys(count)) {
		n := count[line]
		if n != 0 {
			lines++
		}
		switch {
		case lines > enough && n != 0:
			return b.String() + "\n…"
		case n > 0:
			fmt.Fprintf(&b, "\n- %s", line)
		case n < 0:
			fmt.Fprintf(&b, "\n+ %s", line)
		}
	}
	return b.String()
}

// only are the lines that before lacks.
func only(before, after []string) (more []string) {
	before = slices.Clone(before)
	for _, line := range after {
		if i := slices.Index(before, line); i >= 0 {
			before = slices.Delete(before, i, i+1)
		} else {
			more = append(more, line)
		}
	}
	return more
}
