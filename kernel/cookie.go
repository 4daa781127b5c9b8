package kernel

import "golang.org/x/sys/unix"

// Cookie is a number that no other namespace of this boot gets, or 0 where the kernel is older than 5.14
// and does not tell.
func (ns *NS) Cookie() (cookie uint64) {
	const soNetnsCookie = 71 // SO_NETNS_COOKIE
	if c, err := ns.conn(unix.NETLINK_ROUTE); err == nil {
		cookie, _ = unix.GetsockoptUint64(c.fd, unix.SOL_SOCKET, soNetnsCookie)
	}
	return cookie
}
