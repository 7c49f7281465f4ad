package dataplanetest

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/portway/portway/modules/dataplane"
)

// backendsVariable lists the iptables back ends that this machine's kernel has;
// unset it means both. A kernel without nftables for IP, as user-mode-linux is,
// has "legacy" only.
const backendsVariable = "PORTWAY_TEST_IPTABLES"

// explainsVariable bounds how many flows of one state are explained. For each of
// them a plane reads all its rules anew with several programs, and where a
// program takes a fifth of a second that is most of a test's time.
const explainsVariable = "PORTWAY_TEST_EXPLAINS"

// familiesVariable lists the families to test, "IPv4" and "IPv6"; unset it means
// both. What two modes have in common need not be tried with both in both of them
// where that takes long.
const familiesVariable = "PORTWAY_TEST_FAMILIES"

// familiesToTest panics if the variable names none, or another.
func familiesToTest() []dataplane.Family {
	text, ok := os.LookupEnv(familiesVariable)
	if !ok {
		return dataplane.Families()
	}
	var some []dataplane.Family
	for name := range strings.FieldsSeq(text) {
		i := slices.IndexFunc(dataplane.Families(), func(f dataplane.Family) bool { return f.String() == name })
		if i < 0 {
			panic(fmt.Sprintf("%s: %q is none of %v", familiesVariable, name, dataplane.Families()))
		}
		some = append(some, dataplane.Families()[i])
	}
	if len(some) == 0 {
		panic(familiesVariable + " names no family")
	}
	return some
}

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
