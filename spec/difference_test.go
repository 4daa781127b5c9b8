package spec_test

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// An error that joins others is a difference for each; one that has causes, or none, is one of its own. A plugin that was
// killed before it said anything has none, and a repair that lost it called the attachment in order.
func TestDifferencesIn(t *testing.T) {
	a, b := errors.New("a"), fmt.Errorf("b: %w", errors.New("c"))
	killed := &invoke.ExecError{Path: "/x", Type: "x", Command: "FAIRLEAD_REPAIR", Status: -1}
	for _, tt := range []struct {
		err  error
		want []string
	}{
		{nil, nil},
		{errors.Join(a, errors.Join(b, a)), []string{"a", "b: c", "a"}},
		{fmt.Errorf("both: %w, %w", a, b), []string{"both: a, b: c"}},
		{killed, []string{killed.Error()}},
	} {
		if got := spec.DifferencesIn(tt.err).Lines(); !slices.Equal(got, tt.want) {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}

// A difference says what differs, of what, and which others need it. Those of one resource are one sentence.
func TestDifferenceSentences(t *testing.T) {
	lost := spec.Missing("")
	lost.Resource, lost.Needed = "link host/br0 type bridge", []string{"a", "b"}
	other := spec.TooMuch("port tap0")
	other.Resource = lost.Resource
	all := spec.Differences{lost, other, spec.DiffersBy("mtu", "mtu is %d", 7)}
	want := []string{"link host/br0 type bridge: is missing; it is needed by a, b", "link host/br0 type bridge: port tap0 is too much",
		"mtu is 7"}
	if got := all.Lines(); !slices.Equal(got, want) {
		t.Errorf("they are %q", got)
	}
	if got := all.Sentences(); !slices.Equal(got, []string{want[0] + "; port tap0 is too much", want[2]}) {
		t.Errorf("they say %q", got)
	}
	if lost.Got != spec.Absent || other.Got != spec.Surplus || all[2].Field != "mtu" || spec.Differences(nil).Err() != nil {
		t.Errorf("%#v", all)
	}
	byHand := other
	byHand.Repair = spec.ByHand
	if !lost.SameResource(other) || lost.SameResource(byHand) || lost.SameResource(all[2]) {
		t.Error("whose resource it is")
	}
	link := spec.Missing("link")
	if !link.LacksLink() || lost.LacksLink() || spec.TooMuch("link").LacksLink() {
		t.Error("which difference lacks a link")
	}
}

// Differences that an error of CHECK wraps, or the document of one, are those of the error.
func TestWrappedDifferences(t *testing.T) {
	many := spec.Differences{spec.Missing("a"), spec.Differs("mtu", "1", "2")}
	doc := spec.AsError(many, spec.CodeInternal)
	back, _ := spec.DecodeError(doc.Encode(spec.Newest))
	for _, err := range []error{fmt.Errorf("x: %w", many), fmt.Errorf("x: %w", back), errors.Join(many[0], many[1])} {
		if got := spec.DifferencesIn(err).Lines(); !slices.Equal(got, many.Lines()) {
			t.Errorf("%v: %q", err, got)
		}
	}
	if got := spec.DifferencesIn(fmt.Errorf("x: %w", many[1])); len(got) != 1 || got[0].Field != "mtu" || got[0].Text != "x: "+many[1].Text {
		t.Errorf("%#v", got)
	}
	plain := spec.Errorf(spec.CodeInternal, "no difference")
	if got := spec.DifferencesIn(plain); len(got) != 1 || got[0].Known() {
		t.Errorf("%#v", got)
	}
}

// What could not be compared is no difference (a failed question is not an answer).
func TestUnknownIsNoDifference(t *testing.T) {
	err := errors.Join(spec.Differs("mtu", "1500", "1400"), errors.New("EMFILE"),
		fmt.Errorf("read sysctl: %w", fs.ErrPermission))
	all := spec.DifferencesIn(err)
	if len(all) != 3 || !all[0].Known() || all[1].Known() || all[1].Got != spec.Unknown || all[2].Got != spec.Denied {
		t.Errorf("%#v", all)
	}
	if !errors.Is(all, fs.ErrPermission) {
		t.Error("the cause is lost")
	}
}

// Differences cross an exec as values, in the details of the error document, and their text is said once.
func TestDifferencesCrossAnExec(t *testing.T) {
	want := spec.Differences{
		{Resource: "link cont/eth0 type veth", Kind: "Veth", Where: spec.InContainer, Link: "eth0", Field: "mtu",
			Want: "1500", Got: "1400", Text: "mtu is 1400, want 1500", Repair: spec.ByAttach},
		{Resource: "link cont/eth0 type veth", Field: "state", Want: "up", Got: "down", Text: "state is down, want up"},
	}
	doc := spec.AsError(want.Err(), spec.CodeInternal)
	const text = "link cont/eth0 type veth: mtu is 1400, want 1500; state is down, want up"
	if doc.Msg != text {
		t.Errorf("message %q, want %q", doc.Msg, text)
	}
	got, ok := spec.DecodeError(doc.Encode(spec.Newest))
	if !ok || !reflect.DeepEqual(got.Differences, want) || got.Details != "" || got.Error() != text {
		t.Errorf("%+v, want %+v", got, want)
	}
	if other,
		_ := spec.DecodeError([]byte(`{"code":100,"msg":"m","details":"{not ours"}`)); other.Details != "{not ours" {
		t.Errorf("details of another plugin: %+v", other)
	}
}

// As many differences as fit are sent, and the document stays one.
func TestManyDifferences(t *testing.T) {
	var all spec.Differences
	for i := range 5000 {
		all = append(all, spec.Missing(fmt.Sprintf("nft element %d", i)))
	}
	got, ok := spec.DecodeError(spec.AsError(all, spec.CodeInternal).Encode(spec.Newest))
	if !ok || len(got.Differences) == 0 || len(got.Differences) >= len(all) || got.Details != "" {
		t.Errorf("%d differences, details %.40q", len(got.Differences), got.Details)
	}
}
