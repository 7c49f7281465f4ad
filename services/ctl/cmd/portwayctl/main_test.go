package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/portway/portway/modules/servicecache/apisim"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"portwayctl": main})
}

// TestScripts runs the program. In the scripts,
//
//	agent DIR     an agent answers with the files of DIR on the socket s, and
//	              notes in DIR/asked what it was asked
//	cluster       an API server with a node and a pod, and its file kubeconfig
//	exits N CMD…  runs a program that must end with that code
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"agent": agent, "cluster": cluster, "exits": exits,
		},
	})
}

func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	have := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		have = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if have != want {
		ts.Fatalf("exit code %d, want %d", have, want)
	}
}

func agent(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.RemoveAll(ts.MkAbs("s"))) // of an earlier agent
	stop, err := startAgent(ts.MkAbs("s"), ts.MkAbs(args[0]))
	ts.Check(err)
	ts.Defer(stop)
}

// startAgent answers with the files of a directory.
func startAgent(socket, dir string) (stop func(), err error) {
	l, err := new(net.ListenConfig).Listen(context.Background(), "unix", socket)
	if err != nil {
		return nil, err
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := os.WriteFile(filepath.Join(dir, "asked"), []byte(r.Method+" "+r.URL.RequestURI()+"\n"), 0o600); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(r.URL.Path[1:], "/", "-")))
		if err != nil {
			http.Error(w, "nothing is known of this node yet: give one", http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "%s", answer)
	})}
	go func() { _ = srv.Serve(l) }()
	return func() { _ = srv.Close() }, nil
}

func cluster(ts *testscript.TestScript, _ bool, _ []string) {
	sim, err := startCluster(ts.MkAbs("kubeconfig"))
	ts.Check(err)
	ts.Defer(sim.Close)
}

// startCluster writes a kubeconfig of an API server with a node and a pod.
func startCluster(kubeconfig string) (sim *apisim.Server, err error) {
	sim = apisim.New()
	defer func() {
		if err != nil {
			sim.Close()
		}
	}()
	config := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: " + strconv.Quote(sim.URL()) + "}}]\n" +
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := os.WriteFile(kubeconfig, []byte(config), 0o600); err != nil {
		return nil, err
	}
	return sim, sim.Set(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeExternalIP, Address: "203.0.113.1"}, {Type: corev1.NodeInternalIP, Address: "192.168.0.1"},
		}}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "client"}, Status: corev1.PodStatus{
			PodIPs: []corev1.PodIP{{IP: "10.244.1.7"}, {IP: "fd00:244::7"}},
		}},
	)
}
