package dataplanetest

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/dataplane/dataplanetest/rig"
)

// String writes the state as a scenario has it: a line for the node and one for
// each Service.
//
//	node detect=ClusterCIDR nodePorts=all masqueradeAll=true
//	web TCP 80->8080 ips=10.96.0.10 nodePort=30080 endpoints=e1,remote*3 external=Local
func (s State) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "node detect=%s nodePorts=%s", s.Detect, s.NodePorts)
	writeField(&b, "interface", s.Interface, s.Interface != "")
	writeField(&b, "masqueradeAll", s.MasqueradeAll, s.MasqueradeAll)
	writeField(&b, "dropUnallocated", s.DropUnallocated, s.DropUnallocated)
	writeField(&b, "dropInternal", s.DropInternal, s.DropInternal)
	writeField(&b, "hostPort", s.HostPort, s.HostPort != 0)
	writeField(&b, "ignored", joined(s.Ignored), s.Ignored != nil)
	b.WriteByte('\n')
	for _, svc := range s.Services {
		fmt.Fprintln(&b, svc)
	}
	return b.String()
}

// GoString makes rapid print the state in the same form.
func (s State) GoString() string { return "\n" + s.String() }

// String writes the Service in a line that ParseService reads.
func (s Service) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %d->%d ips=%s", s.Name, s.Protocol, s.Port, s.TargetPort, joined(s.ClusterIPs))
	writeField(&b, "nodePort", s.NodePort, s.NodePort != 0)
	writeField(&b, "loadBalancers", joined(s.LoadBalancers), s.LoadBalancers != nil)
	writeField(&b, "externalIPs", joined(s.ExternalIPs), s.ExternalIPs != nil)
	writeField(&b, "endpoints", joined(s.Endpoints), s.Endpoints != nil)
	writeField(&b, "internal", s.Internal, s.Internal == dataplane.Local)
	writeField(&b, "external", s.External, s.External == dataplane.Local)
	writeField(&b, "affinity", s.Affinity, s.Affinity != 0)
	writeField(&b, "sourceRanges", joined(s.SourceRanges), s.SourceRanges != nil)
	return b.String()
}

// String writes the host, with its weight if it is not 1.
func (b Backend) String() string {
	if b.Weight == 1 {
		return b.Host
	}
	return fmt.Sprintf("%s*%d", b.Host, b.Weight)
}

func writeField(b *strings.Builder, key string, value any, present bool) {
	if present {
		fmt.Fprintf(b, " %s=%v", key, value)
	}
}

func joined[T fmt.Stringer](all []T) string {
	words := make([]string, len(all))
	for i, one := range all {
		words[i] = one.String()
	}
	return strings.Join(words, ",")
}

// ParseState reads what State.String writes. Empty lines and those that begin
// with # are skipped.
func ParseState(text string) (State, error) {
	s := State{Detect: DetectCluster, NodePorts: NodePortsAll}
	for n, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		var err error
		if words[0] == "node" {
			err = parseFields(words[1:], s.setField)
		} else {
			var svc Service
			svc, err = parseService(words)
			s.Services = append(s.Services, svc)
		}
		if err != nil {
			return s, fmt.Errorf("line %d: %q: %w", n+1, line, err)
		}
	}
	return s, nil
}

func parseService(words []string) (s Service, err error) {
	if len(words) < 3 {
		return s, errors.New("want name, protocol and port->targetPort")
	}
	s.Name = words[0]
	if s.Protocol, err = dataplane.ParseProtocol(words[1]); err != nil {
		return s, err
	}
	port, target, _ := strings.Cut(words[2], "->")
	if s.Port, err = parsePort(port); err != nil {
		return s, err
	}
	if s.TargetPort, err = parsePort(target); err != nil {
		return s, err
	}
	return s, parseFields(words[3:], s.setField)
}

func parseFields(words []string, set func(key, value string) error) error {
	for _, w := range words {
		key, value, ok := strings.Cut(w, "=")
		if !ok {
			return fmt.Errorf("%q is not of the form key=value", w)
		}
		if err := set(key, value); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

func (s *State) setField(key, value string) (err error) {
	switch key {
	case "detect":
		s.Detect, err = oneOf(value, DetectNothing, DetectCluster, DetectNode, DetectInterface, DetectBridge)
	case "interface":
		s.Interface = value
	case "nodePorts":
		s.NodePorts, err = oneOf(value, NodePortsAll, NodePortsPrimary, NodePortsNone)
	case "masqueradeAll":
		s.MasqueradeAll, err = strconv.ParseBool(value)
	case "dropUnallocated":
		s.DropUnallocated, err = strconv.ParseBool(value)
	case "dropInternal":
		s.DropInternal, err = strconv.ParseBool(value)
	case "hostPort":
		s.HostPort, err = parsePort(value)
	case "ignored":
		s.Ignored, err = parseList(value, netip.ParseAddr)
	default:
		err = errors.New("unknown key")
	}
	return err
}

func (s *Service) setField(key, value string) (err error) {
	switch key {
	case "ips":
		s.ClusterIPs, err = parseList(value, netip.ParseAddr)
	case "nodePort":
		s.NodePort, err = parsePort(value)
	case "loadBalancers":
		s.LoadBalancers, err = parseList(value, netip.ParseAddr)
	case "externalIPs":
		s.ExternalIPs, err = parseList(value, netip.ParseAddr)
	case "endpoints":
		s.Endpoints, err = parseList(value, parseBackend)
	case "internal":
		s.Internal, err = parseScope(value)
	case "external":
		s.External, err = parseScope(value)
	case "affinity":
		s.Affinity, err = time.ParseDuration(value)
	case "sourceRanges":
		s.SourceRanges, err = parseList(value, netip.ParsePrefix)
	default:
		err = errors.New("unknown key")
	}
	return err
}

func parseList[T any](text string, parse func(string) (T, error)) ([]T, error) {
	all := []T{}
	if text == "" {
		return all, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		one, err := parse(word)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func parseBackend(text string) (Backend, error) {
	host, weight, weighted := strings.Cut(text, "*")
	if _, _, err := rig.Addrs(host); err != nil {
		return Backend{}, err
	}
	if !weighted {
		return Backend{host, 1}, nil
	}
	w, err := strconv.ParseUint(weight, 10, 16)
	return Backend{host, uint16(w)}, err
}

func parseScope(text string) (dataplane.Scope, error) {
	s, err := oneOf(text, dataplane.Cluster.String(), dataplane.Local.String())
	if s == dataplane.Local.String() {
		return dataplane.Local, err
	}
	return dataplane.Cluster, err
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err
}

func oneOf[T ~string](text string, allowed ...T) (T, error) {
	for _, a := range allowed {
		if string(a) == text {
			return a, nil
		}
	}
	return "", fmt.Errorf("%q is none of %q", text, allowed)
}
