package agent

import (
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/portway/portway/services/agent/config"
)

// newClient returns a client of the API server. It connects to nothing yet.
//
// A connection that goes silent is noticed within 45 seconds: client-go pings
// an HTTP/2 connection that was idle for 30 seconds, and gives up on it 15
// seconds later (kubernetes#28674).
func newClient(opts *config.Options) (kubernetes.Interface, error) {
	rc, err := restConfig(opts)
	if err != nil {
		return nil, err
	}
	cc := &opts.Proxy.ClientConnection
	rc.AcceptContentTypes, rc.ContentType = cc.AcceptContentTypes, cc.ContentType
	rc.QPS, rc.Burst = cc.QPS, int(cc.Burst)
	rc.UserAgent = "portway/" + release
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	return client, nil
}

func restConfig(opts *config.Options) (*rest.Config, error) {
	file := opts.Proxy.ClientConnection.Kubeconfig
	if file == "" && opts.Master == "" {
		rc, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no way to the API server: not in a pod, and neither --kubeconfig, clientConnection.kubeconfig nor --master is given (%w)", err)
		}
		return rc, nil
	}
	rc, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: file},
		&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: opts.Master}},
	).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig file %s: %w", file, err)
	}
	return rc, nil
}
