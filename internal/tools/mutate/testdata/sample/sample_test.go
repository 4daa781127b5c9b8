package sample

import "testing"

func TestAdd(t *testing.T) {
	s := new(sums)
	for _, a := range []int{0, 1} {
		if sum, err := s.add(a, 1); sum != a+1 || err != nil {
			t.Errorf("%d, %v", sum, err)
		}
	}
	if _, err := s.add(-1, 1); err == nil {
		t.Error("no error")
	}
}
