package plugin_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

// TestMacvtapFile plays a virtual machine's monitor: it opens the file that the result names, and answers for an
// address by it.
//
// clause: P24
func TestMacvtapFile(t *testing.T) {
	nstest.Need(t, "macvtap")
	s := newSite(t)
	r := s.network("a")
	r.chain.plugins = []string{`"type":"macvtap","master":"wan"`}
	var files []*os.File
	for _, id := range []string{"a1", "a2"} { // each has a file of its own
		a := &attachment{id: id, netns: nstest.NewNS(t)}
		r.must("add", r.add(a))
		defer func() { r.must("del", r.del(a)) }()
		path := interfaceOf(t, a.prev, "eth0").SocketPath
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			nstest.Skip(t, "nobody makes device files here: ", path, ": ", err)
		case errors.Is(err, fs.ErrPermission):
			nstest.Skip(t, "device files are another user's: ", path, ": ", err)
		}
		r.must("open "+path, err)
		file := os.NewFile(uintptr(fd), path)
		defer file.Close()
		ifr, _ := unix.NewIfreq("")
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		r.must("TUNSETIFF", unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr))
		files = append(files, file)
	}
	ask, mac := []byte{192, 0, 2, 77}, []byte{2, 0, 0, 0, 0, 0x77}
	go func() {
		for b := make([]byte, 2048); ; {
			n, err := files[1].Read(b)
			if err != nil {
				return
			}
			if n < 42 || b[12] != 8 || b[13] != 6 || b[21] != 1 || !bytes.Equal(b[38:42], ask) {
				continue // no question by ARP, or not for this address
			}
			who := bytes.Clone(b[22:32])
			answer := append(append(append(bytes.Clone(who[:6]), mac...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 2), mac...)
			answer = append(append(answer, ask...), who...)
			_, _ = files[1].Write(answer)
		}
	}()
	s.sh("outside", "busybox arping -q -c 1 -w 5 -I eth0 192.0.2.77")
}
