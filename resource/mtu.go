package resource

import (
	"errors"
	"strconv"
)

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

// UnmarshalJSON takes a number of bytes, or "auto".
func (m *MTU) UnmarshalJSON(b []byte) error {
	switch s := string(b); s {
	case `""`, "null":
		return nil
	case `"auto"`:
		*m = AutoMTU
		return nil
	default:
		n, err := strconv.Atoi(s)
		if err != nil {
			return errors.New(`want a number of bytes, or "auto"`)
		}
		*m = MTU(n)
		return nil
	}
}
