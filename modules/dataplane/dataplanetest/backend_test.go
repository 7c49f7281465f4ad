package dataplanetest

import (
	"slices"
	"testing"
)

func TestSpread(t *testing.T) {
	all := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	for n, want := range map[int][]int{0: nil, 1: {9}, 3: {3, 6, 9}, 10: all} {
		if got := spread(all, n); !slices.Equal(got, want) {
			t.Errorf("%d of %v: %v, want %v", n, all, got, want)
		}
	}
	if got := spread([]int{}, 0); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// The bound comes from the environment, which tests in parallel share.
func TestMostExplains(t *testing.T) {
	t.Setenv(explainsVariable, "3")
	if many, few := mostExplains(25), mostExplains(2); many != 3 || few != 2 {
		t.Errorf("of 25 and of 2: %d and %d", many, few)
	}
	t.Setenv(explainsVariable, "")
	if all := mostExplains(25); all != 25 {
		t.Errorf("without a bound, of 25: %d", all)
	}
}
