package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
)

// TB is what a rig needs of a test; a [testing.TB] and a rapid.T are both one.
type TB interface {
	Name() string
	Helper()
	Cleanup(func())
	Context() context.Context
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Options choose what varies between rigs. The zero value is a good rig.
type Options struct {
	// Endpoints is the number of endpoint pods on the node; 0 means 2.
	Endpoints int
	// PodIface starts the names of the node's interfaces to its pods, as a CNI
	// would name them; "" means "veth".
	PodIface string
	// Bridge, if not empty, joins the pods of the node to a bridge of that name
	// instead of routing to each of them.
	Bridge string
}

// Rig is one network, as drawn in the package's description.
type Rig struct {
	// Node is the host under test.
	Node *Host
	// Client is a pod on the node without a server.
	Client *Host
	// Endpoints are pods on the node.
	Endpoints []*Host
	// Up is the router of the segment and the outside client.
	Up *Host
	// Node2 is another node, Remote a pod on it.
	Node2, Remote *Host

	opts Options
	mnt  *os.File
}

// New builds a rig that lives as long as the test.
func New(tb TB, opts Options) *Rig {
	tb.Helper()
	r, err := open(opts)
	if r != nil {
		tb.Cleanup(func() {
			if err := r.close(); err != nil {
				tb.Errorf("close rig: %v", err)
			}
		})
	}
	if err != nil {
		tb.Fatalf("build rig: %v", err)
	}
	return r
}

// open returns what it has built also when it fails.
func open(opts Options) (*Rig, error) {
	if opts.Endpoints == 0 {
		opts.Endpoints = 2
	}
	if opts.PodIface == "" {
		opts.PodIface = "veth"
	}
	mnt, err := newMountNamespace()
	if err != nil {
		return nil, err
	}
	r := &Rig{opts: opts, mnt: mnt}
	for _, step := range []func() error{r.addHosts, r.configure, r.joinSegment, r.joinPods, r.address, r.addRoutes, r.introduce, r.keepConntrack} {
		if err := step(); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (r *Rig) addHosts() error {
	r.Endpoints = make([]*Host, r.opts.Endpoints)
	type wanted struct {
		at   **Host
		name string
	}
	all := []wanted{{&r.Node, "node"}, {&r.Client, "c"}, {&r.Up, "up"}, {&r.Node2, "node2"}, {&r.Remote, "remote"}}
	for i := range r.Endpoints {
		all = append(all, wanted{&r.Endpoints[i], fmt.Sprintf("e%d", i+1)})
	}
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, w := range all {
		wg.Go(func() { *w.at, errs[i] = newHost(w.name, r.mnt) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Hosts are all hosts of the rig that exist.
func (r *Rig) Hosts() []*Host {
	var all []*Host
	for _, h := range append([]*Host{r.Node, r.Client, r.Up, r.Node2, r.Remote}, r.Endpoints...) {
		if h != nil {
			all = append(all, h)
		}
	}
	return all
}

// Host returns the host of that name, or nil.
func (r *Rig) Host(name string) *Host {
	for _, h := range r.Hosts() {
		if h.Name == name {
			return h
		}
	}
	return nil
}

// Pods are the pods of the node.
func (r *Rig) Pods() []*Host { return append([]*Host{r.Client}, r.Endpoints...) }

// configure sets what every host needs before it has an interface.
func (r *Rig) configure() error {
	for _, h := range r.Hosts() {
		forward := "0"
		if h == r.Node || h == r.Node2 {
			forward = "1"
		}
		settings := append([]setting{
			{"net.ipv4.ip_forward", forward},
			{"net.ipv6.conf.all.forwarding", forward},
		}, everywhere...)
		if err := errors.Join(h.setSysctls(settings), h.linkUp("lo")); err != nil {
			return err
		}
	}
	return nil
}

// everywhere are settings of all hosts. A new namespace inherits some from the
// machine, which must not matter.
var everywhere = []setting{
	// A refusal that is rate limited looks like silence.
	{"net.ipv4.icmp_ratemask", "0"},
	{"net.ipv6.icmp.ratemask", "3-127"}, // all but destination unreachable
	// Routers do not talk about packets that leave where they came in, as all
	// do that go back to up.
	{"net.ipv4.conf.all.send_redirects", "0"},
	{"net.ipv4.conf.default.send_redirects", "0"},
	{"net.ipv4.conf.all.accept_redirects", "0"},
	{"net.ipv4.conf.default.accept_redirects", "0"},
	{"net.ipv6.conf.all.accept_redirects", "0"},
	{"net.ipv6.conf.default.accept_redirects", "0"},
	{"net.ipv4.conf.all.rp_filter", "0"},
	{"net.ipv4.conf.default.rp_filter", "0"},
	{"net.ipv4.conf.all.arp_ignore", "0"},
	{"net.ipv4.conf.default.arp_ignore", "0"},
	// Addresses work without a search for duplicates.
	{"net.ipv6.conf.all.disable_ipv6", "0"},
	{"net.ipv6.conf.default.disable_ipv6", "0"},
	{"net.ipv6.conf.all.accept_dad", "0"},
	{"net.ipv6.conf.default.accept_dad", "0"},
	{"net.ipv4.ping_group_range", "0 0"},
}
