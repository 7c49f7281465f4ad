package dataplanetest

import (
	"cmp"
	"os"
	"strings"
	"testing"
)

// backendsVariable lists the iptables back ends that this machine's kernel has;
// unset it means both. A kernel without nftables for IP, as user-mode-linux is,
// has "legacy" only.
const backendsVariable = "PORTWAY_TEST_IPTABLES"

// OnBackends runs a test once for each iptables back end that the other programs
// of a node may use, and that a mode must detect: "nft" and "legacy".
func OnBackends(t *testing.T, test func(t *testing.T, backend string)) {
	for backend := range strings.FieldsSeq(cmp.Or(os.Getenv(backendsVariable), "nft legacy")) {
		t.Run(backend, func(t *testing.T) { test(t, backend) })
	}
}
