package servicecache

import (
	"fmt"
	"slices"
	"strings"
)

func detectLocalNames() words[DetectLocal] {
	return words[DetectLocal]{"none", "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"}
}

func externalIPsNames() words[ExternalIPs] { return words[ExternalIPs]{"all", "none", "listed"} }

// MarshalText spells the way as kube-proxy's configuration does.
func (d DetectLocal) MarshalText() ([]byte, error) { return detectLocalNames().marshal(d) }

// UnmarshalText reads it.
func (d *DetectLocal) UnmarshalText(text []byte) error { return detectLocalNames().unmarshal(d, text) }

// MarshalText returns "all", "none" or "listed".
func (e ExternalIPs) MarshalText() ([]byte, error) { return externalIPsNames().marshal(e) }

// UnmarshalText reads it.
func (e *ExternalIPs) UnmarshalText(text []byte) error { return externalIPsNames().unmarshal(e, text) }

// words are the values of a kind, by number.
type words[T ~uint8] []string

func (w words[T]) marshal(v T) ([]byte, error) {
	if int(v) >= len(w) {
		return nil, fmt.Errorf("%T(%d) has no name", v, v)
	}
	return []byte(w[v]), nil
}

func (w words[T]) unmarshal(to *T, text []byte) error {
	i := slices.Index(w, string(text))
	if i < 0 {
		return fmt.Errorf("%q is none of %s", text, strings.Join(w, ", "))
	}
	*to = T(i)
	return nil
}
