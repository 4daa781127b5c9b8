package resource

import "strconv"

// An MTU is a link's maximum transmission unit in bytes; zero is no opinion.
type MTU int

// AutoMTU is the least MTU of the links that the host's default routes leave by, found out when the
// resource is ensured: a plan stays a pure function.
const AutoMTU MTU = -1

func (m MTU) String() string {
	if m == AutoMTU {
		return "auto"
	}
	return strconv.Itoa(int(m))
}
