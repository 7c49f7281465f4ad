package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Config says what runs where.
type Config struct {
	Kubernetes string // the directory with kube-apiserver and kube-controller-manager
	Etcd       string // the program
	Dir        string // for everything that they write
	Address    netip.Addr
	Port       int
	Services   netip.Prefix // the range of ClusterIPs
}

// ControlPlane is one that runs.
type ControlPlane struct {
	// Kubeconfig is a file for everybody who may do everything.
	Kubeconfig string

	cfg       Config
	processes []*process // in the order of their start
}

const (
	// patience is how long a program may take to be ready, on a busy machine too.
	patience = 5 * time.Minute

	etcdURL = "http://127.0.0.1:2379"
	token   = "bench" // only namespaces of this process can reach the API server
)

// Start starts all three and returns when the API server is ready.
func Start(ctx context.Context, cfg Config) (*ControlPlane, error) {
	c := &ControlPlane{cfg: cfg, Kubeconfig: filepath.Join(cfg.Dir, "kubeconfig")}
	for _, step := range []func(context.Context) error{c.writeFiles, c.startEtcd, c.startAPIServer, c.startControllers} {
		if err := step(ctx); err != nil {
			c.Stop()
			return nil, err
		}
	}
	return c, nil
}

// Stop stops all, the API server before etcd.
func (c *ControlPlane) Stop() {
	for i := len(c.processes) - 1; i >= 0; i-- {
		c.processes[i].stop()
	}
}

func (c *ControlPlane) file(name string) string { return filepath.Join(c.cfg.Dir, name) }

func (c *ControlPlane) writeFiles(context.Context) error {
	certificate, key, err := cert.GenerateSelfSignedCertKey(c.cfg.Address.String(), []net.IP{c.cfg.Address.AsSlice(), net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return fmt.Errorf("make the API server's certificate: %w", err)
	}
	serviceAccounts, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return fmt.Errorf("make the key of service accounts: %w", err)
	}
	err = os.MkdirAll(c.cfg.Dir, 0o700)
	for name, content := range map[string][]byte{
		"apiserver.crt": certificate, "apiserver.key": key, "sa.key": serviceAccounts,
		"tokens.csv": []byte(token + ",bench,bench,system:masters\n"),
	} {
		err = errors.Join(err, os.WriteFile(c.file(name), content, 0o600))
	}
	if err != nil {
		return err
	}
	config := api.NewConfig()
	config.Clusters["bench"] = &api.Cluster{Server: c.url(), CertificateAuthorityData: certificate}
	config.AuthInfos["bench"] = &api.AuthInfo{Token: token}
	config.Contexts["bench"] = &api.Context{Cluster: "bench", AuthInfo: "bench"}
	config.CurrentContext = "bench"
	return clientcmd.WriteToFile(*config, c.Kubeconfig)
}

func (c *ControlPlane) url() string {
	return "https://" + net.JoinHostPort(c.cfg.Address.String(), strconv.Itoa(c.cfg.Port))
}

func (c *ControlPlane) startEtcd(ctx context.Context) error {
	// Nothing here must outlive the machine, so no write waits for a disk.
	p, err := start(c.cfg.Dir, c.cfg.Etcd, "--data-dir="+c.file("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL, "--listen-peer-urls=http://127.0.0.1:2380",
		"--quota-backend-bytes=4294967296")
	if err != nil {
		return err
	}
	c.processes = append(c.processes, p)
	return p.await(ctx, patience, func(ctx context.Context) error { return get(ctx, http.DefaultClient, etcdURL+"/health") })
}

func (c *ControlPlane) startAPIServer(ctx context.Context) error {
	p, err := start(c.cfg.Dir, filepath.Join(c.cfg.Kubernetes, "kube-apiserver"),
		"--etcd-servers="+etcdURL, "--bind-address=0.0.0.0", "--secure-port="+strconv.Itoa(c.cfg.Port),
		"--advertise-address="+c.cfg.Address.String(), "--service-cluster-ip-range="+c.cfg.Services.String(),
		"--tls-cert-file="+c.file("apiserver.crt"), "--tls-private-key-file="+c.file("apiserver.key"),
		"--token-auth-file="+c.file("tokens.csv"), "--authorization-mode=RBAC",
		"--service-account-issuer="+c.url(), "--service-account-key-file="+c.file("sa.key"), "--service-account-signing-key-file="+c.file("sa.key"))
	if err != nil {
		return err
	}
	c.processes = append(c.processes, p)
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	return p.await(ctx, patience, func(ctx context.Context) error { return get(ctx, client, c.url()+"/readyz") })
}

func (c *ControlPlane) startControllers(context.Context) error {
	p, err := start(c.cfg.Dir, filepath.Join(c.cfg.Kubernetes, "kube-controller-manager"),
		"--kubeconfig="+c.Kubeconfig, "--authentication-kubeconfig="+c.Kubeconfig, "--authorization-kubeconfig="+c.Kubeconfig,
		"--leader-elect=false", "--bind-address=127.0.0.1", "--cert-dir="+c.file("controllers"),
		"--service-account-private-key-file="+c.file("sa.key"), "--root-ca-file="+c.file("apiserver.crt"))
	if err != nil {
		return err
	}
	c.processes = append(c.processes, p)
	return nil
}

// get says whether a URL answers well.
func get(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1000))
		return fmt.Errorf("%s: %s: %s", url, response.Status, text)
	}
	return nil
}
