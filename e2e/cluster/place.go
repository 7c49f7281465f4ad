package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The ends of a question that nobody answered.
var (
	// ErrRefused: it was refused at once.
	ErrRefused = errors.New("refused")
	// ErrSilent: nothing came back in time.
	ErrSilent = errors.New("no answer")
)

// Question is what to ask a server of the tests, and where.
type Question struct {
	To netip.AddrPort
	// Host, if not empty, is a name to ask instead of To's address.
	Host string
	// Ask is the server's command: "hostname" or "clientip".
	Ask   string
	UDP   bool
	Tries int // each over a connection of its own; 0 means 1
}

func (q Question) target() string {
	if q.Host != "" {
		return net.JoinHostPort(q.Host, strconv.Itoa(int(q.To.Port())))
	}
	return q.To.String()
}

func (q Question) tries() int { return max(q.Tries, 1) }

func (q Question) url() string { return "http://" + q.target() + "/" + q.Ask }

// Place is somewhere to ask from.
type Place struct {
	Name string
	// Addrs are those that a packet from there has.
	Addrs []netip.Addr
	ask   func(context.Context, Question) ([]string, error)
}

func (p Place) String() string { return p.Name }

// Addr is the place's address of the same family as like.
func (p Place) Addr(like netip.Addr) netip.Addr { return Node{Addrs: p.Addrs}.Addr(like) }

// Ask returns the answers to all tries, or an error if one of them got none.
func (p Place) Ask(ctx context.Context, q Question) ([]string, error) {
	answers, err := p.ask(ctx, q)
	if err != nil {
		return answers, fmt.Errorf("%s asks %s for %s: %w", p, q.target(), q.Ask, err)
	}
	return answers, nil
}

// clientPort is where the clients of the tests take orders.
const clientPort = 8080

// FromPod asks from a pod that runs agnhost netexec. The API server passes the
// order on to it, so this needs no Service.
func (c *Cluster) FromPod(pod *corev1.Pod) Place {
	port := pod.Spec.Containers[0].Ports[0].ContainerPort
	return Place{Name: "pod " + pod.Name + " on " + pod.Spec.NodeName, Addrs: PodAddrs(pod), ask: func(ctx context.Context, q Question) ([]string, error) {
		host := q.Host
		if host == "" {
			host = q.To.Addr().String()
		}
		proto := "http"
		if q.UDP {
			proto = "udp"
		}
		raw, err := c.order(ctx, pod, port, "dial", map[string]string{
			"host": host, "port": strconv.Itoa(int(q.To.Port())), "protocol": proto,
			"request": q.Ask, "tries": strconv.Itoa(q.tries()),
		})
		if err != nil {
			return nil, err
		}
		return parseDial(raw, q.tries())
	}}
}

// order has a pod's netexec do something.
func (c *Cluster) order(ctx context.Context, pod *corev1.Pod, port int32, command string, params map[string]string) ([]byte, error) {
	req := c.CoreV1().RESTClient().Get().Namespace(pod.Namespace).Resource("pods").
		Name(fmt.Sprintf("%s:%d", pod.Name, port)).SubResource("proxy").Suffix(command)
	for k, v := range params {
		req = req.Param(k, v)
	}
	return req.DoRaw(ctx)
}

// parseDial reads what netexec says of the connections that it made.
func parseDial(raw []byte, tries int) ([]string, error) {
	var out struct{ Responses, Errors []string }
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, fmt.Errorf("answer %q: %w", raw, err)
	}
	if len(out.Errors) == 0 {
		return out.Responses, nil
	}
	worst := out.Errors[0]
	end := errors.New(worst)
	switch {
	// The second is how a node hears that its own packet was rejected on the
	// way out.
	case strings.Contains(worst, "refused"), strings.Contains(worst, "operation not permitted"):
		end = fmt.Errorf("%w: %s", ErrRefused, worst)
	case strings.Contains(worst, "timeout"), strings.Contains(worst, "deadline exceeded"):
		end = fmt.Errorf("%w: %s", ErrSilent, worst)
	}
	return out.Responses, fmt.Errorf("%d of %d tries failed: %w", len(out.Errors), tries, end)
}

// patience is how long to wait for an answer, the same everywhere: it is what
// netexec has.
const patience = 5 * time.Second

// separator stands between answers, which may have lines and blanks.
const separator = "\x1e"

// FromNode asks from the node itself.
func (c *Cluster) FromNode(n Node) Place {
	return Place{Name: "node " + n.Name, Addrs: n.Addrs, ask: func(ctx context.Context, q Question) ([]string, error) {
		if q.UDP {
			return nil, errors.New("a node has no client for UDP: ask from a hostNetwork pod")
		}
		script := fmt.Sprintf("for i in $(seq %d); do curl --silent --show-error --max-time %d '%s' || exit; printf '\\036'; done",
			q.tries(), int(patience.Seconds()), q.url())
		out, err := c.Exec(ctx, n.Name, "sh", "-c", script)
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			switch exit.ExitCode() {
			case 7: // could not connect
				err = fmt.Errorf("%w: %w", ErrRefused, err)
			case 28: // timeout
				err = fmt.Errorf("%w: %w", ErrSilent, err)
			}
		}
		return strings.Split(strings.TrimSuffix(out, separator), separator), err
	}}
}

// Shell runs a command in a pod that runs agnhost netexec.
func (c *Cluster) Shell(ctx context.Context, pod *corev1.Pod, command string) (string, error) {
	raw, err := c.order(ctx, pod, pod.Spec.Containers[0].Ports[0].ContainerPort, "shell", map[string]string{"cmd": command})
	if err != nil {
		return "", err
	}
	var out struct{ Output, Error string }
	if err := json.Unmarshal(raw, &out); err != nil {
		return "", fmt.Errorf("answer %q: %w", raw, err)
	}
	if out.Error != "" {
		return out.Output, fmt.Errorf("pod %s: %s: %s", pod.Name, command, out.Error)
	}
	return out.Output, nil
}
