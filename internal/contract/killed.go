package contract

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/plan"
)

// KillMe makes this binary do one addition, in the two namespaces that it names, and nothing else.
const KillMe = "FAIRLEAD_TEST_ADD"

// Main runs the tests of a package, or the one addition that killMe asks for.
func Main(m *testing.M) {
	if os.Getenv(KillMe) != "" {
		if err := addOnce(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	nstest.Main(m)
}

func addOnce() error {
	h, err := kernel.Open(os.Getenv(KillMe + "_HOST"))
	if err != nil {
		return err
	}
	c, err := kernel.Open(os.Getenv(KillMe + "_CONT"))
	if err != nil {
		return err
	}
	w := &kernel.World{Host: h, Container: c, Store: record.Store{Dir: os.Getenv(KillMe + "_MEMORY")}}
	fmt.Println("open") // from here on it may be killed
	p := KillPlans[os.Getenv(KillMe)]()
	if os.Getenv(KillMe+"_VERB") == "DEL" {
		return engine.Undo(context.Background(), w, p)
	}
	for _, r := range p {
		if _, err := r.Ensure(context.Background(), w); err != nil {
			return err
		}
	}
	fmt.Println("done")
	return nil
}

// KillPlans are what a package's tests kill the addition of, by name.
var KillPlans map[string]func() plan.Plan

// RunKilled kills an addition some time after it has begun, or lets it end where after is negative.
func RunKilled(t *testing.T, w *kernel.World, which string, after time.Duration) (took time.Duration) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), KillMe+"="+which, KillMe+"_HOST="+w.Host.Path, KillMe+"_CONT="+w.Container.Path,
		KillMe+"_MEMORY="+w.Store.Dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if after >= 0 {
		for time.Since(begin) < after { // a timer is too coarse for this
		}
		_ = cmd.Process.Kill()
	}
	_, _ = out.Read(make([]byte, 5))
	took = time.Since(begin)
	if err := cmd.Wait(); err != nil && after < 0 {
		t.Fatal(err)
	}
	return took
}
