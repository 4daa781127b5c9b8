package iptables_test

import (
	"context"
	"os"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
)

// A process that was passed by while it was stopped changes nothing by what it read before. It reads again.
func TestPassedBy(t *testing.T) {
	w := contract.NewHost(t)
	table := xtables.NewTable(w.Host, xtables.NFT, false, "nat")
	runs := 0
	err := iptables.WithLock(t.Context(), func(ctx context.Context) error {
		if runs++; runs == 1 { // as another one does
			if err := os.Remove(record.RunDir + "/iptables.lock"); err != nil {
				t.Fatal(err)
			}
		}
		return table.Apply(ctx, "-A POSTROUTING -j RETURN")
	})
	if err != nil || runs != 2 {
		t.Errorf("%d runs, %v", runs, err)
	}
	saved, err := table.Save(t.Context())
	if err != nil || len(saved["POSTROUTING"]) != 1 {
		t.Errorf("the rules are %v, %v", saved, err)
	}
}
