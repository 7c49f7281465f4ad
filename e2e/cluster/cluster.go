package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Cluster is a kind cluster.
type Cluster struct {
	kubernetes.Interface
	Access Access
	// Nodes are all nodes. First are those that have a mode of their own, if
	// any: it is the mode of the cluster's proxy. Then the other workers: what
	// runs on a worker disturbs least.
	Nodes []Node
	Proxy Proxy
}

// Node is one node: a container, or a kernel of its own in one.
type Node struct {
	Name         string
	Addrs        []netip.Addr // its InternalIPs, one for each family
	ControlPlane bool
	// mode is what its annotation wishes of its proxy, empty for none.
	mode string
	// exec are the words before a command that is to run on the node and not
	// only in its container.
	exec []string
}

// Annotations of Nodes.
const (
	modeAnnotation = "net.experimental.kubernetes.io/proxy-mode"
	execAnnotation = "portway-lab/exec" // the lab's, on a node with a kernel of its own
)

// Addr is the node's address of the same family as like.
func (n Node) Addr(like netip.Addr) netip.Addr {
	for _, a := range n.Addrs {
		if a.Is4() == like.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// Connect reads what the cluster is made of.
func Connect(ctx context.Context, a Access) (*Cluster, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", a.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", a.Kubeconfig, err)
	}
	cfg.QPS, cfg.Burst = 100, 200 // probes go through the API server
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", a.Kubeconfig, err)
	}
	c := &Cluster{Interface: client, Access: a}
	if err := c.readNodes(ctx); err != nil {
		return nil, err
	}
	c.Proxy, err = c.findProxy(ctx)
	return c, err
}

func (c *Cluster) readNodes(ctx context.Context) error {
	list, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	for _, n := range list.Items {
		node, err := nodeOf(&n)
		if err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
		c.Nodes = append(c.Nodes, node)
	}
	slices.SortStableFunc(c.Nodes, func(a, b Node) int { return cmp.Compare(a.rank(), b.rank()) })
	if len(c.Nodes) < 2 || c.Nodes[1].ControlPlane {
		return errors.New("the specs need two workers: make lab-up NODES=2")
	}
	return nil
}

// rank is a node's place in the order of Nodes.
func (n Node) rank() int {
	switch {
	case n.ControlPlane:
		return 2
	case n.mode == "":
		return 1
	}
	return 0
}

func nodeOf(n *corev1.Node) (Node, error) {
	node := Node{Name: n.Name, mode: n.Annotations[modeAnnotation], exec: strings.Fields(n.Annotations[execAnnotation])}
	_, node.ControlPlane = n.Labels["node-role.kubernetes.io/control-plane"]
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		addr, err := netip.ParseAddr(a.Address)
		if err != nil {
			return node, err
		}
		node.Addrs = append(node.Addrs, addr)
	}
	if node.Addrs == nil {
		return node, errors.New("no InternalIP")
	}
	return node, nil
}

// Exec runs a program on a node and returns what it prints.
func (c *Cluster) Exec(ctx context.Context, node string, argv ...string) (string, error) {
	return c.ExecInput(ctx, node, "", argv...)
}

// ExecInput is Exec with something to read for the program.
func (c *Cluster) ExecInput(ctx context.Context, node, input string, argv ...string) (string, error) {
	words := []string{"exec", "--interactive", node}
	if i := slices.IndexFunc(c.Nodes, func(n Node) bool { return n.Name == node }); i >= 0 {
		words = append(words, c.Nodes[i].exec...)
	}
	cmd := exec.CommandContext(ctx, "docker", append(words, argv...)...)
	if c.Access.DockerHost != "" {
		cmd.Env = append(os.Environ(), "DOCKER_HOST="+c.Access.DockerHost)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %s: %w: %s", node, strings.Join(argv, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}
