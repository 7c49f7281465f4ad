package ctl

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/iptables"
	"github.com/portway/portway/modules/ipvs"
	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/netfilter"
	"github.com/portway/portway/modules/relay"
	"github.com/portway/portway/modules/userspace"
)

// plane is what can be asked of a plane of which only files are left.
type plane interface {
	Explain(context.Context, dataplane.Flow) (dataplane.Explanation, error)
	Audit(context.Context, *dataplane.Snapshot) ([]dataplane.Difference, error)
}

// savedPlane is a plane of one family.
type savedPlane struct {
	plane
	name     string
	family   dataplane.Family
	loopback bool // it is the one for NodePorts on loopback
}

// kernelState is what was saved of a kernel, and of the agent's listeners.
type kernelState struct {
	node   *NodeState
	files  map[string][]byte
	relays []relay.Listening
	ipvs   kernel.Saved
}

// A stateFile is a file with a part of the state, as a program prints it.
type stateFile struct {
	name string
	how  string // to come by it on the node
	// read is nil for what is read with others.
	read func(*kernelState, io.Reader) error
}

func stateFiles() []stateFile {
	return []stateFile{
		{rulesFile4, "iptables-save", nil},
		{rulesFile6, "ip6tables-save", nil},
		{setsFile, "ipset save", nil},
		{relayFile, "curl --unix-socket /run/portway/portway.sock http://agent/relay", func(s *kernelState, r io.Reader) (err error) {
			s.relays, err = relay.ReadTable(r)
			return err
		}},
		{serversFile, "ipvsadm -Sn", func(s *kernelState, r io.Reader) (err error) {
			s.ipvs.Servers, err = kernel.ReadServers(r)
			return err
		}},
		{countsFile, "cat /proc/net/ip_vs", func(s *kernelState, r io.Reader) error { return s.ipvs.Servers.Count(r) }},
		{localsFile, "ip route show table local dev kube-ipvs0; ip -6 route show table local dev kube-ipvs0", func(s *kernelState, r io.Reader) (err error) {
			s.ipvs.Device, err = kernel.ReadLocals(r)
			return err
		}},
		{sysctlsFile, "sysctl -a", func(s *kernelState, r io.Reader) (err error) {
			s.ipvs.Sysctls, err = kernel.ReadSysctls(r)
			return err
		}},
	}
}

func isStateFile(name string) bool {
	return name == nodeFile || slices.ContainsFunc(stateFiles(), func(f stateFile) bool { return f.name == name })
}

// missing says how to come by a file.
func missing(name string) error {
	all := stateFiles()
	i := slices.IndexFunc(all, func(f stateFile) bool { return f.name == name })
	return fmt.Errorf(`%s is missing: "portwayctl dump" saves it on the node; by hand it is the output of %q`, name, all[i].how)
}

// A savedMode makes planes of what was saved of one mode.
type savedMode struct {
	mode dataplane.Mode
	// needs are the files without which nothing can be said.
	needs []string
	open  func(*kernelState, dataplane.Family, *netfilter.Dump) (plane, error)
}

func savedModes() []savedMode {
	return []savedMode{
		{iptables.Mode(iptables.Options{}), nil, func(s *kernelState, f dataplane.Family, d *netfilter.Dump) (plane, error) {
			return iptables.NewPlane(f, d, s.isLocal), nil
		}},
		{userspace.Mode(userspace.Options{}), []string{relayFile}, func(s *kernelState, f dataplane.Family, d *netfilter.Dump) (plane, error) {
			return userspace.NewSaved(f, d, s.isLocal, s.relays), nil
		}},
		{ipvs.Mode(ipvs.Options{}), []string{serversFile, localsFile}, func(s *kernelState, f dataplane.Family, d *netfilter.Dump) (plane, error) {
			var o ipvs.Options
			if s.node.IPVS != nil {
				o = *s.node.IPVS
			}
			return ipvs.NewSaved(f, o, d, s.ipvs, s.isLocal)
		}},
	}
}

// open makes the planes of each family whose rules were saved.
func (s *Saved) open(files map[string][]byte) error {
	modes := savedModes()
	i := slices.IndexFunc(modes, func(m savedMode) bool { return m.mode.Name == s.state.Mode })
	if i < 0 {
		return fmt.Errorf("read %s: the mode %q is unknown", nodeFile, s.state.Mode)
	}
	s.mode = modes[i].mode
	for _, name := range modes[i].needs {
		if _, ok := files[name]; !ok {
			return missing(name)
		}
	}
	k := kernelState{node: &s.state, files: files}
	for _, f := range stateFiles() {
		if text, ok := files[f.name]; ok && f.read != nil {
			if err := f.read(&k, bytes.NewReader(text)); err != nil {
				return fmt.Errorf("read %s: %w", f.name, err)
			}
		}
	}
	for _, f := range dataplane.Families() {
		if err := s.openFamily(&k, f, modes[i]); err != nil {
			return err
		}
	}
	if len(s.planes) == 0 {
		return fmt.Errorf("neither %s nor %s was saved", rulesFile4, rulesFile6)
	}
	return nil
}

func (s *Saved) openFamily(k *kernelState, f dataplane.Family, m savedMode) error {
	name := rulesFile4
	if f == dataplane.IPv6 {
		name = rulesFile6
	}
	rules, ok := k.files[name]
	if !ok {
		return nil
	}
	var sets io.Reader
	if text, ok := k.files[setsFile]; ok {
		sets = bytes.NewReader(text)
	}
	dump, err := netfilter.ReadDump(f, bytes.NewReader(rules), sets)
	if err != nil {
		return fmt.Errorf("read %s and %s: %w", name, setsFile, err)
	}
	p, err := m.open(k, f, dump)
	if err != nil {
		return fmt.Errorf("read what was saved of the %s mode for %s: %w", m.mode.Name, f, err)
	}
	s.planes = append(s.planes, savedPlane{p, m.mode.Name + " " + f.String(), f, false})
	if _, ok := k.files[relayFile]; ok {
		t := relay.LoopbackTable{Family: f}
		for _, l := range k.relays {
			if l.Addr.Addr() == f.Loopback() {
				t.Table = append(t.Table, l)
			}
		}
		s.planes = append(s.planes, savedPlane{t, relay.LoopbackName(f), f, true})
	}
	return nil
}

// isLocal tells whether the node had an address.
func (s *kernelState) isLocal(a netip.Addr) bool {
	return slices.ContainsFunc(s.node.Local.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
}
