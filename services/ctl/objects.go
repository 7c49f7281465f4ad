package ctl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// objects are those of the API that matter, as kubectl prints them.
type objects struct {
	services []*corev1.Service
	slices   []*discoveryv1.EndpointSlice
	cidrs    []*networkingv1.ServiceCIDR
	nodes    []*corev1.Node
	pods     []*corev1.Pod
}

// read takes YAML documents, or JSON, of objects and lists of them. Other kinds
// are passed over.
func (o *objects) read(text []byte) error {
	docs := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for n := 1; ; n++ {
		var raw json.RawMessage
		err := docs.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && len(raw) > 0 {
			err = o.object(raw, typed{}, 0)
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
	}
}

// typed says what an object is. The items of a typed list do not say it
// themselves.
type typed struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// maxDepth of lists in lists.
const maxDepth = 4

func (o *objects) object(raw json.RawMessage, is typed, depth int) error {
	head := struct {
		typed
		Metadata struct{ Namespace, Name string }
		Items    []json.RawMessage
	}{typed: is}
	if err := json.Unmarshal(raw, &head); err != nil {
		return err
	}
	item, list := strings.CutSuffix(head.Kind, "List")
	if list && depth < maxDepth {
		for _, raw := range head.Items {
			if err := o.object(raw, typed{head.APIVersion, item}, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	var err error
	switch (typed{head.APIVersion, head.Kind}) {
	case typed{"v1", "Service"}:
		o.services, err = add(o.services, raw)
	case typed{"discovery.k8s.io/v1", "EndpointSlice"}:
		o.slices, err = add(o.slices, raw)
	case typed{"networking.k8s.io/v1", "ServiceCIDR"}, typed{"networking.k8s.io/v1beta1", "ServiceCIDR"}:
		o.cidrs, err = add(o.cidrs, raw)
	case typed{"v1", "Node"}:
		o.nodes, err = add(o.nodes, raw)
	case typed{"v1", "Pod"}:
		o.pods, err = add(o.pods, raw)
	}
	if err != nil {
		return fmt.Errorf("%s %s/%s: %w", head.Kind, head.Metadata.Namespace, head.Metadata.Name, err)
	}
	return nil
}

func add[T any](to []*T, raw json.RawMessage) ([]*T, error) {
	o := new(T)
	if err := json.Unmarshal(raw, o); err != nil {
		return to, err
	}
	return append(to, o), nil
}
