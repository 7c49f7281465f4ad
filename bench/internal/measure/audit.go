package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/portway/portway/bench/internal/proxy"
)

// foreign is a chain that nothing leads to.
const foreign = "FOREIGN"

// audit measures Portway's; kube-proxy has none. The first comes after somebody
// else's write, so that nothing that is known may be relied on.
func (r *run) audit(ctx context.Context) (err error) {
	if r.Proxy.Name != proxy.Portway {
		return nil
	}
	if err := r.proxy.Iptables(ctx, "-t", "nat", "-N", foreign); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.proxy.Iptables(ctx, "-t", "nat", "-X", foreign)) }()
	for _, figure := range []string{"audit.time", "audit.again"} {
		took, err := r.auditOnce(ctx)
		if err != nil {
			return err
		}
		r.figures[figure] = took.Seconds()
	}
	return nil
}

func (r *run) auditOnce(ctx context.Context) (time.Duration, error) {
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", r.proxy.Socket())
	}}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/audit", nil)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	took := time.Since(start)
	if err != nil || response.StatusCode != http.StatusOK {
		return 0, errors.Join(err, fmt.Errorf("audit: %s: %s", response.Status, body))
	}
	var answer struct {
		Planes []struct {
			Differences []json.RawMessage `json:"differences"`
		} `json:"planes"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, err
	}
	for _, p := range answer.Planes {
		if len(p.Differences) > 0 {
			return 0, fmt.Errorf("audit: the kernel is not as it should be: %s", body)
		}
	}
	return took, nil
}
