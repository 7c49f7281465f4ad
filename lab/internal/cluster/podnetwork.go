package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/portway/portway/lab/internal/command"
	"github.com/portway/portway/lab/internal/docker"
)

// node is what the pod network needs to know of a node.
type node struct {
	name      string
	podCIDRs  []netip.Prefix
	addresses []netip.Addr
}

// PodNetwork connects the pods of an offline cluster: on each node a CNI
// configuration (a veth pair with an address of the node's own pod network)
// and a route to the pod network of each other node.
func PodNetwork(ctx context.Context, kube Kubectl, d docker.Client) error {
	// The controller manager assigns pod networks when nodes have joined.
	if _, err := kube.Output(ctx, "wait", "--for=jsonpath={.spec.podCIDR}", "node", "--all", "--timeout=60s"); err != nil {
		return err
	}
	out, err := kube.Output(ctx, "get", "nodes", "--output=json")
	if err != nil {
		return err
	}
	nodes, err := parseNodes([]byte(out))
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if err := n.connect(ctx, d, nodes); err != nil {
			return fmt.Errorf("pod network of node %s: %w", n.name, err)
		}
	}
	return nil
}

func (n node) connect(ctx context.Context, d docker.Client, all []node) error {
	conflist, err := n.conflist()
	if err != nil {
		return err
	}
	// Routes first: the kubelet starts pods as soon as it sees the conflist.
	if err := n.write(ctx, d, "/kind/lab/routes", n.routes(all)); err != nil {
		return err
	}
	if _, err := d.Run.Run(ctx, NodeExec(d, n.name, "sh", "/kind/lab/routes")); err != nil {
		return err
	}
	return n.write(ctx, d, "/etc/cni/net.d/10-lab.conflist", conflist)
}

func (n node) write(ctx context.Context, d docker.Client, path, content string) error {
	cmd := NodeExec(d, n.name, "sh", "-c", "mkdir -p $(dirname "+path+") && cat >"+path+".new && mv "+path+".new "+path)
	cmd.Stdin = strings.NewReader(content)
	_, err := d.Run.Run(ctx, cmd)
	return err
}

// routes is a script with the way to the pods of every other node. The node's
// entrypoint runs it again at every boot.
func (n node) routes(all []node) string {
	var out strings.Builder
	fmt.Fprintln(&out, "set -e")
	for _, other := range all {
		if other.name == n.name {
			continue
		}
		for _, cidr := range other.podCIDRs {
			for _, gateway := range other.addresses {
				if gateway.Is4() == cidr.Addr().Is4() {
					fmt.Fprintf(&out, "ip route replace %s via %s\n", cidr, gateway)
				}
			}
		}
	}
	return out.String()
}

// conflist is the node's CNI configuration. Nothing is masqueraded: the source
// address of a pod is seen as it is everywhere in the cluster, and beyond it
// nothing goes.
func (n node) conflist() (string, error) {
	var ranges [][]map[string]string
	var routes []map[string]string
	for _, cidr := range n.podCIDRs {
		ranges = append(ranges, []map[string]string{{"subnet": cidr.String()}})
		everything := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if cidr.Addr().Is6() {
			everything = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		routes = append(routes, map[string]string{"dst": everything.String()})
	}
	raw, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       "portway-lab",
		"plugins": []map[string]any{
			{
				"type": "ptp",
				"ipam": map[string]any{
					"type": "host-local", "ranges": ranges, "routes": routes,
					// In memory: the addresses of a node that restarts are free.
					"dataDir": "/run/cni-ipam-state",
				},
			},
			{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
		},
	}, "", "  ")
	return string(raw), err
}

func parseNodes(raw []byte) ([]node, error) {
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ PodCIDRs []netip.Prefix }
			Status   struct {
				Addresses []struct{ Type, Address string }
			}
		}
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	var nodes []node
	for _, item := range list.Items {
		n := node{name: item.Metadata.Name, podCIDRs: item.Spec.PodCIDRs}
		for _, a := range item.Status.Addresses {
			if a.Type != "InternalIP" {
				continue
			}
			addr, err := netip.ParseAddr(a.Address)
			if err != nil {
				return nil, fmt.Errorf("node %s: %w", n.name, err)
			}
			n.addresses = append(n.addresses, addr)
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// Kubectl runs kubectl against the cluster.
type Kubectl struct {
	Run        command.Runner
	Program    string
	Kubeconfig string
}

// Cmd is a kubectl command, to be changed or run.
func (k Kubectl) Cmd(args ...string) command.Cmd {
	return command.Cmd{Args: append([]string{k.Program}, args...), Env: []string{"KUBECONFIG=" + k.Kubeconfig}}
}

// Output runs a kubectl command and returns what it prints, trimmed.
func (k Kubectl) Output(ctx context.Context, args ...string) (string, error) {
	out, err := k.Run.Run(ctx, k.Cmd(args...))
	return strings.TrimSpace(out), err
}
