package ctl

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
)

// objects are all of the API that decide on a node, as kubectl prints a List.
func (k Kubernetes) objects(ctx context.Context, node string) ([]byte, error) {
	c, err := k.client()
	if err != nil {
		return nil, err
	}
	list := metav1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}}
	for _, fetch := range fetches(c, node) {
		objects, err := fetch(ctx)
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			list.Items = append(list.Items, runtime.RawExtension{Object: o})
		}
	}
	return json.Marshal(list)
}

// fetches get the objects of one kind each.
func fetches(c kubernetes.Interface, node string) []func(context.Context) ([]runtime.Object, error) {
	all := metav1.ListOptions{ResourceVersion: "0"}
	return []func(context.Context) ([]runtime.Object, error){
		func(ctx context.Context) ([]runtime.Object, error) {
			l, err := c.CoreV1().Services(metav1.NamespaceAll).List(ctx, all)
			return items("services", l, err)
		},
		func(ctx context.Context) ([]runtime.Object, error) {
			l, err := c.DiscoveryV1().EndpointSlices(metav1.NamespaceAll).List(ctx, all)
			return items("endpointslices", l, err)
		},
		func(ctx context.Context) ([]runtime.Object, error) {
			l, err := c.NetworkingV1().ServiceCIDRs().List(ctx, all)
			return items("servicecidrs", l, err)
		},
		func(ctx context.Context) ([]runtime.Object, error) {
			l, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + node})
			return items("nodes", l, err)
		},
	}
}

// items says of each object what it is, which those of typed lists do not.
func items(what string, list runtime.Object, err error) ([]runtime.Object, error) {
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", what, err)
	}
	var all []runtime.Object
	err = meta.EachListItem(list, func(o runtime.Object) error {
		kinds, _, err := scheme.Scheme.ObjectKinds(o)
		if err != nil {
			return err
		}
		o.GetObjectKind().SetGroupVersionKind(kinds[0])
		if m, ok := o.(metav1.Object); ok {
			m.SetManagedFields(nil)
		}
		all = append(all, o)
		return nil
	})
	return all, err
}
