package dataplanetest

import (
	"cmp"
	"os"
	"strconv"
	"strings"
	"testing"
)

// backendsVariable lists the iptables back ends that this machine's kernel has;
// unset it means both. A kernel without nftables for IP, as user-mode-linux is,
// has "legacy" only.
const backendsVariable = "PORTWAY_TEST_IPTABLES"

// explainsVariable bounds how many flows of one state are explained. For each of
// them a plane reads all its rules anew with several programs, and where a
// program takes a fifth of a second that is most of a test's time.
const explainsVariable = "PORTWAY_TEST_EXPLAINS"

// mostExplains is that bound; without one it is n.
func mostExplains(n int) int {
	if limit, err := strconv.Atoi(os.Getenv(explainsVariable)); err == nil {
		return min(n, limit)
	}
	return n
}

// spread takes n of all, evenly.
func spread[T any](all []T, n int) []T {
	var some []T
	for i, one := range all {
		if i*n/len(all) != (i+1)*n/len(all) {
			some = append(some, one)
		}
	}
	return some
}

// OnBackends runs a test once for each iptables back end that the other programs
// of a node may use, and that a mode must detect: "nft" and "legacy".
func OnBackends(t *testing.T, test func(t *testing.T, backend string)) {
	for backend := range strings.FieldsSeq(cmp.Or(os.Getenv(backendsVariable), "nft legacy")) {
		t.Run(backend, func(t *testing.T) { test(t, backend) })
	}
}
