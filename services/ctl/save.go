package ctl

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
)

// Save writes what is needed to explain and audit this node elsewhere, as a tar
// archive: what the agent knows, the objects of the API, and the state of the
// kernel. What cannot be had is left out and named by the error.
func Save(ctx context.Context, w io.Writer, agent *Client, api Kubernetes) error {
	a := &archiver{tar.NewWriter(w), time.Now()}
	var errs []error
	add := func(name string, text []byte, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s is left out: %w", name, err))
			return
		}
		errs = append(errs, a.add(name, text))
	}
	state, err := agent.State(ctx)
	if err == nil {
		state.Routes, err = routes()
	}
	text, _ := json.MarshalIndent(state, "", "  ") // all of it can be text
	add(nodeFile, append(text, '\n'), err)
	objects, err := api.objects(ctx, state.Config.NodeName)
	add(objectsFile, objects, err)
	for f, name := range map[dataplane.Family]string{dataplane.IPv4: rulesFile4, dataplane.IPv6: rulesFile6} {
		rules, err := rulesOf(ctx, f)
		add(name, rules, err)
	}
	sets, err := sets(ctx)
	add(setsFile, sets, err)
	listeners, err := agent.Relay(ctx)
	add(relayFile, listeners, err)
	if state.Mode == ipvs.Name {
		for _, part := range ipvsParts() {
			var out bytes.Buffer
			err := part.write(ctx, &out)
			add(part.name, out.Bytes(), err)
		}
	}
	return errors.Join(append(errs, a.tar.Close())...)
}

// noWait is for reading, which needs no lock.
const noWait = 0

func rulesOf(ctx context.Context, f dataplane.Family) ([]byte, error) {
	h, err := netfilter.OpenHost(ctx, f, "", noWait)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = netfilter.WriteRules(ctx, &out, h)
	return out.Bytes(), err
}

// sets are those of both families. Those without a family are in either list.
func sets(ctx context.Context) ([]byte, error) {
	var out bytes.Buffer
	for _, f := range dataplane.Families() {
		h := netfilter.NewHost(netfilter.Backend{Family: f}, noWait)
		list, err := h.Sets(ctx, nil)
		if err != nil {
			return nil, err
		}
		var mine []netfilter.Set
		for _, s := range list {
			if s.Family == f || s.Family == 0 && f == dataplane.IPv4 {
				mine = append(mine, s)
			}
		}
		if err := netfilter.WriteSets(&out, mine); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// ipvsPart is a file about IPVS, and what writes it.
type ipvsPart struct {
	name  string
	write func(context.Context, io.Writer) error
}

func ipvsParts() []ipvsPart {
	return []ipvsPart{
		{serversFile, writeServers},
		{countsFile, func(_ context.Context, w io.Writer) error {
			text, err := os.ReadFile("/proc/net/ip_vs")
			if err == nil {
				_, err = w.Write(text)
			}
			return err
		}},
		{localsFile, func(ctx context.Context, w io.Writer) error { return kernel.WriteLocals(ctx, w, kernel.Dummy{}) }},
		{sysctlsFile, func(_ context.Context, w io.Writer) error { return kernel.WriteSysctls(w, kernel.ProcSys("")) }},
	}
}

func writeServers(ctx context.Context, w io.Writer) error {
	host, err := kernel.Open(ctx)
	if err != nil {
		return err
	}
	var all []kernel.VirtualServer
	for _, f := range dataplane.Families() {
		list, err := host.List(ctx, f)
		if err != nil {
			return errors.Join(err, host.Close())
		}
		all = append(all, list...)
	}
	return errors.Join(kernel.WriteServers(w, all), host.Close())
}

// routes are those of the main table that lead through a device.
func routes() ([]Route, error) {
	list, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the routes: %w", err)
	}
	var all []Route
	for _, r := range list {
		if r.LinkIndex == 0 || r.Dst == nil {
			continue
		}
		link, err := netlink.LinkByIndex(r.LinkIndex)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue // it has gone since
		}
		if err != nil {
			return nil, fmt.Errorf("look up the device of the route to %s: %w", r.Dst, err)
		}
		if a, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			bits, _ := r.Dst.Mask.Size()
			all = append(all, Route{netip.PrefixFrom(a.Unmap(), bits), link.Attrs().Name})
		}
	}
	return all, nil
}
