package load

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/portway/portway/bench/internal/network"
)

// NodeName is the Node that proxies run on.
const NodeName = "bench-node"

// writers is how many requests are under way at a time while Services are made.
const writers = 16

// Cluster is what has been written to one API server.
type Cluster struct {
	client kubernetes.Interface

	mu     sync.Mutex
	fresh  netip.Addr // the last endpoint that a change has brought
	slices map[string]*discoveryv1.EndpointSlice
}

// Connect connects to the API server that a kubeconfig names.
func Connect(kubeconfig string) (*Cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	config.QPS = -1 // what is wanted is known here
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Cluster{client: client, fresh: network.Changed.Addr(), slices: map[string]*discoveryv1.EndpointSlice{}}, nil
}

// Prepare writes what is there at any size: the Node, DNS, and the Services that
// are changed and measured.
func (c *Cluster) Prepare(ctx context.Context) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName}, Spec: corev1.NodeSpec{PodCIDR: "10.244.1.0/24"}}
	created, err := c.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create Node: %w", err)
	}
	created.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: network.Node.String()}}
	if _, err := c.client.CoreV1().Nodes().UpdateStatus(ctx, created, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update status of Node: %w", err)
	}
	for _, name := range []string{"kube-system", backgroundNamespace, specialNamespace} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := c.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create Namespace %s: %w", name, err)
		}
	}
	all := []Service{DNS(), Roll(), Flow()}
	for i := range Canaries {
		all = append(all, Canary(i))
	}
	for _, s := range all {
		if err := c.Create(ctx, s, c.Fresh(s.endpoints)); err != nil {
			return err
		}
	}
	return nil
}

// Adopt takes over what is on the API server, whoever has written it last.
func (c *Cluster) Adopt(ctx context.Context) error {
	list, err := c.client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{LabelSelector: managed})
	if err != nil {
		return fmt.Errorf("list EndpointSlices: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.slices)
	for i := range list.Items {
		slice := &list.Items[i]
		c.slices[slice.Namespace+"/"+slice.Name] = slice
		for _, e := range slice.Endpoints {
			if a := netip.MustParseAddr(e.Addresses[0]); network.Changed.Contains(a) && c.fresh.Less(a) {
				c.fresh = a
			}
		}
	}
	return nil
}

// Grow makes the background Services from a number on up to another.
func (c *Cluster) Grow(ctx context.Context, from, to, endpoints int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for i := from; i < to && ctx.Err() == nil; i++ {
		g.Go(func() error { return c.Create(ctx, Background(i), backgroundEndpoints(i, endpoints)) })
	}
	return g.Wait()
}

// Fresh returns endpoint addresses that nothing has had before.
func (c *Cluster) Fresh(count int) []netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	addrs := make([]netip.Addr, count)
	for i := range addrs {
		c.fresh = c.fresh.Next()
		addrs[i] = c.fresh
	}
	return addrs
}

// Create makes a Service and its EndpointSlice, the Service first.
func (c *Cluster) Create(ctx context.Context, s Service, endpoints []netip.Addr) error {
	if _, err := c.client.CoreV1().Services(s.Namespace).Create(ctx, s.object(), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	slice := s.slice(endpoints)
	if _, err := c.client.DiscoveryV1().EndpointSlices(s.Namespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create EndpointSlice %s/%s: %w", s.Namespace, slice.Name, err)
	}
	c.remember(s, slice)
	return nil
}

// SetEndpoints changes the endpoints of a Service.
func (c *Cluster) SetEndpoints(ctx context.Context, s Service, endpoints []netip.Addr) error {
	slice := s.slice(endpoints)
	if _, err := c.client.DiscoveryV1().EndpointSlices(s.Namespace).Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update EndpointSlice %s/%s: %w", s.Namespace, slice.Name, err)
	}
	c.remember(s, slice)
	return nil
}

// ReplaceOne gives a Service a fresh endpoint in the place of one that it has,
// and returns the fresh one.
func (c *Cluster) ReplaceOne(ctx context.Context, s Service, which int) (netip.Addr, error) {
	endpoints := c.Endpoints(s)
	endpoints[which%len(endpoints)] = c.Fresh(1)[0]
	return endpoints[which%len(endpoints)], c.SetEndpoints(ctx, s, endpoints)
}

// SetAffinity gives Services session affinity, or takes it from them.
func (c *Cluster) SetAffinity(ctx context.Context, services []Service, bound bool) error {
	affinity := corev1.ServiceAffinityNone
	if bound {
		affinity = corev1.ServiceAffinityClientIP
	}
	patch := fmt.Appendf(nil, `{"spec": {"sessionAffinity": %q, "sessionAffinityConfig": null}}`, affinity)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for _, s := range services {
		g.Go(func() error {
			_, err := c.client.CoreV1().Services(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
			if err != nil {
				return fmt.Errorf("session affinity of Service %s/%s: %w", s.Namespace, s.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// Delete removes a Service and its EndpointSlice, the Service first.
func (c *Cluster) Delete(ctx context.Context, s Service) error {
	if err := c.client.CoreV1().Services(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	c.mu.Lock()
	delete(c.slices, s.key())
	c.mu.Unlock()
	err := c.client.DiscoveryV1().EndpointSlices(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) { // the garbage collector may have been first
		return fmt.Errorf("delete EndpointSlice %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}

func (c *Cluster) remember(s Service, slice *discoveryv1.EndpointSlice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slices[s.key()] = slice
}

// Endpoints are those that a Service has by what was written last.
func (c *Cluster) Endpoints(s Service) []netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	var addrs []netip.Addr
	for _, e := range c.slices[s.key()].Endpoints {
		addrs = append(addrs, netip.MustParseAddr(e.Addresses[0]))
	}
	return addrs
}

// Want is every endpoint that the API server knows of, as address:port.
func (c *Cluster) Want() map[netip.AddrPort]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	want := map[netip.AddrPort]bool{netip.AddrPortFrom(network.API, APIPort): true}
	for _, slice := range c.slices {
		for _, e := range slice.Endpoints {
			for _, p := range slice.Ports {
				want[netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*p.Port))] = true
			}
		}
	}
	return want
}

// Ports of the API server: itself, and its Service.
const (
	APIPort        = 6443
	apiServicePort = 443
)

// Kubernetes is where the API server's own Service is.
func Kubernetes() netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), apiServicePort)
}

// target is the port of a backend.
func target(port int) intstr.IntOrString { return intstr.FromInt32(int32(port)) }
