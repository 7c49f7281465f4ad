package servicecache

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/portway/portway/modules/dataplane"
)

// sliceSelector leaves out the slices of headless Services and those of none.
// Services are all wanted: the ClusterIPs of other proxies' must be left alone.
const sliceSelector = discoveryv1.LabelServiceName + ",!" + corev1.IsHeadlessService

// watches returns one function for each kind, which lists and watches it until
// its context ends.
func (s *Source) watches() []func(context.Context) {
	ws := []func(context.Context){s.watchServices, s.watchSlices, s.watchNode}
	if s.cache.DropUnallocated {
		ws = append(ws, s.watchCIDRs)
	}
	return ws
}

// typed is what a watch needs of a typed client.
type typed[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// selection is a subset of the objects of a kind.
type selection struct{ labels, fields string }

func listWatch[L runtime.Object](client typed[L], of selection) *cache.ListWatch {
	narrow := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector, o.FieldSelector = of.labels, of.fields
		return o
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, narrow(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := client.Watch(ctx, narrow(o))
			if err != nil && ctx.Err() != nil {
				return watch.NewEmptyWatch(), nil // the end is no error to be logged
			}
			return w, err
		},
	}
}

// follow keeps an inbox equal to the API until the context ends; when the
// first list is in the Cache its part has arrived.
func follow[O runtime.Object, M any](ctx context.Context, s *Source, part string, lw *cache.ListWatch, in *inbox[O, M]) {
	in.queue = s.queue
	in.listed = func() { s.arrived(part) }
	in.came = func(objects int) {
		if s.listener.Came != nil && (part == Services || part == EndpointSlices) {
			s.listener.Came(part, objects)
		}
	}
	source := cache.ToListWatcherWithWatchListSemantics(lw, s.client)
	var kind O
	options := cache.ReflectorOptions{Name: "servicecache", Backoff: s.backoff}
	cache.NewReflectorWithOptions(source, kind, in, options).RunWithContext(ctx)
}

func (s *Source) watchServices(ctx context.Context) {
	client := s.client.CoreV1().Services(metav1.NamespaceAll)
	follow(ctx, s, servicesPart, listWatch(client, selection{}), &inbox[*corev1.Service, *service]{
		read:    s.cache.service,
		set:     (*Cache).setService,
		replace: (*Cache).replaceServices,
		remove: func(c *Cache, o *corev1.Service) {
			c.DeleteService(dataplane.ServiceName{Namespace: o.Namespace, Name: o.Name})
		},
	})
}

func (s *Source) watchSlices(ctx context.Context) {
	client := s.client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll)
	follow(ctx, s, slicesPart, listWatch(client, selection{labels: sliceSelector}), &inbox[*discoveryv1.EndpointSlice, namedSlice]{
		read: func(o *discoveryv1.EndpointSlice) namedSlice {
			return namedSlice{sliceName{o.Namespace, o.Name}, s.cache.slice(o)}
		},
		set:     func(c *Cache, n namedSlice) { n.set(c) },
		replace: (*Cache).replaceSlices,
		remove:  func(c *Cache, o *discoveryv1.EndpointSlice) { c.DeleteEndpointSlice(o.Namespace, o.Name) },
		trim: func(o *discoveryv1.EndpointSlice) {
			for i := range o.Endpoints {
				o.Endpoints[i].TargetRef, o.Endpoints[i].DeprecatedTopology = nil, nil
			}
		},
	})
}

func (s *Source) watchNode(ctx context.Context) {
	own := selection{fields: fields.OneTermEqualSelector(metav1.ObjectNameField, s.cache.NodeName).String()}
	follow(ctx, s, nodePart, listWatch(s.client.CoreV1().Nodes(), own), &inbox[*corev1.Node, namedFacts]{
		read:    func(o *corev1.Node) namedFacts { return namedFacts{o.Name, readNode(o)} },
		set:     func(c *Cache, n namedFacts) { n.set(c) },
		replace: (*Cache).replaceNodes,
		remove:  func(c *Cache, o *corev1.Node) { c.DeleteNode(o.Name) },
		trim:    func(o *corev1.Node) { o.Status.Images = nil },
	})
}

func (s *Source) watchCIDRs(ctx context.Context) {
	client := s.client.NetworkingV1().ServiceCIDRs()
	if !s.awaitCIDRs(ctx, client.List) {
		return
	}
	follow(ctx, s, cidrsPart, listWatch(client, selection{}), &inbox[*networkingv1.ServiceCIDR, namedCIDRs]{
		read:    readCIDRs,
		set:     func(c *Cache, n namedCIDRs) { n.set(c) },
		replace: (*Cache).replaceCIDRs,
		remove:  func(c *Cache, o *networkingv1.ServiceCIDR) { c.DeleteServiceCIDR(o.Name) },
	})
}

const (
	retryDelay  = time.Second
	absentDelay = 5 * time.Minute
)

// awaitCIDRs waits until ServiceCIDRs can be listed; false if the context ends
// first. An API server before 1.33 does not have them, and kube-proxy's role
// of those days does not name them: then there are none, and no reason to wait
// with everything else.
func (s *Source) awaitCIDRs(ctx context.Context, list func(context.Context, metav1.ListOptions) (*networkingv1.ServiceCIDRList, error)) bool {
	told := false
	for {
		_, err := list(ctx, metav1.ListOptions{Limit: 1})
		delay := retryDelay
		switch {
		case err == nil:
			return true
		case !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
		case !told:
			told = true
			s.log.Warn("cannot list ServiceCIDRs: unallocated Service addresses are not dropped", "err", err)
			s.queue.put(func(*Cache) { s.arrived(cidrsPart) })
			fallthrough
		default:
			delay = absentDelay
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(delay):
		}
	}
}
