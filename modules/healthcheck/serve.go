package healthcheck

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// The askers are machines on the same network with short questions.
const (
	readTimeout = 5 * time.Second
	idleTimeout = 2 * time.Minute
)

func newServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadTimeout:       readTimeout,
		ReadHeaderTimeout: readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    1 << 14,
	}
}

// Serve answers on a listener until the context ends, which is no error.
func (p *Proxy) Serve(ctx context.Context, l net.Listener) error {
	server := newServer(p)
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve /healthz and /livez on %s: %w", l.Addr(), err)
	}
	return nil
}
