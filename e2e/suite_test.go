package e2e_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/portway/portway/e2e/cluster"
)

// Labels choose specs: those for a mode and for a family of addresses, as
// --label-filter 'iptables && ipv4'.
var (
	anyFamily = Label("ipv4", "ipv6", "dual")
	anyMode   = Label("iptables", "ipvs", "userspace", "nftables")
	// keepsSource are the modes in which a packet that needs no masquerading
	// arrives with the address of its sender. A relay in user space cannot.
	keepsSource = Label("iptables", "ipvs", "nftables")
	// keepsFlows are the modes whose connections outlive the agent. Those of a
	// relay end with it.
	keepsFlows = Label("iptables", "ipvs", "nftables")
	// endsBindings are the modes in which a client that stayed away for the
	// timeout is free. IPVS remembers closed connections for two minutes more.
	endsBindings = Label("iptables", "userspace", "nftables")
	// usesNAT are the modes that hang on rules in the nat table.
	usesNAT = Label("iptables", "userspace")
	// smoke is a choice that takes less than a minute.
	smoke = Label("smoke")
	// portwayOnly is what kube-proxy does in another way.
	portwayOnly = Label("portway-only")
)

// limit is how long one spec may take, with time for slow machines.
const limit = SpecTimeout(4 * time.Minute)

// The cluster, and a client on each of its nodes. They are set once, before the
// first spec of each process.
var (
	c       *cluster.Cluster
	clients []client
)

func TestE2E(t *testing.T) {
	RegisterFailHandler(Fail)
	// A change must be in force within seconds, also on a machine that is busy
	// with everything else a cluster does.
	SetDefaultEventuallyTimeout(45 * time.Second)
	EnforceDefaultTimeoutsWhenUsingContexts()
	SetDefaultEventuallyPollingInterval(250 * time.Millisecond)
	RunSpecs(t, "Portway")
}

var _ = SynchronizedBeforeSuite(func(ctx SpecContext) []byte {
	access, err := cluster.FindAccess(ctx)
	Expect(err).NotTo(HaveOccurred())
	c, err = cluster.Connect(ctx, access)
	Expect(err).NotTo(HaveOccurred())
	GinkgoLogr.Info("Connected", "proxy", c.Proxy.Name, "mode", c.Proxy.Mode, "family", c.Proxy.Family)
	expectTheRightCluster(GinkgoLabelFilter())
	deployClients(ctx)
	raw, err := json.Marshal(access)
	Expect(err).NotTo(HaveOccurred())
	return raw
}, func(ctx SpecContext, raw []byte) {
	var access cluster.Access
	Expect(json.Unmarshal(raw, &access)).To(Succeed())
	var err error
	c, err = cluster.Connect(ctx, access)
	Expect(err).NotTo(HaveOccurred())
	clients = findClients(ctx)
}, NodeTimeout(3*time.Minute))

var _ = SynchronizedAfterSuite(func() {}, func(ctx SpecContext) {
	if c != nil {
		deleteNamespace(ctx, clientNamespace)
	}
}, NodeTimeout(time.Minute))

var word = regexp.MustCompile(`[\w-]+`)

// expectTheRightCluster compares what was asked for with what the cluster is:
// otherwise specs would pass in a mode that they were not run in.
func expectTheRightCluster(filter string) {
	words := word.FindAllString(filter, -1)
	for name, one := range map[string]struct {
		known Labels
		is    string
	}{
		"mode":   {anyMode, c.Proxy.Mode},
		"family": {anyFamily, c.Proxy.Family},
	} {
		asked := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return !slices.Contains(one.known, w) })
		Expect(asked).To(Or(BeEmpty(), ContainElement(one.is)), "the %s of the cluster is %s", name, one.is)
	}
}
