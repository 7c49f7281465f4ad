package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/portway/portway/modules/dataplane"
)

const (
	// nodePoll is how often a Node that is not ready for us is looked at.
	nodePoll = 2 * time.Second
	// nodeTell is how often it is said that we wait for it.
	nodeTell = time.Minute
	// nodeTimeout bounds one question to an API server that does not answer.
	nodeTimeout = 10 * time.Second
)

// modeAnnotation on a Node names its proxy mode.
const modeAnnotation = "net.experimental.kubernetes.io/proxy-mode"

// awaitNode returns the Node once it has what the agent needs to know before
// it starts: an address, and the range of its pods if they are told by it. The
// agent of a new machine starts before kubelet has registered it, and nothing
// is lost by waiting: there are no pods yet.
func awaitNode(ctx context.Context, client kubernetes.Interface, name string, needsPodCIDR bool, log *slog.Logger) (*corev1.Node, error) {
	var told time.Time
	var reason string
	for {
		node, err := getNode(ctx, client, name)
		lacks := ""
		if err != nil {
			lacks = whyNoNode(name, err)
		} else if lacks = nodeLacks(node, needsPodCIDR); lacks == "" {
			return node, nil
		}
		if lacks != reason || time.Since(told) >= nodeTell {
			reason, told = lacks, time.Now()
			log.Warn("Waiting for the Node", "node", name, "reason", lacks)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(nodePoll):
		}
	}
}

func getNode(ctx context.Context, client kubernetes.Interface, name string) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	return client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

func whyNoNode(name string, err error) string {
	switch {
	case apierrors.IsNotFound(err):
		return "there is no Node " + name + " yet; if it has another name, give --hostname-override"
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return fmt.Sprintf("the API server refuses to show it: %v", err)
	}
	return fmt.Sprintf("the API server cannot be asked: %v", err)
}

func nodeLacks(node *corev1.Node, needsPodCIDR bool) string {
	switch {
	case len(nodeFamilies(node)) == 0:
		return "it has no address yet"
	case needsPodCIDR && node.Spec.PodCIDR == "" && len(node.Spec.PodCIDRs) == 0:
		return "it has no spec.podCIDR yet, which detectLocalMode NodeCIDR needs"
	}
	return ""
}

// nodeFamilies returns those in which the Node has an address, the first one's
// first.
func nodeFamilies(node *corev1.Node) []dataplane.Family {
	var fs []dataplane.Family
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range node.Status.Addresses {
			ip, err := netip.ParseAddr(a.Address)
			if a.Type != kind || err != nil {
				continue
			}
			fs = withFamily(fs, dataplane.FamilyOf(ip))
		}
	}
	return fs
}

func withFamily(fs []dataplane.Family, f dataplane.Family) []dataplane.Family {
	for _, have := range fs {
		if have == f {
			return fs
		}
	}
	return append(fs, f)
}
