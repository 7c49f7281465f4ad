package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/portway/portway/lab/internal/command"
	"github.com/portway/portway/lab/internal/docker"
)

// fakeGuest is Docker, kubectl and the node with memory.
type fakeGuest struct {
	running, joined bool
	commands        []string
	node            string // the Node that was applied
	config          string // for kubeadm
}

func (f *fakeGuest) Run(_ context.Context, c command.Cmd) (string, error) {
	line := strings.Join(c.Args, " ")
	f.commands = append(f.commands, line)
	var stdin string
	if c.Stdin != nil {
		raw, err := io.ReadAll(c.Stdin)
		if err != nil {
			return "", err
		}
		stdin = string(raw)
	}
	switch {
	case strings.HasPrefix(line, "docker ps"):
		if f.running {
			return GuestName + "\n", nil
		}
	case strings.HasPrefix(line, "docker rm"):
		if !f.running {
			return "", errors.New("Error: No such container: " + GuestName)
		}
	case strings.HasPrefix(line, "docker inspect"):
		return "172.18.0.7 fc00::7\n", nil
	case strings.HasPrefix(line, "docker run"):
		f.running = true
	case strings.Contains(line, "kubeadm token create"):
		return "abc.def\n", nil
	case strings.Contains(line, "test -e /etc/kubernetes/kubelet.conf") && !f.joined:
		return "", errors.New("exit status 1")
	case strings.HasPrefix(line, "kubectl apply"):
		f.node = stdin
	case strings.Contains(line, "cat >/kind/kubeadm.conf"):
		f.config = stdin
	case strings.Contains(line, "kubeadm join"):
		f.joined = true
	}
	return "", nil
}

func (f *fakeGuest) guest(family string) Guest {
	return Guest{
		Docker: docker.Client{Run: f}, Kube: Kubectl{Run: f, Program: "kubectl"}, Image: "node:1", Family: family,
		Kernel: Kernel{Program: "/usr/bin/linux.uml", Modules: "/usr/lib/uml/modules/6.1.0", Processor: "3"},
	}
}

func TestGuestStartsOnce(t *testing.T) {
	f := &fakeGuest{}
	for range 2 {
		if err := f.guest("ipv6").Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	runs := slices.DeleteFunc(slices.Clone(f.commands), func(c string) bool { return !strings.HasPrefix(c, "docker run") })
	if len(runs) != 1 {
		t.Fatalf("it was started %d times", len(runs))
	}
	for _, want := range []string{
		"--label=io.x-k8s.kind.cluster=portway ", // kind deletes it with the others
		"--add-host=portway-control-plane:fc00::7 ",
		"--cpuset-cpus=3 ",
		"--volume=/usr/lib/uml/modules/6.1.0:/lib/modules/6.1.0:ro ",
		" node:1 /kind/lab/guest.sh",
	} {
		if !strings.Contains(runs[0], want) {
			t.Errorf("no %q in: %s", want, runs[0])
		}
	}
}

func TestGuestJoinsOnce(t *testing.T) {
	f := &fakeGuest{running: true}
	for range 2 {
		if err := f.guest("ipv4").Join(t.Context(), "ipvs"); err != nil {
			t.Fatal(err)
		}
	}
	at := func(part string) (places []int) {
		for i, c := range f.commands {
			if strings.Contains(c, part) {
				places = append(places, i)
			}
		}
		return places
	}
	if apply, join := at("kubectl apply"), at("labexec run kubeadm join"); len(join) != 1 || len(apply) != 2 || apply[0] > join[0] {
		t.Errorf("the Node is applied at %v, joined at %v", apply, join)
	}
	var node struct {
		Metadata struct{ Annotations map[string]string }
	}
	if err := json.Unmarshal([]byte(f.node), &node); err != nil {
		t.Fatal(err)
	}
	if got := node.Metadata.Annotations; got[modeAnnotation] != "ipvs" || got[execAnnotation] != guestExec {
		t.Errorf("annotations are %v", got)
	}
	for _, want := range []string{`"value":"172.18.0.7"`, `"token":"abc.def"`, `"apiServerEndpoint":"portway-control-plane:6443"`} {
		if !strings.Contains(f.config, want) {
			t.Errorf("no %s in: %s", want, f.config)
		}
	}
}

func TestNodeExec(t *testing.T) {
	for node, want := range map[string]string{
		Name + "-worker": "docker exec --interactive portway-worker ip link",
		GuestName:        "docker exec --interactive portway-guest labexec run ip link",
	} {
		if got := strings.Join(NodeExec(docker.Client{}, node, "ip", "link").Args, " "); got != want {
			t.Errorf("on %s: %s", node, got)
		}
	}
}

func TestGuestHasTheClustersFamilies(t *testing.T) {
	g := (&fakeGuest{}).guest("dual")
	if got, err := g.addresses(t.Context(), GuestName); err != nil || !slices.Equal(got, []string{"172.18.0.7", "fc00::7"}) {
		t.Errorf("%q, %v", got, err)
	}
}
