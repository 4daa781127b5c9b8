package conntrack

import (
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }
