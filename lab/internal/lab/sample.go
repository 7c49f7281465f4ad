package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/portway/portway/lab/internal/cluster"
	"github.com/portway/portway/lab/internal/command"
)

// sample deploys the Service that a person tries first.
func (l *Lab) sample(ctx context.Context, _ func(string)) error {
	for _, args := range [][]string{
		{"apply", "--filename=" + filepath.Join(l.repo, "lab", "sample")},
		{"rollout", "status", "deployment/svc-deploy", "--timeout=180s"},
	} {
		if _, err := l.kubectl().Output(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// demo is the commands that show the sample at work. The lab prints them for a
// person to paste, and has run the very same ones itself.
type demo struct {
	kubeconfig string
	dockerHost string // empty: the user's own Docker
	kubectl    string
	node       string     // a client is on it, and is it
	exec       string     // the words before a command on it
	address    netip.Addr // the Service's ClusterIP
}

// thirty asks the URL thirty times and counts the equal answers.
func thirty(url string) string {
	return `sh -c 'for i in $(seq 30); do curl --silent --show-error --max-time 5 ` + url +
		`; done | grep "<title>" | sort | uniq -c'`
}

func (d demo) url() string { return "http://" + netip.AddrPortFrom(d.address, 80).String() + "/" }

func (d demo) environment() []string {
	lines := []string{"export KUBECONFIG=" + d.kubeconfig}
	if d.dockerHost != "" {
		lines = append(lines, "export DOCKER_HOST="+d.dockerHost)
	}
	return lines
}

// fromPod asks by name, so it shows the cluster's DNS too.
func (d demo) fromPod() string {
	return d.kubectl + " run client --rm --stdin --quiet --restart=Never --image=nginx --image-pull-policy=IfNotPresent " +
		`--overrides='{"apiVersion":"v1","spec":{"nodeName":"` + d.node + `"}}' --command -- ` +
		thirty("http://myapp/")
}

func (d demo) fromNode() string { return d.exec + " " + thirty(d.url()) }

// spread counts the requests that each pod has answered.
func (d demo) spread() string {
	return d.kubectl + ` logs --selector=app=myapp --prefix --tail=-1 | grep "GET / " | cut -d" " -f1 | sort | uniq -c`
}

func (l *Lab) demo(ctx context.Context) (demo, error) {
	ip, err := l.kubectl().Output(ctx, "get", "service", "myapp", "--output=jsonpath={.spec.clusterIP}")
	if err != nil {
		return demo{}, err
	}
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return demo{}, fmt.Errorf("ClusterIP of Service myapp: %w", err)
	}
	d := demo{
		kubeconfig: l.kubeconfig(), dockerHost: l.docker().Host, kubectl: l.state.Kubectl,
		node: l.client(), address: addr,
	}
	d.exec = strings.Join(cluster.NodeExec(l.docker(), d.node).Args, " ")
	return d, nil
}

// client is the node to ask from: the mode is at work there.
func (l *Lab) client() string {
	switch {
	case l.state.Guest:
		return cluster.GuestName
	case l.state.Options.Workers > 0:
		return cluster.Name + "-worker"
	}
	return cluster.Name + "-control-plane"
}

// checkTimeout bounds how long the sample may take to answer fully: Services
// follow the pods within a second or so.
const checkTimeout = 60 * time.Second

// check runs the commands that will be printed until they show what they
// should.
func (l *Lab) check(ctx context.Context, note func(string)) error {
	d, err := l.demo(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	for _, q := range []struct {
		name, command string
		enough        func(output string) bool
	}{
		{"pod", d.fromPod(), answeredAll},
		{"node", d.fromNode(), answeredAll},
		{"logs", d.spread(), threePods},
	} {
		note("from the " + q.name)
		if err := l.until(ctx, d, q.command, q.enough); err != nil {
			return fmt.Errorf("the sample does not answer (%s): %w", q.name, err)
		}
	}
	return nil
}

// until runs the shell command until its output is enough.
func (l *Lab) until(ctx context.Context, d demo, shell string, enough func(string) bool) error {
	cmd := command.Cmd{Args: []string{"sh", "-c", shell}}
	for _, line := range d.environment() {
		cmd.Env = append(cmd.Env, strings.TrimPrefix(line, "export "))
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		out, err := l.run.Run(ctx, cmd)
		if err == nil && enough(out) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("unexpected output %q of: %s", out, cmd)
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// answeredAll reports whether all thirty requests got nginx's page.
func answeredAll(output string) bool {
	return regexp.MustCompile(`^\s*30 <title>Welcome to nginx!</title>\s*$`).MatchString(output)
}

// threePods reports whether each of the three pods has answered.
func threePods(output string) bool {
	return strings.Count(output, "[pod/svc-deploy-") == 3
}

// printCommands ends `lab up`: what a person pastes to see it work.
func (l *Lab) printCommands(ctx context.Context) error {
	d, err := l.demo(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(l.Out, "\nThe lab is up with %s.\nPaste this to see it work: from a pod, from a node, and which pods answered.\n\n", l.state.Options)
	for _, line := range append(d.environment(), d.fromPod(), d.fromNode(), d.spread()) {
		fmt.Fprintln(l.Out, line)
	}
	return nil
}
