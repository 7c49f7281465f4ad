package main

import (
	"reflect"
	"testing"

	"github.com/portway/portway/bench/internal/report"
)

func TestLadders(t *testing.T) {
	got, err := ladders([]string{"1000x5", "5000x5", "1x1000", "250x100", "100x100"})
	want := [][]report.Shape{{{Services: 1000, Endpoints: 5}, {Services: 5000, Endpoints: 5}}, {{Services: 1, Endpoints: 1000}}, {{Services: 250, Endpoints: 100}}, {{Services: 100, Endpoints: 100}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("ladders are %v, %v, want %v", got, err, want)
	}
	for _, bad := range []string{"", "5", "0x5", "1x1001", "axb"} {
		if _, err := ladders([]string{bad}); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
