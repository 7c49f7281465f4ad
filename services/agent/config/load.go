package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const kind = "KubeProxyConfiguration"

// load reads a configuration file.
func load(path string) ([]byte, *v1alpha1.KubeProxyConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration file: %w", err)
	}
	cfg, err := Decode(data)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration file %s: %w", path, err)
	}
	return data, cfg, nil
}

// Decode reads a configuration, YAML or JSON, and completes it with kube-proxy's
// defaults.
func Decode(data []byte) (*v1alpha1.KubeProxyConfiguration, error) {
	doc, err := onlyDocument(data)
	if err != nil {
		return nil, err
	}
	// Keys that occur twice are seen in YAML only: JSON made of it has one.
	raw, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return nil, fmt.Errorf("not valid YAML: %s", oneLine(err))
	}
	if err := checkType(raw); err != nil {
		return nil, err
	}
	cfg := new(v1alpha1.KubeProxyConfiguration)
	strict, err := json.UnmarshalStrict(raw, cfg)
	if err != nil {
		return nil, fmt.Errorf("not a %s: %s", kind, oneLine(err))
	}
	if len(strict) > 0 {
		return nil, errors.Join(strict...)
	}
	SetDefaults(cfg)
	return cfg, nil
}

// onlyDocument refuses files with several documents: a reader that takes the
// first would ignore the rest without a word.
func onlyDocument(data []byte) ([]byte, error) {
	var docs [][]byte
	r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("not valid YAML: %s", oneLine(err))
		}
		if hasContent(doc) {
			docs = append(docs, doc)
		}
	}
	switch len(docs) {
	case 0:
		return nil, fmt.Errorf("empty; want a %s of %s", kind, v1alpha1.SchemeGroupVersion)
	case 1:
		return docs[0], nil
	}
	return nil, fmt.Errorf("%d documents; want one", len(docs))
}

func hasContent(doc []byte) bool {
	for line := range bytes.Lines(doc) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return true
		}
	}
	return false
}

func checkType(raw []byte) error {
	var t struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal(raw, &t); err != nil {
		return fmt.Errorf("not a %s: %s", kind, oneLine(err))
	}
	want := v1alpha1.SchemeGroupVersion.WithKind(kind)
	if have := schema.FromAPIVersionAndKind(t.APIVersion, t.Kind); have != want {
		return fmt.Errorf("apiVersion %q and kind %q; want %q and %q", t.APIVersion, t.Kind, want.GroupVersion(), kind)
	}
	return nil
}

// oneLine folds the message of a YAML error, which spreads over several lines.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// Encode writes a configuration as Decode reads it.
func Encode(cfg *v1alpha1.KubeProxyConfiguration) ([]byte, error) {
	out := cfg.DeepCopy()
	out.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind))
	return yaml.Marshal(out)
}
