package packetfilter

import (
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMayHave compares what is said of a key with unknown bits with all keys that it may be.
func TestMayHave(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	some := func() []byte { return []byte{byte(r.IntN(8)), byte(r.IntN(8))} }
	answers := map[bool]int{}
	for range 3000 {
		s := &nftSet{keyLen: 2}
		switch shape := r.IntN(3); shape {
		case 0:
			s.list = append(s.list, nftElem{key: some()}, nftElem{key: some()})
		case 1:
			s.bounds = true
			s.list = append(s.list, nftElem{key: []byte{0, 0}, flags: unix.NFT_SET_ELEM_INTERVAL_END},
				nftElem{key: []byte{2, 3}}, nftElem{key: []byte{2, 5}, flags: unix.NFT_SET_ELEM_INTERVAL_END},
				nftElem{key: []byte{5, byte(r.IntN(8))}}, nftElem{key: []byte{6, 0}, flags: unix.NFT_SET_ELEM_INTERVAL_END})
		case 2:
			// Each field in one word of the registers, as the kernel has them.
			s.fields, s.keyLen = []int{1, 1}, 5
			from, to := some(), some()
			s.list = append(s.list, nftElem{key: []byte{from[0], 0, 0, 0, from[1]}, end: []byte{to[0], 0, 0, 0, to[1]}})
		}
		if r.IntN(20) == 0 {
			s.list = append(s.list, nftElem{flags: setElemCatchall})
		}
		at := []int{0, s.keyLen - 1}
		key, could := exactly(make([]byte, s.keyLen)...), false
		for _, i := range at {
			key.known[i] = []byte{0xff, 0xf8, 0xfd}[r.IntN(3)]
			key.v[i] = byte(r.IntN(8)) & key.known[i]
		}
		for n := range 64 {
			full := append([]byte(nil), key.v...)
			full[at[0]] |= byte(n%8) &^ key.known[at[0]]
			full[at[1]] |= byte(n/8) &^ key.known[at[1]]
			could = could || s.find(full) != nil
		}
		got := s.mayHave(key)
		answers[got]++
		if could && !got {
			t.Fatalf("%+v: no element for %+v, but there is one", s, key)
		}
		if len(s.fields) == 0 && !s.bounds && got != could {
			t.Fatalf("%+v: mayHave(%+v) = %v", s, key, got)
		}
	}
	if answers[true] == 0 || answers[false] == 0 {
		t.Errorf("the answers are all alike: %v", answers)
	}
}
