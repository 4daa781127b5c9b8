package nft

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Who lacks CAP_NET_ADMIN gets one answer for all questions that were sent together, and does not wait for the others'.
func TestNFTRefused(t *testing.T) {
	n, _ := newNFT(t)
	set := &Set{Table: &Table{Family: unix.NFPROTO_INET, Name: "t"}, Name: "s", Key: []Type{Service}}
	asked := make(chan error)
	start := time.Now()
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with what it has lost
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		none := [2]unix.CapUserData{}
		err := unix.Capset(&head, &none[0])
		if err == nil {
			_, err = n.Get(Elem{Set: set, Key: Key(uint16(1))}, Elem{Set: set, Key: Key(uint16(2))})
		}
		asked <- err
	}()
	if err := <-asked; !errors.Is(err, unix.EPERM) {
		t.Error(err)
	}
	if took := time.Since(start); took > 20*time.Second { // the socket's own limit is 30
		t.Errorf("it took %v", took)
	}
}
