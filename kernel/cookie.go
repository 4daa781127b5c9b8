package kernel

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Cookie is a number that no other namespace of this boot gets, or 0 where the kernel is older than 5.14
// and does not tell. To ask takes a socket inside, which may fail: that is an error, and no answer.
func (ns *NS) Cookie() (cookie uint64, err error) {
	const soNetnsCookie = 71 // SO_NETNS_COOKIE
	c, err := ns.conn(unix.NETLINK_ROUTE)
	if err == nil {
		cookie, err = unix.GetsockoptUint64(c.fd, unix.SOL_SOCKET, soNetnsCookie)
	}
	if is(err, unix.ENOPROTOOPT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("ask which network namespace %s is: %w", ns.Path, err)
	}
	return cookie, nil
}
