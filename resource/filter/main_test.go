package filter_test

import (
	"testing"

	"github.com/fairlead-cni/fairlead/resource/filter/filtertest"
)

func TestMain(m *testing.M) { filtertest.Main(m) }
