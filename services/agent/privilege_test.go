package agent

import (
	"strings"
	"testing"
)

func TestCheckCapability(t *testing.T) {
	for _, test := range []struct{ name, status, want string }{
		{"root", "Name:\tportway\nCapEff:\t000001ffffffffff\n", ""},
		{"only NET_ADMIN", "CapPrm:\t0\nCapEff:\t0000000000001000\n", ""},
		{"all but NET_ADMIN", "CapEff:\t000001ffffffefff\n", "NET_ADMIN"},
		{"nobody", "CapEff:\t0000000000000000\n", "NET_ADMIN"},
		{"garbage", "CapEff:\tyes\n", "capabilities of this process"},
		{"no line", "Name:\tportway\n", "no line CapEff"},
	} {
		err := checkCapability(strings.NewReader(test.status))
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}
